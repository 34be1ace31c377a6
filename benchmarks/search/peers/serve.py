"""The side of a peer in the protocol of peer.py. Needs the standard library only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Spec:
    """Description of a search."""

    variant: str
    space: dict[str, dict[str, Any]]
    """By parameter: `type` ("int" or "float"), `low`, `high` and `log`, or `choices`."""
    epochs: int
    defaults: dict[str, Any]
    seed: int
    budget: int
    """Epochs of all trials together."""
    workers: int


class Method(Protocol):
    """The same as in simulate.py."""

    def ask(self) -> tuple[int, dict[str, Any]] | None: ...

    def report(self, trial: int, epoch: int, loss: float) -> bool: ...


def serve(start: Callable[[Spec], tuple[str, Method]]) -> None:
    """Answer requests until the input ends. `start` returns the version and the method."""
    replies = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8")

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    version, method = start(Spec(**json.loads(sys.stdin.readline())))
    reply({"version": version})
    for line in sys.stdin:
        request = json.loads(line)
        if "ask" in request:
            number, params = method.ask() or (None, None)
            reply({"trial": number, "params": params})
        else:
            reply({"goes_on": bool(method.report(*request["report"]))})
