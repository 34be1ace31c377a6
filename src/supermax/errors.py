"""Errors named by whose fault they are.

Every message is a plain sentence: what happened, why, what to do next. The command line prints
the message alone; a program can catch the class.
"""

from __future__ import annotations


class SupermaxError(Exception):
    """Everything Supermax raises on purpose."""


class UserError(SupermaxError):
    """Something the caller asked for cannot be done as asked; nothing was changed."""


class EnvironmentFault(SupermaxError):
    """The machine, its disk or the study's storage does not allow the run to go on."""


class RunHalted(UserError):
    """The run stopped because every trial fails in the same way; the message shows how."""
