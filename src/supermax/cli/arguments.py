"""How a command's words are read before Typer reads them: two things that people write anyway."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

_NEGATIVE = re.compile(r"-\d+")
_STUDY = "--study"


class Command(TyperCommand):
    """`--study NAME` also where the study is an argument; -1 is a number, and no option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        before, after = _parted(args)
        if not any(_STUDY in parameter.opts for parameter in self.params) and self._takes_study():
            before = _study_first(before)
        valued = {o for p in self.params if not getattr(p, "is_flag", True) for o in p.opts}
        options, numbers = _numbers_apart(before, valued)
        return super().parse_args(ctx, [*options, *(["--"] if numbers else []), *numbers, *after])

    def _takes_study(self) -> bool:
        first = next((p for p in self.params if p.param_type_name == "argument"), None)
        return first is not None and first.name in ("study", "name")


def _parted(args: list[str]) -> tuple[list[str], list[str]]:
    """What stands before `--`, and the rest."""
    at = args.index("--") if "--" in args else len(args)
    return args[:at], args[at:]


def _study_first(args: list[str]) -> list[str]:
    """The study is the first argument of every command that has it as one."""
    for at, word in enumerate(args):
        if word.startswith(f"{_STUDY}="):
            return [word.partition("=")[2], *args[:at], *args[at + 1 :]]
        if word == _STUDY and at + 1 < len(args):
            return [args[at + 1], *args[:at], *args[at + 2 :]]
    return args


def _numbers_apart(args: list[str], valued: set[str]) -> tuple[list[str], list[str]]:
    """Negative numbers that are no option's value."""
    rest: list[str] = []
    numbers: list[str] = []
    for before, word in zip(["", *args], args, strict=False):
        is_argument = _NEGATIVE.fullmatch(word) and before not in valued
        (numbers if is_argument else rest).append(word)
    return rest, numbers
