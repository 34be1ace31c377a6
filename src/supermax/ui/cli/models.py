"""`supermax refit | predict`: train and export the best configuration; predict with it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from supermax._util.attributes import SETTINGS, STORAGE
from supermax._util.importing import gc_paused
from supermax._util.text import clock, counted, ended, metric_title, nearest
from supermax.agents import agent_of
from supermax.errors import UserError
from supermax.results.records import read_record
from supermax.training.data.chosen_columns import chosen_columns
from supermax.training.data.columns import Columns
from supermax.training.data.files import require_readable
from supermax.training.data.inputs.hf_datasets import is_hub
from supermax.training.deploy.exported import (
    Facts,
    check_files,
    check_free,
    check_output,
    check_trust,
    read_facts,
)
from supermax.ui.cli.completing import among
from supermax.ui.cli.opening import AsJson, Storage, Which, print_json, the_study
from supermax.ui.cli.printing import console, file_stem, literal
from supermax.ui.cli.progress import Progress

if TYPE_CHECKING:
    from supermax.training.deploy.predict import Predicted
    from supermax.training.deploy.refit import Refit, Stage
    from supermax.training.deploy.scores import Scores

LOADING = "Loading torch and transformers, which takes some seconds"
CLASS_SCORES = ("macro_f1", "accuracy")
NUMBER_SCORES = ("spearman", "pearson", "rmse", "r2")
LABEL_SCORES = ("macro_f1", "micro_f1", "accuracy")
ENTITY_SCORES = ("entity_f1", "entity_precision", "entity_recall")
SPAN_SCORES = ("exact_match", "token_f1", "null_accuracy", "has_answer_f1")
_ETA_AFTER = 5.0  # seconds of training after which the remaining time is estimated
PRECISIONS = ("auto", "fp32", "bf16", "fp16")


def refit(
    study: Which = None,
    trial: Annotated[
        int | None,
        typer.Option(help="Trial to refit. Default: the winner of the race, else the best."),
    ] = None,
    seeds: Annotated[
        str, typer.Option(help="Number of seeds, such as 3, or the seeds themselves: 1,2,3,")
    ] = "3",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the model. Default: STUDY-model.")
    ] = None,
    adapter: Annotated[
        bool,
        typer.Option("--adapter", help="Export only the LoRA adapter, not merged, for peft."),
    ] = False,
    storage: Storage = STORAGE,
    as_json: AsJson = False,
) -> None:
    """Train the best configuration on training and validation data, and export the model.

    It is trained with several seeds and evaluated once on the test split, which the search never
    uses. The model with the median score is exported. After a kill, the same command resumes the
    refit.

    \b
    Examples:
      supermax refit criteria --seeds 2
      supermax refit criteria --trial 0 --seeds 1, -o first-model
    """
    wanted = _seeds(seeds)
    progress = Progress(shown=not as_json)
    progress.step(LOADING)
    record = read_record(the_study(storage, study))
    record.best() if trial is None else record.trial(trial)  # raises UserError without it
    folder = out or Path(f"{file_stem(record.name)}-model")
    check_free(folder)
    with gc_paused():
        from supermax.search.refit import refit_study, stored_settings

    settings = stored_settings(record.study.user_attrs.get(SETTINGS), record.name)
    with progress:
        chosen, result = refit_study(
            record,
            trial,
            settings,
            seeds=wanted,
            folder=folder,
            adapter=adapter,
            progress=lambda seed, epoch, loss: progress.step(
                f"Seed {seed}: epoch {epoch} is trained, loss {loss:.4f}"
            ),
            stages=_Stages(progress, wanted),
            tell=partial(print, file=sys.stderr, flush=True) if as_json else progress.step,
        )
    raced = record.race.of(chosen.number) if record.race is not None else None
    if as_json:
        found = {name: vars(estimate) for name, estimate in result.metrics.items()}
        facts = {"trial": chosen.number, "folder": str(result.folder), "metrics": found}
        facts["race"] = raced.data() if raced is not None else None
        print_json({**facts, "cautions": list(result.cautions)})
        return
    _print_estimates(result, chosen.labels)
    seeds_used = counted(len(wanted), "seed")
    which = f"The model of seed {result.chosen}, the median," if len(wanted) > 1 else "The model"
    print(f"Trial {chosen.number}, trained with {seeds_used}.\n{which} is in {folder}.")
    if raced is not None:
        print(f"Before the refit, its {record.titles[0]} was {raced}.")
    print(f"Use it: supermax predict {shlex.quote(str(folder))} FILE.csv -o answers.csv")


class _Stages:
    """Callback that prints the stages of a refit, with the remaining time of its training."""

    def __init__(self, progress: Progress, seeds: Sequence[int]) -> None:
        self._progress, self._seeds = progress, seeds
        self._start: tuple[float, float] | None = None  # seconds and epochs when training began

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
            step(f"{seed} ({of}): loading the encoder, tokenizing the texts")
        elif stage.epoch == 0:
            step(f"{seed}: training {counted(stage.epochs, 'epoch')}")
        elif stage.epoch % 1:  # the end of an epoch is printed with its loss
            self._count(stage)

    def _count(self, stage: Stage) -> None:
        done = self._seeds.index(stage.seed or 0) * stage.epochs + stage.epoch
        of, rate = counted(stage.epochs, "epoch"), stage.samples_per_second
        speed = "" if rate is None else f", {rate:,.0f} samples a second"
        left = self._time_left(done, len(self._seeds) * stage.epochs)
        self._progress.count(f"Seed {stage.seed}: {stage.epoch:.1f} of {of}{speed}{left}")

    def _time_left(self, done: float, total: float) -> str:
        if self._start is None:  # a resumed refit has done some epochs before
            self._start = self._progress.elapsed, done
        seconds, epochs = self._progress.elapsed - self._start[0], done - self._start[1]
        if seconds < _ETA_AFTER or epochs <= 0:
            return ""
        return f", about {clock(seconds * (total - done) / epochs)} left"


def _print_estimates(result: Refit, labels: Sequence[str]) -> None:
    mean = f"mean of {len(result.runs)} seeds" if len(result.runs) > 1 else "value"
    table = Table("on the test split", mean, "95 % interval")
    for name, estimate in result.metrics.items():
        table.add_row(metric_title(name, labels), f"{estimate.mean:.4f}", estimate.interval)
    console().print(table)
    for caution in result.cautions:
        print(caution)


def predict(
    model: Annotated[Path, typer.Argument(help="Folder that `refit` exported.")],
    file: Annotated[
        Path, typer.Argument(help="CSV, JSONL or Parquet file, folder, or hub:NAME to predict.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="A .csv or .jsonl file to write.")],
    text: Annotated[str | None, typer.Option(help="Column of the texts.")] = None,
    question: Annotated[str | None, typer.Option(help="Column of the questions.")] = None,
    row_id: Annotated[str | None, typer.Option("--id", help="Column of the ids.")] = None,
    label: Annotated[
        str | None, typer.Option(help="Column of the true labels, for scoring.")
    ] = None,
    answer: Annotated[
        str | None, typer.Option(help="Column of the true answers, for scoring.")
    ] = None,
    with_text: Annotated[
        bool, typer.Option("--with-text", help="Write texts and questions too.")
    ] = False,
    on_bad: Annotated[str, typer.Option(help="On a bad row: stop or skip.")] = "stop",
    encoding: Annotated[
        str | None,
        typer.Option(help="Encoding of the file, such as cp1252. Default: detected."),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            help="auto (that of the model's evaluation if supported), fp32, bf16 or fp16.",
            autocompletion=among(PRECISIONS),
        ),
    ] = PRECISIONS[0],
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    trust_remote_code: Annotated[
        bool,
        typer.Option("--trust-remote-code", help="Run code that the model's encoder comes with."),
    ] = False,
) -> None:
    """Predict the rows of a file with an exported model.

    Columns default to those of the search if the file has them; otherwise they are guessed, as
    by `supermax init`. If the file has labels or answers, the predictions are scored.

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
    if not is_hub(file) and not file.expanduser().is_dir():
        require_readable(file.expanduser())
    facts = read_facts(model.expanduser())
    check_files(model.expanduser(), facts["files"])
    check_trust(facts, trust_remote_code)
    _check_roles(facts, question, label, answer)
    out = out.expanduser()
    check_output(out, file.expanduser())
    if out.exists() and not force:
        raise UserError(f"{out} exists already. Name another with -o, or add --force.")
    progress = Progress()
    progress.step(f"Reading {file}")
    given = {"text": text, "question": question, "id": row_id, "label": label, "answer": answer}
    columns = chosen_columns(file, encoding, given, facts["columns"], asks=facts["asks"])
    with progress:
        progress.step(LOADING)
        with gc_paused():
            from supermax.tasks.objective import local_execution
            from supermax.training.deploy.predict import predict_file
            from supermax.training.steps.execution import Execution

        execution = replace(local_execution(Execution(device="auto")), precision=precision)
        progress.step(f"Predicting on {execution.device}")

        def count_rows(rows: int, of: int) -> None:
            if rows < of:
                progress.count(f"{rows:,} of {of:,} rows predicted")

        done = predict_file(
            model,
            file,
            columns,
            out,
            execution=execution,
            with_text=with_text,
            on_bad="skip" if on_bad == "skip" else "stop",
            encoding=encoding,
            trust_remote_code=trust_remote_code,
            on_progress=count_rows,
        )
    _print_predicted(done, columns)
    _print_scores(done.scores, label)


def _check_roles(
    facts: Facts, question: str | None, label: str | None, answer: str | None
) -> None:
    """Raise UserError if a column is given for which the model has no use."""
    agent = agent_of(facts["config"]["agent"])
    if question is not None and not facts["asks"]:
        raise UserError("The model was trained on texts alone: leave --question out.")
    if answer is not None and not agent.spans:
        raise UserError("The model finds no answers, so none can be scored: leave --answer out.")
    if label is not None and not (agent.named or agent.numbers):
        raise UserError(
            "The model finds answers and no labels: leave --label out, and name the column of "
            "the answers with --answer."
        )


def _print_predicted(done: Predicted, columns: Columns) -> None:
    used = ", ".join(f"{role} from '{name}'" for role, name in columns.mapped().items())
    if columns.labels:
        used += f", labels from {counted(len(columns.labels), 'column')}"
    remarks = f", {done.skipped} bad rows skipped" if done.skipped else ""
    remarks += f", read as {done.detected}; --encoding sets another" if done.detected else ""
    print(f"{counted(done.rows, 'row')} predicted in {done.out} ({used}{remarks}).")
    if done.precision != done.evaluated_in:
        print(
            f"Predictions were computed in {done.precision}, but the model was evaluated in "
            f"{done.evaluated_in}: a score near its threshold may fall on the other side. "
            f"`--precision {done.evaluated_in} --force` computes them as in its evaluation, which "
            f"may take longer on this device.",
            file=sys.stderr,
        )


def _print_scores(scores: Scores, label: str | None) -> None:
    screen = console()
    if found := scores.classes or scores.label_sets:
        of_sets = LABEL_SCORES if scores.label_sets else CLASS_SCORES
        shown = ", ".join(f"{name} {found[name]:.4f}" for name in of_sets)
        known = "known labels" if scores.label_sets else "a label"
        screen.print(f"On the {counted(scores.labelled, 'row')} with {known}: {shown}")
        table = Table("label" if scores.label_sets else "class", "rows", "recall", "F1")
        for each in scores.by_class:
            numbers = (f"{each.rows:,}", f"{each.recall:.4f}", f"{each.f1:.4f}")
            table.add_row(literal(each.label), *numbers)
        screen.print(table)
    if scores.spans:
        shown = ", ".join(f"{name} {scores.spans[name]:.4f}" for name in SPAN_SCORES)
        screen.print(f"On the {counted(scores.answered, 'row')} with a known answer: {shown}")
    if scores.numbers:
        shown = ", ".join(f"{name} {scores.numbers[name]:.4f}" for name in NUMBER_SCORES)
        screen.print(f"On the {counted(scores.measured, 'row')} with a number: {shown}")
    if scores.entities:
        shown = ", ".join(f"{name} {scores.entities[name]:.4f}" for name in ENTITY_SCORES)
        screen.print(f"On the {counted(scores.marked, 'row')} with known entities: {shown}")
    for split, own in scores.splits.items():
        parts = [
            (own.labelled, own.classes, CLASS_SCORES),
            (own.labelled, own.label_sets, LABEL_SCORES),
            (own.answered, own.spans, SPAN_SCORES),
            (own.measured, own.numbers, NUMBER_SCORES),
            (own.marked, own.entities, ENTITY_SCORES),
        ]
        for number, values, names in parts:
            if values:
                shown = ", ".join(f"{name} {values[name]:.4f}" for name in names)
                screen.print(f"  {literal(split)} ({counted(number, 'row')}): {shown}")
    scored = found or scores.spans or scores.numbers or scores.entities
    if scored:
        screen.print("Scores on rows that the model was trained on are too optimistic.")
    if scores.unknown and (scores.labelled or label is not None):
        rows = counted(scores.unknown, "row")
        known = "one" if scores.label_sets else "a class"
        screen.print(f"Not scored: {rows} with a label that is not {known} of the model.")
    elif label is not None and not scored:
        screen.print(f"Not scored: '{literal(label)}' holds nothing that this model predicts.")


def _seeds(text: str) -> list[int]:
    """Return seeds: 1 to N for a single number, or those between commas ("5," is seed 5)."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts if part) or not any(parts):
        raise UserError(
            f"--seeds is a number of seeds, or seeds separated by commas, not {text!r}."
        )
    seeds = [int(part) for part in parts if part]
    if len(parts) == 1:
        seeds = list(range(1, seeds[0] + 1))
    if not seeds or len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds is at least one seed, and each only once, not {text!r}.")
    return seeds
