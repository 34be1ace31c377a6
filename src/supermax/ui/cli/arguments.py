"""Command-line arguments that Typer alone cannot parse: `--study` beside an argument, negative
numbers as arguments, missing arguments and Ctrl-C with a message."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from supermax._util.text import one_line, printable
from supermax.errors import UserError
from supermax.ui.cli.completing import studies

_NEGATIVE = re.compile(r"-\d+")
_STUDY = "--study"
_PLACEHOLDER = "STUDY"  # stands for the study's name while Typer parses the rest


class Interrupted(BaseException):
    """Ctrl-C in a command."""


class Root(TyperGroup):
    """Command group that lets Ctrl-C through to `main`."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(*interrupt.args) from None  # Typer would exit without a message


class Command(TyperCommand):
    """Command that takes its study as an argument or as `--study`, and reads -1 as a number
    rather than as an option."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._study = self._study_argument()
        if self._study is not None:  # for --help only: `parse_args` removes it before Typer
            self.params.append(_study_option())

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        before, after = _split_at_double_dash(args)
        study = None
        if any(_STUDY in param.opts for param in self.params):
            study, others = _extract_study(ctx, before)
            before = before if self._study is None else others
        valued = {o for p in self.params if not getattr(p, "is_flag", True) for o in p.opts}
        options, numbers = _extract_numbers(before, valued)
        words = [*options, *(["--"] if numbers else []), *numbers, *after]
        if study is None or self._study is None:
            return self._parse(ctx, words)
        ctx.allow_extra_args = True  # reported below, with a better message
        # A placeholder, because a name that begins with - would be parsed as an option.
        rest = self._parse(ctx, [_PLACEHOLDER, *words])
        if rest and not ctx.resilient_parsing:
            first, second = self._second_study(ctx, rest), f"{_STUDY} {printable(study)}"
            ctx.fail(f"The study is named twice: {first}, and {second}. Leave one of them out.")
        ctx.params[self._study] = study
        return rest

    def _parse(self, ctx: typer.Context, words: list[str]) -> list[str]:
        """Parse the words. A missing argument is reported with its help: Typer names it only."""
        try:
            return super().parse_args(ctx, words)
        except typer.BadParameter as error:
            wanted = (getattr(error.param, "help", None) or "").partition(". ")[0].rstrip(".")
            if error.message or not wanted:  # an invalid value, or no help
                raise
            given = wanted if wanted[1:2].isupper() else wanted[0].lower() + wanted[1:]
            ctx.fail(f"{error.format_message().rstrip('.')}: {given}.")

    def _second_study(self, ctx: Any, rest: list[str]) -> str:
        """Return the argument at the position of the study."""
        arguments = [p for p in self.params if p.param_type_name == "argument"]
        return printable(ctx.params[arguments[1].name] if len(arguments) > 1 else rest[0])

    def _study_argument(self) -> str | None:
        """Return the name of the command's study argument, which is always its first argument;
        None where it takes none."""
        first = next((p for p in self.params if p.param_type_name == "argument"), None)
        return first.name if first is not None and first.name in ("study", "name") else None


def _study_option() -> Any:
    """Return the `--study` option of a throwaway command. Typer's option classes change their
    arguments between versions, so they are not constructed directly."""
    option = next(p for p in get_command(_option_source).params if _STUDY in p.opts)
    option.expose_value = False
    return option


_option_source = typer.Typer(add_completion=False)


@_option_source.command()
def _command_with_study(
    study: Annotated[
        str | None,
        typer.Option(
            _STUDY,
            metavar=_PLACEHOLDER,
            help=f"The same as {_PLACEHOLDER}.",
            autocompletion=studies,
        ),
    ] = None,
) -> None:
    """Declare the option, for `_study_option`."""


def trial_number(word: str) -> int:
    """Return the number of a trial. Raises UserError for anything else, such as a study's
    name."""
    try:
        return int(word)
    except ValueError:
        shown = one_line(word)
        raise UserError(
            f"'{shown}' is not a trial number. Name a study with {_STUDY} {shown}."
        ) from None


def _split_at_double_dash(args: list[str]) -> tuple[list[str], list[str]]:
    """Return the words before `--`, and `--` with all after it."""
    at = args.index("--") if "--" in args else len(args)
    return args[:at], args[at:]


def _extract_study(ctx: Any, args: list[str]) -> tuple[str | None, list[str]]:
    """Return the value of --study (None without one), and the other words."""
    if sum(word == _STUDY or word.startswith(f"{_STUDY}=") for word in args) > 1:
        ctx.fail(f"{_STUDY} is given twice.")
    for at, word in enumerate(args):
        if word.startswith(f"{_STUDY}="):
            return word.partition("=")[2], [*args[:at], *args[at + 1 :]]
        if word == _STUDY and at + 1 < len(args) and not args[at + 1].startswith("-"):
            return args[at + 1], [*args[:at], *args[at + 2 :]]
        if word == _STUDY and not ctx.resilient_parsing:  # set during shell completion
            ctx.fail(f"{_STUDY} needs a name: {_STUDY} NAME, or {_STUDY}=-NAME for a leading -.")
    return None, args


def _extract_numbers(args: list[str], valued: set[str]) -> tuple[list[str], list[str]]:
    """Return the other words, and the negative numbers that are not the value of an option.

    `valued` are the options that take a value.
    """
    rest: list[str] = []
    numbers: list[str] = []
    for before, word in zip(["", *args], args, strict=False):
        is_argument = _NEGATIVE.fullmatch(word) and before not in valued
        (numbers if is_argument else rest).append(word)
    return rest, numbers
