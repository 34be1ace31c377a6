"""Words of a command line, read before Typer reads them: a study's name, negative numbers. And
Ctrl-C, which Typer would hide."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from supermax.cli.completing import studies
from supermax.errors import UserError
from supermax.words import one_line, printable

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
    """A command that takes its study as an argument and as `--study`; -1 is a number, and no
    option."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._study = self._study_argument()
        if self._study is not None:  # for the help: `parse_args` takes it out of the words
            self.params.append(_study_option())

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        before, after = _parted(args)
        named = None
        if any(_STUDY in param.opts for param in self.params):
            named, others = _study_apart(ctx, before)
            before = before if self._study is None else others
        valued = {o for p in self.params if not getattr(p, "is_flag", True) for o in p.opts}
        options, numbers = _numbers_apart(before, valued)
        words = [*options, *(["--"] if numbers else []), *numbers, *after]
        if named is None or self._study is None:
            return super().parse_args(ctx, words)
        ctx.allow_extra_args = True  # which is answered below
        rest = super().parse_args(ctx, [_PLACE, *words])  # it may begin with a -
        if rest and not ctx.resilient_parsing:
            first, second = self._first_word(ctx, rest), f"{_STUDY} {printable(named)}"
            ctx.fail(f"The study is named twice: {first}, and {second}. Leave one of them out.")
        ctx.params[self._study] = named
        return rest

    def _first_word(self, ctx: Any, rest: list[str]) -> str:
        """Return the argument that stands where the study would."""
        arguments = [p for p in self.params if p.param_type_name == "argument"]
        return printable(ctx.params[arguments[1].name] if len(arguments) > 1 else rest[0])

    def _study_argument(self) -> str | None:
        """The study is the first argument of every command that has it as one."""
        first = next((p for p in self.params if p.param_type_name == "argument"), None)
        return first.name if first is not None and first.name in ("study", "name") else None


def _study_option() -> Any:
    """Make the option as Typer makes those of a function: its classes take other arguments in
    every version."""
    option = next(p for p in get_command(_app).params if _STUDY in p.opts)
    option.expose_value = False
    return option


_app = typer.Typer(add_completion=False)


@_app.command()
def _takes_study(
    study: Annotated[
        str | None,
        typer.Option(
            _STUDY, metavar=_PLACE, help=f"The same as {_PLACE}.", autocompletion=studies
        ),
    ] = None,
) -> None:
    """Stand for any command that takes a study."""


def trial_number(word: str) -> int:
    """Read the number of a trial. Raises UserError for a word that may be a study's name."""
    try:
        return int(word)
    except ValueError:
        shown = one_line(word)
        raise UserError(
            f"'{shown}' is no trial's number. Name a study with {_STUDY} {shown}."
        ) from None


def _parted(args: list[str]) -> tuple[list[str], list[str]]:
    """What stands before `--`, and the rest."""
    at = args.index("--") if "--" in args else len(args)
    return args[:at], args[at:]


def _study_apart(ctx: Any, args: list[str]) -> tuple[str | None, list[str]]:
    """Return the name behind --study, and the other words."""
    if sum(word == _STUDY or word.startswith(f"{_STUDY}=") for word in args) > 1:
        ctx.fail(f"{_STUDY} is given twice.")
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
