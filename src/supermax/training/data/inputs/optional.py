"""Import of optional packages, with a message that says what to install."""

from __future__ import annotations

import importlib
from typing import Any

from supermax.errors import UserError

_EXTRAS = {"pyarrow": "parquet", "datasets": "datasets"}


def optional(package: str, what: str) -> Any:
    """Import a package that only some formats need. Raises UserError if it is missing.

    `what` needs it, such as "reviews.parquet".
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        top = package.partition(".")[0]
        if error.name != top:
            raise
        raise UserError(
            f"{what} is read with the package {top}, which is not installed: pip install {top} "
            f"(extra {_EXTRAS[top]} of supermax)."
        ) from None
