"""Address of a tracker."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from supermax._util.text import is_secret
from supermax.results.tracking.names import digest

MLFLOW, TENSORBOARD, WANDB = "mlflow", "tensorboard", "wandb"


@dataclass(frozen=True)
class Destination:
    """Address of a tracker. `uri` may contain a password and is never shown; `shown` is
    without."""

    uri: str = field(repr=False)
    shown: str
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    """Variables of the tracker process, such as the user name and password of an MLflow server:
    in the address, MLflow would quote them in its messages."""
    file: Path | None = None
    """Database file of MLflow, or folder of another tracker; None: only a server."""
    kind: str = MLFLOW

    @property
    def digest(self) -> str:
        """Name of the record of what was sent, independent of the password."""
        return digest(self.shown if self.kind == MLFLOW else f"{self.kind}:{self.shown}")[:12]

    @property
    def track(self) -> str:
        """Value of the setting `track` that names it, without a password."""
        if self.kind == MLFLOW:
            return self.shown
        return f"{self.kind}:{self.uri}" if self.uri else self.kind

    def mask_secrets(self, message: str) -> str:
        """Return a message with all passwords masked."""
        for secret in self._secrets():
            message = message.replace(secret, "***")
        return message

    def _secrets(self) -> list[str]:
        found = [value for name, value in self.environment.items() if is_secret(name)]
        with contextlib.suppress(ArgumentError, ValueError):
            url = make_url(self.uri)
            found.append(str(url.password or ""))
            found += [str(value) for name, value in url.query.items() if is_secret(name)]
        spelled = {text for one in found if one for text in (one, quote(one), quote(one, safe=""))}
        return sorted(spelled, key=len, reverse=True)
