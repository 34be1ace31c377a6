"""`supermax init`: a file of settings to begin with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from supermax.cli.printing import file_stem
from supermax.errors import UserError
from supermax.naming import AGENTS
from supermax.settings.writing import written
from supermax.space.presets import preset
from supermax.training.data.files import UTF8, stem_of
from supermax.training.data.guessing import Guessed, guess_file
from supermax.training.words import is_name
from supermax.words import counted, ended, nearest


def init(
    target: Annotated[
        str, typer.Argument(help="An agent, or your own CSV or JSONL file.")
    ] = "criteria",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Default: TARGET.yaml, here.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="Instead of the one that fits the columns.")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Of the file, such as cp1252. Default: detected.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file.")] = False,
) -> None:
    """Write a commented YAML file for an agent, or for a table of your own.

    Which column of a table holds what is guessed and shown; look at it before you tune.

    \b
    Examples:
      supermax init criteria
      supermax init notes.csv -o mine.yaml
    """
    if agent is not None and agent not in AGENTS:
        raise UserError(ended(f"There is no agent {agent!r}{nearest(agent, AGENTS)}"))
    if target in AGENTS:
        place = out or Path(f"{target}.yaml")
        text = written(agent or target, head=_HEAD, size=_size(agent or target))
        _write(place, text, force=force)
    else:
        path = _table(target)
        place = out or place_of(path)
        for line in begin(path, place, agent=agent, encoding=encoding, force=force):
            print(line)
    print(f"Written to {place}. Look through it, then: supermax tune {shlex.quote(str(place))}")


def place_of(path: Path) -> Path:
    """Where the settings of a table go unless another place is named."""
    return Path(f"{stem_of(path)}.yaml")


def begin(
    path: Path,
    place: Path,
    *,
    agent: str | None = None,
    encoding: str | None = None,
    force: bool = False,
) -> list[str]:
    """Write settings for a table; returns what was guessed, in words."""
    guessed = guess_file(path, encoding)
    text, said = _for_table(path, place, guessed, agent or guessed.agent)
    _write(place, text, force=force)
    return said


_HEAD = """What Supermax is to search. `supermax tune FILE` runs it, and goes on where it stopped.
Paths are meant from where this file is."""


def _size(agent: str) -> dict[str, int]:
    demo = preset(agent, "demo")
    return {"trials": demo.trials, "epochs": demo.epochs, "patience": demo.patience}


def _table(target: str) -> Path:
    path = Path(target).expanduser()
    if not path.exists() and not path.suffix:
        raise UserError(
            ended(f"There is no agent and no file {target!r}{nearest(target, AGENTS)}")
        )
    return path


def _for_table(path: Path, place: Path, guessed: Guessed, agent: str) -> tuple[str, list[str]]:
    columns = {guess.role: guess.column for guess in guessed.columns}
    why = {f"data.columns.{guess.role}": guess.why for guess in guessed.columns}
    data = {"path": _from(place, path), "columns": columns}
    if guessed.encoding != UTF8:
        data["encoding"] = guessed.encoding
        why["data.encoding"] = "detected"
    if guessed.labels and all(map(is_name, guessed.labels)):
        data["labels"] = list(guessed.labels)
        why["data.labels"] = "the classes, in their order"
    said = [f"{path.name}, which is taken to hold:"]
    said += [f"  {guess.role:<13}{guess.column}  ({guess.why})" for guess in guessed.columns]
    if guessed.unused:
        said.append(f"  not used     {', '.join(guessed.unused)}")
    said += [f"  agent        {agent}"]
    if guessed.encoding != UTF8:
        said += [f"  encoding     {guessed.encoding}  (--encoding sets another)"]
    if guessed.unlabelled:
        rows = counted(guessed.unlabelled, "row")
        said.append(
            f"{rows} without a label: `tune` leaves such rows out, `predict` answers them."
        )
    said += [f"The column '{column}' {reason}." for column, reason in guessed.unfit]
    if not guessed.role("label") and not guessed.role("answer") and not guessed.unfit:
        said.append(
            f"No column looks like labels or answers, without which nothing can be learnt: set "
            f"data.columns.label in {place}."
        )
    text = written(agent, name=_name(path), data=data, head=_HEAD, notes=why, size=_size(agent))
    return text, said


def _name(path: Path) -> str:
    """Of the study: as the file's, in characters that need no quotes."""
    return file_stem(stem_of(path))[:40].strip("-.") or "notes"


def _from(place: Path, path: Path) -> str:
    """The data's path, as it is meant from the settings' folder."""
    folder = place.expanduser().absolute().parent
    target = path.expanduser().absolute()
    return str(target.relative_to(folder) if target.is_relative_to(folder) else target)


def _write(place: Path, text: str, *, force: bool) -> None:
    try:
        with place.expanduser().open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(
            f"{place} is there already. Name another with -o, or write over it with --force."
        ) from None
    except OSError as error:
        raise UserError(f"{place} cannot be written: {error.strerror}.") from None
