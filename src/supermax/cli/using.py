"""`supermax refit | predict | replay`: what a study found, put to use or run again."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, cast

import typer
from rich.table import Table

from supermax.cli.completing import among
from supermax.cli.looking import Study
from supermax.cli.opening import AsJson, Storage, Which, print_json, the_study
from supermax.cli.printing import console, file_stem
from supermax.errors import UserError
from supermax.naming import SETTINGS, STORAGE
from supermax.records import read
from supermax.replaying import load_objective
from supermax.replaying import replay as run_again
from supermax.training.data.columns import Columns
from supermax.training.data.guessing import guess_file
from supermax.words import counted, ended, metric_title, nearest

PRECISIONS = ("auto", "fp32", "bf16", "fp16")
_FAILED = 1
_BLOCKING = "CUDA_LAUNCH_BLOCKING"


def refit(
    study: Which = None,
    trial: Annotated[int | None, typer.Option(help="Instead of the best one.")] = None,
    seeds: Annotated[
        str, typer.Option(help="How many to train with, or which: 3, or 1,2,3,")
    ] = "3",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The model's folder; default: STUDY-model.")
    ] = None,
    storage: Storage = STORAGE,
    as_json: AsJson = False,
) -> None:
    """Train the best configuration for good and export it.

    It learns from all that the search learnt from and was judged by, with several seeds, and is
    judged once on the test split, which the search has never seen. The median model is exported.
    A refit that was killed goes on when the same command is given again.

    \b
    Examples:
      supermax refit criteria --seeds 2
      supermax refit criteria --trial 0 --seeds 1, -o first-model
    """
    from supermax import search

    record = read(the_study(storage, study))
    settings = search.remembered(record.study.user_attrs.get(SETTINGS), record.name)
    folder = out or Path(f"{file_stem(record.name)}-model")

    def progress(seed: int, epoch: int, loss: float) -> None:
        if not as_json:
            print(f"seed {seed}: epoch {epoch}, loss {loss:.4f}", flush=True)

    chosen, result = search.refit(
        record,
        trial,
        settings,
        seeds=_seeds(seeds),
        folder=folder,
        progress=progress,
        tell=partial(print, file=sys.stderr, flush=True),
    )
    if as_json:
        found = {name: vars(estimate) for name, estimate in result.metrics.items()}
        facts = {"trial": chosen.number, "folder": str(result.folder), "metrics": found}
        print_json({**facts, "cautions": list(result.cautions)})
        return
    table = Table("on the test split", "mean", "95 % interval")
    for name, estimate in result.metrics.items():
        table.add_row(
            metric_title(name, chosen.labels),
            f"{estimate.mean:.4f}",
            estimate.interval,
        )
    console().print(table)
    for caution in result.cautions:
        print(caution)
    print(
        f"Trial {chosen.number}, trained with {counted(len(result.runs), 'seed')}; that of seed "
        f"{result.chosen} is exported to {folder}. "
        f"Use it: supermax predict {folder} FILE.csv -o answers.csv"
    )


def predict(
    model: Annotated[Path, typer.Argument(help="A folder that refit exported.")],
    file: Annotated[Path, typer.Argument(help="A CSV or JSONL file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A .csv or .jsonl file.")],
    text: Annotated[str | None, typer.Option(help="The column of the texts.")] = None,
    question: Annotated[str | None, typer.Option(help="The column of the questions.")] = None,
    row_id: Annotated[str | None, typer.Option("--id", help="The column of the ids.")] = None,
    with_text: Annotated[
        bool, typer.Option("--with-text", help="Write texts and questions too.")
    ] = False,
    on_bad: Annotated[str, typer.Option(help="What bad rows do: stop or skip.")] = "stop",
    encoding: Annotated[
        str | None, typer.Option(help="Of the file, such as cp1252. Default: detected.")
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            help="auto (as the model was judged, where the device has it), fp32, bf16 or fp16.",
            autocompletion=among(PRECISIONS),
        ),
    ] = PRECISIONS[0],
    force: Annotated[bool, typer.Option("--force", help="Write over a file.")] = False,
) -> None:
    """Ask an exported model about the rows of a file.

    Columns that are not named are guessed, as by `supermax init`. A research tool: it makes no
    diagnosis.

    \b
    Examples:
      supermax predict criteria-model notes.csv -o answers.csv
      supermax predict criteria-model notes.csv -o answers.jsonl --with-text
    """
    from supermax.agents.objective import here
    from supermax.training.export import load_exported
    from supermax.training.predict import predict_file
    from supermax.training.steps import Execution

    if on_bad not in ("stop", "skip"):
        raise UserError(f"--on-bad is stop or skip, not {on_bad!r}.")
    if precision not in PRECISIONS:
        near = nearest(precision, PRECISIONS)
        raise UserError(ended(f"--precision is {', '.join(PRECISIONS)}, not {precision!r}{near}"))
    asks = load_exported(model).asks
    if out.exists() and not force:
        raise UserError(f"{out} is there already. Name another with -o, or add --force.")
    columns = Columns(text=text or "", question=question, id=row_id)
    if text is None or (asks and question is None):
        guessed = guess_file(file, encoding)
        columns = Columns(
            text=text or guessed.role("text") or "text",
            question=(question or guessed.role("question")) if asks else question,
            id=row_id or guessed.role("id"),
        )
    done = predict_file(
        model,
        file,
        columns,
        out,
        execution=replace(here(Execution(device="auto")), precision=precision),
        with_text=with_text,
        on_bad=cast(Literal["stop", "skip"], on_bad),
        encoding=encoding,
    )
    used = ", ".join(f"{role} from '{name}'" for role, name in columns.mapped().items())
    skipped = f", {done.skipped} bad rows skipped" if done.skipped else ""
    skipped += f", read as {done.detected}" if done.detected else ""
    print(f"{done.rows} rows answered in {done.out} ({used}{skipped}).")
    if done.precision != done.judged_in:
        print(
            f"They were computed in {done.precision}. The model was judged in {done.judged_in}: a "
            f"score near its threshold may fall on the other side. `--precision {done.judged_in} "
            f"--force` computes them as it was judged, which may take longer on this device.",
            file=sys.stderr,
        )


def replay(
    trial: Annotated[int, typer.Argument(help="The trial's number.")],
    study: Study = None,
    objective: Annotated[
        str | None,
        typer.Option(help="FILE.py:FUNCTION, for a study that `tune` did not make."),
    ] = None,
    storage: Storage = STORAGE,
) -> None:
    """Run a trial again in the foreground, every launch on a GPU waited for, to the exact line.

    Nothing is written to the study. What it raises is shown whole; the exit code is 1 then.

    \b
    Examples:
      supermax replay 0
      supermax replay 1 --storage study.db --objective program.py:objective
    """
    record = read(the_study(storage, study))
    found = record.trial(trial)
    if not found.params:
        raise UserError(f"Trial {trial} has no parameters: it never got as far as asking for any.")
    if objective:
        run = load_objective(objective)
    else:
        from supermax.search import replayed

        run = replayed(record, found)
    print(f"Trial {trial} of '{record.name}', which was {found.state.lower()}, again:")
    try:
        with _blocking_launches():
            values = run_again(run, found, _say_step)
    except Exception:
        traceback.print_exc()
        raise typer.Exit(_FAILED) from None
    was = f" (it was {found.values})" if found.values else ""
    print(f"It came to {values}{was}." if values else "It pruned itself.")


@contextlib.contextmanager
def _blocking_launches() -> Iterator[None]:
    """CUDA reads it when the first tensor goes to the device, which is later than this."""
    before = os.environ.get(_BLOCKING)
    os.environ[_BLOCKING] = "1"
    try:
        yield
    finally:
        del os.environ[_BLOCKING]
        if before is not None:
            os.environ[_BLOCKING] = before


def _say_step(step: int, value: float) -> None:
    print(f"  step {step}: {value:.6g}", flush=True)


def _seeds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts if part) or not any(parts):
        raise UserError(f"--seeds is a number of seeds, or seeds with commas, not {text!r}.")
    if len(parts) == 1:
        return list(range(1, int(parts[0]) + 1))
    return [int(part) for part in parts if part]
