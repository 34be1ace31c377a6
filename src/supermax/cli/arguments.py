"""How a command's words are read before Typer reads them: two things that people write anyway.
And how Ctrl-C gets past Typer."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

_NEGATIVE = re.compile(r"-\d+")
_STUDY = "--study"
_PLACE = "STUDY"  # stands for the study's name while the rest is read


class Interrupted(BaseException):
    """Ctrl-C in a command."""


class Root(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(*interrupt.args) from None  # Typer would end without a word


class Command(TyperCommand):
    """`--study NAME` also where the study is an argument; -1 is a number, and no option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        before, after = _parted(args)
        if sum(word == _STUDY or word.startswith(f"{_STUDY}=") for word in before) > 1:
            ctx.fail(f"{_STUDY} is given twice.")
        first = None if any(_STUDY in p.opts for p in self.params) else self._study_argument()
        named = None
        if first is not None:
            named, before = _study_apart(ctx, before)
        valued = {o for p in self.params if not getattr(p, "is_flag", True) for o in p.opts}
        options, numbers = _numbers_apart(before, valued)
        words = [*options, *(["--"] if numbers else []), *numbers, *after]
        if named is None:
            return super().parse_args(ctx, words)
        rest = super().parse_args(ctx, [_PLACE, *words])  # it may begin with a -
        ctx.params[first] = named
        return rest

    def _study_argument(self) -> str | None:
        """The study is the first argument of every command that has it as one."""
        first = next((p for p in self.params if p.param_type_name == "argument"), None)
        return first.name if first is not None and first.name in ("study", "name") else None


def _parted(args: list[str]) -> tuple[list[str], list[str]]:
    """What stands before `--`, and the rest."""
    at = args.index("--") if "--" in args else len(args)
    return args[:at], args[at:]


def _study_apart(ctx: Any, args: list[str]) -> tuple[str | None, list[str]]:
    """The name behind --study, and the other words."""
    for at, word in enumerate(args):
        if word.startswith(f"{_STUDY}="):
            return word.partition("=")[2], [*args[:at], *args[at + 1 :]]
        if word == _STUDY and at + 1 < len(args) and not args[at + 1].startswith("-"):
            return args[at + 1], [*args[:at], *args[at + 2 :]]
        if word == _STUDY and not ctx.resilient_parsing:  # which a shell's Tab asks for
            ctx.fail(f"{_STUDY} needs a name: {_STUDY} NAME, or {_STUDY}=-NAME for a leading -.")
    return None, args


def _numbers_apart(args: list[str], valued: set[str]) -> tuple[list[str], list[str]]:
    """Negative numbers that are no option's value."""
    rest: list[str] = []
    numbers: list[str] = []
    for before, word in zip(["", *args], args, strict=False):
        is_argument = _NEGATIVE.fullmatch(word) and before not in valued
        (numbers if is_argument else rest).append(word)
    return rest, numbers
