"""`supermax export`: the best trials of a study as JSON and CSV; a model as an ONNX file."""

from __future__ import annotations

import csv
import io
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from supermax._util.attributes import STORAGE
from supermax._util.files import write_whole
from supermax._util.importing import gc_paused
from supermax._util.text import counted
from supermax.errors import EnvironmentFault, UserError
from supermax.results.records import read_record
from supermax.training.deploy.exported import (
    FACTS,
    ONNX,
    check_trust,
    read_whole_facts,
    window_note,
)
from supermax.ui.cli.inspect import Top, trial_facts
from supermax.ui.cli.opening import Storage, Which, as_json_text, the_study
from supermax.ui.cli.printing import file_stem
from supermax.ui.cli.progress import Progress


def export(
    study: Which = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="A .json or .csv file; default: both. An .onnx file with --onnx."
        ),
    ] = None,
    top: Top = 5,
    storage: Storage = STORAGE,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    onnx: Annotated[
        bool,
        typer.Option("--onnx", help="Convert a model: STUDY is the folder that `refit` exported."),
    ] = False,
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code", help="With --onnx: run code that the encoder comes with."
        ),
    ] = False,
) -> None:
    """Write the best trials, with all their parameters and metrics, as JSON and CSV.

    With --onnx, convert an exported model to an ONNX file, by default onnx/model.onnx in its
    folder. It is written only if its predictions are those of the model.

    \b
    Examples:
      supermax export --top 5
      supermax export criteria -o best.csv
      supermax export criteria-model --onnx
    """
    if onnx:
        _export_onnx(study, out, force, trust_remote_code)
        return
    try:
        found = the_study(storage, study)
    except UserError as error:
        if study is not None and (Path(study).expanduser() / FACTS).is_file():
            raise UserError(
                f"{study} is the folder of a model, and no study. To convert it to ONNX: "
                f"supermax export {shlex.quote(study)} --onnx"
            ) from None
        raise error
    record = read_record(found)
    record.best()  # raises UserError where no trial is complete
    ranked = (record.front() if len(record.directions) > 1 else record.best_first())[:top]
    if out is None:
        stem = file_stem(record.name)
        places = [Path(f"{stem}-best.json"), Path(f"{stem}-best.csv")]
    elif out.suffix.lower() in (".json", ".csv"):
        places = [out.expanduser()]
    else:
        raise UserError(f"{out} ends in neither .json nor .csv. Name it with one of them.")
    if existing := [str(place) for place in places if place.exists() and not force]:
        raise UserError(
            f"{' and '.join(existing)}: exists already. Name another with -o, or add --force."
        )
    for place in places:
        rows = [trial_facts(record, trial) for trial in ranked]
        text = _as_csv(rows) if place.suffix.lower() == ".csv" else as_json_text(rows)
        try:
            write_whole(place, text + "\n", shared=True)
        except OSError as error:
            raise EnvironmentFault(
                f"{place} cannot be written: {error.strerror}. Name another file with -o."
            ) from None
        print(f"{counted(len(ranked), 'trial')} of '{record.name}' written to {place}")


def _export_onnx(
    model: str | None, out: Path | None, force: bool, trust_remote_code: bool
) -> None:
    if model is None:
        raise UserError("Name the folder of the model: supermax export FOLDER --onnx")
    folder = Path(model).expanduser()
    facts = read_whole_facts(folder)
    check_trust(facts, trust_remote_code)
    out = folder / ONNX if out is None else out.expanduser()
    if out.suffix.lower() != ".onnx":
        raise UserError(f"{out} does not end in .onnx. Name it so with -o.")
    if out.exists() and not force:
        raise UserError(f"{out} exists already. Name another with -o, or add --force.")
    with Progress() as progress:
        progress.step("Loading torch and transformers, which takes some seconds")
        with gc_paused():
            from supermax.training.deploy.onnx_export import check_packages, export_onnx
            from supermax.training.deploy.transformers_format import TOLERANCE

        check_packages()
        progress.step("Converting the model, and comparing it, which takes a minute or so")
        done = export_onnx(folder, out, trust_remote_code=trust_remote_code)
    print(
        f"{done.path} is written. Its predictions differ by at most {done.difference:.1e} from "
        f"those of the model ({TOLERANCE:g} would be allowed)."
    )
    if (note := window_note(facts)) is not None:
        print(note)


def _as_csv(rows: list[dict[str, Any]]) -> str:
    """Return CSV with a column for each value, parameter and metric."""
    flat = []
    for row in rows:
        first = ("study", "trial", "state", "best_epoch", "seconds", "steps")
        line = {key: row[key] for key in first}
        for part in ("values", "metrics", "params"):
            line |= {
                (name if part == "values" else f"{part}.{name}"): value
                for name, value in row[part].items()
            }
        flat.append(line)
    file = io.StringIO(newline="")
    columns = list(dict.fromkeys(key for line in flat for key in line))
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return file.getvalue().rstrip("\n")
