"""Exceptions, named by whose fault they are.

Every message says what happened, why, and what to do next. The command line prints the message
without a traceback; a program can catch the class.
"""

from __future__ import annotations

from supermax._util.text import masked_addresses


class SupermaxError(Exception):
    """Base class of the errors that Supermax raises. Passwords in URLs are masked in its text."""

    def __str__(self) -> str:
        return masked_addresses(super().__str__())


class UserError(SupermaxError):
    """Invalid request of the caller. Nothing was changed."""


class EnvironmentFault(SupermaxError):
    """Fault of the machine, its disk or the study's storage that prevents the run."""


class StorageFault(EnvironmentFault):
    """Fault of the study's storage: a database or its file."""


class Quarantined(EnvironmentFault):
    """Run ended because trials fail on this machine that succeed on others."""


class Infeasible(SupermaxError):
    """Raised by an objective: this configuration cannot be run, and a retry would not help.

    The trial is pruned and reported to the sampler with a constraint violation of `by`: the share
    by which the limit is exceeded (0.5: 1.5 times what fits), where it is known, so that the
    sampler learns in which direction feasible configurations lie.
    """

    def __init__(self, reason: str, by: float = 1.0) -> None:
        super().__init__(reason)
        self.by = by


class CheckpointUnavailable(EnvironmentFault):
    """Raised by `trial.checkpoint_dir`: the checkpoint of an earlier attempt exists, but its URL
    cannot be read now. The trial is retried and does not start from the beginning."""


class RunHalted(UserError):
    """Run stopped because every trial fails in the same way, which the message shows."""
