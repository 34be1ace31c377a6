"""Errors named by whose fault they are.

Every message is a plain sentence: what happened, why, what to do next. The command line prints
the message alone; a program can catch the class.
"""

from __future__ import annotations

from supermax.words import masked_addresses


class SupermaxError(Exception):
    """Everything Supermax raises on purpose. Its text shows no password of an address."""

    def __str__(self) -> str:
        return masked_addresses(super().__str__())


class UserError(SupermaxError):
    """Something the caller asked for cannot be done as asked; nothing was changed."""


class EnvironmentFault(SupermaxError):
    """The machine, its disk or the study's storage does not allow the run to go on."""


class Infeasible(SupermaxError):
    """For objectives: this configuration cannot be run, and trying again would not help.

    The trial is pruned, and the sampler told a constraint that is violated `by` so much: a share
    (0.5: half as much again as there is room for) where one is known, so that it learns which way
    to go.
    """

    def __init__(self, reason: str, by: float = 1.0) -> None:
        super().__init__(reason)
        self.by = by


class RunHalted(UserError):
    """The run stopped because every trial fails in the same way; the message shows how."""
