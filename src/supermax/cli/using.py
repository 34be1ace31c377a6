"""`supermax refit | predict`: what a study found, put to use."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from supermax.cli.completing import among
from supermax.cli.opening import AsJson, Storage, Which, print_json, the_study
from supermax.cli.printing import console, file_stem, literal
from supermax.cli.progress import Progress
from supermax.errors import UserError
from supermax.importing import gc_paused
from supermax.naming import SETTINGS, STORAGE
from supermax.records import read
from supermax.training.data.columns import Columns
from supermax.training.data.guessing import chosen_columns
from supermax.training.exported import check_output, read_facts
from supermax.words import clock, counted, ended, metric_title, nearest

if TYPE_CHECKING:
    from supermax.training.predict import Predicted
    from supermax.training.refit import Refit, Stage
    from supermax.training.scores import Scores

LOADING = "Loading torch and transformers, which takes some seconds"
CLASS_SCORES = ("macro_f1", "accuracy")
SPAN_SCORES = ("exact_match", "token_f1", "null_accuracy", "has_answer_f1")
_STEADY = 5.0  # seconds of training after which the rest is estimated
PRECISIONS = ("auto", "fp32", "bf16", "fp16")


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
    progress = Progress(shown=not as_json)
    progress.step(LOADING)
    wanted, record = _seeds(seeds), read(the_study(storage, study))
    with gc_paused():
        from supermax import search

    settings = search.remembered(record.study.user_attrs.get(SETTINGS), record.name)
    folder = out or Path(f"{file_stem(record.name)}-model")
    with progress:
        chosen, result = search.refit(
            record,
            trial,
            settings,
            seeds=wanted,
            folder=folder,
            progress=lambda seed, epoch, loss: progress.step(
                f"Seed {seed}: epoch {epoch} is trained, loss {loss:.4f}"
            ),
            stages=_Stages(progress, wanted),
            tell=partial(print, file=sys.stderr, flush=True) if as_json else progress.step,
        )
    if as_json:
        found = {name: vars(estimate) for name, estimate in result.metrics.items()}
        facts = {"trial": chosen.number, "folder": str(result.folder), "metrics": found}
        print_json({**facts, "cautions": list(result.cautions)})
        return
    _print_estimates(result, chosen.labels)
    seeds_used = counted(len(wanted), "seed")
    which = f"The model of seed {result.chosen}, the median," if len(wanted) > 1 else "The model"
    print(f"Trial {chosen.number}, trained with {seeds_used}. {which} is in {folder}.")
    print(f"Use it: supermax predict {shlex.quote(str(folder))} FILE.csv -o answers.csv")


class _Stages:
    """Shows the stages of a refit, with the time that is left of its training."""

    def __init__(self, progress: Progress, seeds: Sequence[int]) -> None:
        self._progress, self._seeds = progress, seeds
        self._first: tuple[float, float] | None = None  # seconds and epochs when training began

    def __call__(self, stage: Stage) -> None:
        step, seed = self._progress.step, f"Seed {stage.seed}"
        if stage.name == "data":
            step("Reading the data that was searched on")
        elif stage.name == "export":
            median = ", the median" if len(self._seeds) > 1 else ""
            step(f"Exporting the model of seed {stage.seed}{median}")
        elif stage.name == "test":
            step(f"{seed}: predicting the test split")
        elif stage.name == "prepare":
            of = f"{self._seeds.index(stage.seed or 0) + 1} of {len(self._seeds)}"
            step(f"{seed} ({of}): loading the encoder, tokenising the texts")
        elif stage.epoch == 0:
            step(f"{seed}: training {counted(stage.epochs, 'epoch')}")
        elif stage.epoch % 1:  # the end of an epoch is printed with its loss
            self._count(stage)

    def _count(self, stage: Stage) -> None:
        done = self._seeds.index(stage.seed or 0) * stage.epochs + stage.epoch
        of, rate = counted(stage.epochs, "epoch"), stage.samples_per_second
        speed = "" if rate is None else f", {rate:,.0f} samples a second"
        left = self._left(done, len(self._seeds) * stage.epochs)
        self._progress.count(f"Seed {stage.seed}: {stage.epoch:.1f} of {of}{speed}{left}")

    def _left(self, done: float, of: float) -> str:
        if self._first is None:  # a refit that goes on has done some of it before
            self._first = self._progress.elapsed, done
        seconds, epochs = self._progress.elapsed - self._first[0], done - self._first[1]
        if seconds < _STEADY or epochs <= 0:
            return ""
        return f", about {clock(seconds * (of - done) / epochs)} left"


def _print_estimates(result: Refit, labels: Sequence[str]) -> None:
    mean = f"mean of {len(result.runs)} seeds" if len(result.runs) > 1 else "value"
    table = Table("on the test split", mean, "95 % interval")
    for name, estimate in result.metrics.items():
        table.add_row(metric_title(name, labels), f"{estimate.mean:.4f}", estimate.interval)
    console().print(table)
    for caution in result.cautions:
        print(caution)


def predict(
    model: Annotated[Path, typer.Argument(help="A folder that refit exported.")],
    file: Annotated[Path, typer.Argument(help="A CSV or JSONL file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A .csv or .jsonl file.")],
    text: Annotated[str | None, typer.Option(help="The column of the texts.")] = None,
    question: Annotated[str | None, typer.Option(help="The column of the questions.")] = None,
    row_id: Annotated[str | None, typer.Option("--id", help="The column of the ids.")] = None,
    label: Annotated[
        str | None, typer.Option(help="The column of the true labels, to score by.")
    ] = None,
    answer: Annotated[
        str | None, typer.Option(help="The column of the true answers, to score by.")
    ] = None,
    with_text: Annotated[
        bool, typer.Option("--with-text", help="Write texts and questions too.")
    ] = False,
    on_bad: Annotated[str, typer.Option(help="What bad rows do: stop or skip.")] = "stop",
    encoding: Annotated[
        str | None,
        typer.Option(help="Encoding of the file, such as cp1252. Default: detected."),
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

    Columns that are not named are those of the search, where the file has them, and are otherwise
    guessed, as by `supermax init`. Where labels or answers are among them, the predictions are
    scored.

    \b
    Examples:
      supermax predict criteria-model notes.csv -o answers.csv
      supermax predict criteria-model notes.csv -o answers.jsonl --with-text
    """
    if on_bad not in ("stop", "skip"):
        raise UserError(f"--on-bad is stop or skip, not {on_bad!r}.")
    if precision not in PRECISIONS:
        near = nearest(precision, PRECISIONS)
        raise UserError(ended(f"--precision is {', '.join(PRECISIONS)}, not {precision!r}{near}"))
    facts = read_facts(model.expanduser())
    out = out.expanduser()
    check_output(out, file.expanduser())
    if out.exists() and not force:
        raise UserError(f"{out} is there already. Name another with -o, or add --force.")
    progress = Progress()
    progress.step(f"Reading {file}")
    given = {"text": text, "question": question, "id": row_id, "label": label, "answer": answer}
    columns = chosen_columns(file, encoding, given, facts["columns"], asks=facts["asks"])
    how = {"with_text": with_text, "on_bad": on_bad, "encoding": encoding}
    with progress:
        done = _predicted(model, file, columns, out, precision, progress, how)
    _print_predicted(done, columns)
    _print_scores(done.scores, label)


def _predicted(
    model: Path,
    file: Path,
    columns: Columns,
    out: Path,
    precision: str,
    progress: Progress,
    how: dict[str, Any],
) -> Predicted:
    progress.step(LOADING)
    with gc_paused():
        from supermax.agents.objective import here
        from supermax.training.predict import predict_file
        from supermax.training.steps import Execution

    execution = replace(here(Execution(device="auto")), precision=precision)
    progress.step(f"Predicting on {execution.device}")

    def told(rows: int, of: int) -> None:
        if rows < of:
            progress.count(f"{rows:,} of {of:,} rows are predicted")

    return predict_file(model, file, columns, out, execution=execution, told=told, **how)


def _print_predicted(done: Predicted, columns: Columns) -> None:
    used = ", ".join(f"{role} from '{name}'" for role, name in columns.mapped().items())
    remarks = f", {done.skipped} bad rows skipped" if done.skipped else ""
    remarks += f", read as {done.detected}; --encoding sets another" if done.detected else ""
    print(f"{counted(done.rows, 'row')} answered in {done.out} ({used}{remarks}).")
    if done.precision != done.judged_in:
        print(
            f"They were computed in {done.precision}. The model was judged in {done.judged_in}: a "
            f"score near its threshold may fall on the other side. `--precision {done.judged_in} "
            f"--force` computes them as it was judged, which may take longer on this device.",
            file=sys.stderr,
        )


def _print_scores(scores: Scores, label: str | None) -> None:
    screen = console()
    if scores.classes:
        shown = ", ".join(f"{name} {scores.classes[name]:.4f}" for name in CLASS_SCORES)
        screen.print(f"On the {counted(scores.labelled, 'row')} with a label: {shown}")
        table = Table("class", "rows", "recall", "F1")
        for each in scores.by_class:
            numbers = (f"{each.rows:,}", f"{each.recall:.4f}", f"{each.f1:.4f}")
            table.add_row(literal(each.label), *numbers)
        screen.print(table)
    if scores.spans:
        shown = ", ".join(f"{name} {scores.spans[name]:.4f}" for name in SPAN_SCORES)
        screen.print(f"On the {counted(scores.answered, 'row')} with a known answer: {shown}")
    for split, own in scores.splits.items():
        found = [(own.labelled, own.classes, CLASS_SCORES), (own.answered, own.spans, SPAN_SCORES)]
        for number, values, names in found:
            if values:
                shown = ", ".join(f"{name} {values[name]:.4f}" for name in names)
                screen.print(f"  {literal(split)} ({counted(number, 'row')}): {shown}")
    if scores.classes or scores.spans:
        screen.print("Scores on rows that the model was trained on are too high.")
    if scores.unknown and (scores.labelled or label is not None):
        rows = counted(scores.unknown, "row")
        screen.print(f"Not scored: {rows} with a label that is no class of the model.")


def _seeds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts if part) or not any(parts):
        raise UserError(f"--seeds is a number of seeds, or seeds with commas, not {text!r}.")
    if len(parts) == 1:
        return list(range(1, int(parts[0]) + 1))
    return [int(part) for part in parts if part]
