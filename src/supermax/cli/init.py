"""`supermax init`: a file of settings to begin with."""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from supermax.cli.printing import file_stem
from supermax.errors import UserError
from supermax.naming import AGENTS, MINILM, is_untrained
from supermax.settings.resolving import fitting_preset
from supermax.settings.writing import written
from supermax.space.presets import preset
from supermax.training.data.files import UTF8, stem_of
from supermax.training.data.guessing import Guessed, guess_file
from supermax.training.data.redsm5 import is_redsm5, not_redsm5
from supermax.training.words import is_class_name
from supermax.words import counted, ended, nearest, printable

MODELS = "SUPERMAX_MODELS"


def init(
    target: Annotated[
        str,
        typer.Argument(help="An agent, your own CSV or JSONL file, or a folder of ReDSM5."),
    ] = "criteria",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Default: TARGET.yaml, here.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="Instead of the one that fits the columns.")
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(help="Encoding of the file, such as cp1252. Default: detected."),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            envvar=MODELS, help="Encoders, with commas. Default: minilm where it is installed."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file.")] = False,
) -> None:
    """Write a commented YAML file for an agent, a table of your own, or a folder of ReDSM5.

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
        names = _names(models)
        size = _size(agent or target, names)
        text = written(agent or target, models=names, head=_HEAD, size=size)
        _write(place, text, force=force)
    elif Path(target).expanduser().is_dir():
        folder = Path(target).expanduser()
        place = out or Path(f"{_name(folder.resolve())}.yaml")
        names = _names(models) or encoders_here()
        _write(place, _for_folder(folder, place, agent or "criteria", names), force=force)
    else:
        path = _table(target)
        place = out or settings_path(path)
        names = _names(models) or encoders_here()
        for line in write_settings(
            path, place, names, agent=agent, encoding=encoding, force=force
        ):
            print(line)
    print(f"Written to {place}. Look through it, then: supermax tune {shlex.quote(str(place))}")


def settings_path(path: Path) -> Path:
    """Return the default path of a table's settings."""
    return Path(f"{stem_of(path)}.yaml")


def write_settings(
    path: Path,
    place: Path,
    models: Sequence[str] = (),
    *,
    agent: str | None = None,
    encoding: str | None = None,
    force: bool = False,
) -> list[str]:
    """Write settings for a table and these encoders; return what was guessed, in words."""
    guessed = guess_file(path, encoding)
    text, said = _for_table(path, place, guessed, agent or guessed.agent, models, encoding)
    _write(place, text, force=force)
    return [printable(line) for line in said]


_HEAD = """What Supermax is to search. `supermax tune FILE` runs it, and goes on where it stopped.
Paths are meant from where this file is."""


def encoders_here() -> list[str]:
    """Return the encoders for a new file: those of the environment, else what is installed."""
    if names := _names(os.environ.get(MODELS)):
        return names
    return ["minilm"] if importlib.util.find_spec(MINILM) is not None else []


def _names(models: str | None) -> list[str]:
    return [name.strip() for name in (models or "").split(",") if name.strip()]


def _size(agent: str, models: Sequence[str]) -> dict[str, Any]:
    """The preset that follows from the encoders, and how far it goes."""
    name = fitting_preset(models)[0]
    size = preset(agent, name)
    return {
        "preset": name,
        "trials": size.trials,
        "epochs": size.epochs,
        "patience": size.patience,
    }


def _table(target: str) -> Path:
    path = Path(target).expanduser()
    if not path.exists() and not path.suffix:
        raise UserError(
            ended(f"There is no agent and no file {target!r}{nearest(target, AGENTS)}")
        )
    return path


def _for_folder(folder: Path, place: Path, agent: str, models: Sequence[str]) -> str:
    if not is_redsm5(folder):
        raise UserError(not_redsm5(folder))
    data = {"path": _from(place, folder)}
    size = _size(agent, models)
    return written(
        agent, name=_name(folder.resolve()), models=models, data=data, head=_HEAD, size=size
    )


def _for_table(
    path: Path,
    place: Path,
    guessed: Guessed,
    agent: str,
    models: Sequence[str],
    encoding: str | None,
) -> tuple[str, list[str]]:
    columns = {guess.role: guess.column for guess in guessed.columns}
    why = {f"data.columns.{guess.role}": guess.why for guess in guessed.columns}
    data = {"path": _from(place, path), "columns": columns}
    if encoding is not None or guessed.encoding != UTF8:
        data["encoding"] = encoding or guessed.encoding
        why["data.encoding"] = "--encoding" if encoding else "detected"
    if guessed.labels and all(map(is_class_name, guessed.labels)):
        data["labels"] = list(guessed.labels)
        why["data.labels"] = "the classes, in their order"
    said = [f"{path.name}, which is taken to hold:"]
    said += [f"  {guess.role:<13}{guess.column}  ({guess.why})" for guess in guessed.columns]
    if guessed.unused:
        said.append(f"  not used     {', '.join(guessed.unused)}")
    said += [f"  agent        {agent}"]
    said += [f"  encoder      {', '.join(models) or 'tiny'}{_about(models)}"]
    if guessed.encoding != UTF8:
        said += [f"  encoding     {guessed.encoding}  (--encoding sets another)"]
    if guessed.unlabelled:
        rows = counted(guessed.unlabelled, "row")
        said.append(
            f"{rows} without a label: `tune` leaves such rows out, `predict` answers them."
        )
    said += [f"The column '{column}' {reason}." for column, reason in guessed.unfit]
    said += guessed.remarks
    if not guessed.role("label") and not guessed.role("answer") and not guessed.unfit:
        said.append(
            f"No column looks like labels or answers, without which nothing can be learnt: set "
            f"data.columns.label in {place}."
        )
    text = written(
        agent,
        name=_name(path),
        models=models,
        data=data,
        head=_HEAD,
        notes=why,
        size=_size(agent, models),
    )
    return text, said


def _about(models: Sequence[str]) -> str:
    if any(not is_untrained(name) for name in models):
        return ""
    return "  (not pretrained: name one that is with --models, or pip install 'supermax[minilm]')"


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
