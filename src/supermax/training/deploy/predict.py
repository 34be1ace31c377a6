"""Predictions of an exported model for new texts.

folder ──load_exported()──▶ LoadedModel ──predict_examples()──▶ Prediction ──▶ CSV or JSONL
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from supermax._util.files import write_whole
from supermax._util.scratch import scratch_folder
from supermax._util.text import counted
from supermax.agents import agent_of
from supermax.errors import Infeasible, UserError
from supermax.training.data.bad_rows import OnBad
from supermax.training.data.columns import Columns
from supermax.training.data.entities.tables import read_entities
from supermax.training.data.examples import Corpus, Example
from supermax.training.data.tables import read_table
from supermax.training.data.tokens import check_room
from supermax.training.deploy.export import LoadedModel, load_exported
from supermax.training.deploy.exported import check_output
from supermax.training.deploy.predictions import (
    PredictedEntity,
    Prediction,
    as_csv,
    as_jsonl,
)
from supermax.training.deploy.scores import Scores, read_entity_truths, read_truths, score
from supermax.training.eval.evaluate import Evaluation, evaluate_model
from supermax.training.models.sources import Source
from supermax.training.prepare import tokenize
from supermax.training.steps.execution import Execution, avoid_onednn, precision_like
from supermax.training.steps.inference import OnProgress

_CHUNK = 4096  # examples whose logits are in memory at the same time
AUTO = "auto"
AS_EVALUATED = Execution(precision=AUTO)
"""Execution on the CPU in the precision in which the model was evaluated."""


@dataclass(frozen=True)
class Predicted:
    """Result of predicting a file."""

    out: Path
    rows: int
    skipped: int
    precision: str
    """Precision of the predictions."""
    evaluated_in: str
    """Precision in which the model was evaluated and its threshold fitted."""
    detected: str = ""
    """Encoding of the file, if it was detected and is not UTF-8; else empty."""
    scores: Scores = Scores()  # noqa: RUF009 (frozen)
    """Scores on the rows whose labels or answers are mapped and known."""


def predict_examples(
    loaded: LoadedModel,
    examples: Sequence[Example],
    execution: Execution = AS_EVALUATED,
    on_progress: OnProgress | None = None,
) -> list[Prediction]:
    """Return one prediction for each example, in their order. Labels and spans are ignored.

    The precision "auto" is that in which the model was evaluated, if the device supports it.
    `on_progress` is called with the number of predicted examples and of all examples.
    """
    execution = _resolve_precision(loaded, execution)
    _check_questions(loaded, examples)
    _check_room(loaded, examples)
    if execution.threads is not None:
        torch.set_num_threads(execution.threads)
    avoid_onednn(execution)
    loaded.model.to(execution.device)
    result: list[Prediction] = []
    for first in range(0, len(examples), _CHUNK):
        chunk = examples[first : first + _CHUNK]
        chunk_progress = _chunk_progress(on_progress, first, len(chunk), len(examples))
        evaluation = _evaluate(loaded, chunk, execution, chunk_progress)
        result += [_prediction(str(i), e, evaluation, loaded) for i, e in enumerate(chunk)]
    return result


def _chunk_progress(
    on_progress: OnProgress | None, first: int, count: int, total: int
) -> OnProgress | None:
    """Convert progress in sequences of a chunk to progress in all examples."""
    if on_progress is None:
        return None
    return lambda done, of: on_progress(first + count * done // of, total)


def _resolve_precision(loaded: LoadedModel, execution: Execution) -> Execution:
    if execution.precision != AUTO:
        return execution
    return replace(execution, precision=precision_like(loaded.precision, execution.device))


def _check_questions(loaded: LoadedModel, examples: Sequence[Example]) -> None:
    odd = [example for example in examples if bool(example.question) != loaded.asks]
    if not odd:
        return
    count = counted(len(odd), "example")
    if loaded.asks:
        raise UserError(
            f"The model was trained on questions and texts, but {count} came without a question: "
            "map the column of the questions (--question COLUMN)."
        )
    raise UserError(
        f"The model was trained on texts alone, but {count} came with a question: do not map a "
        "column of questions (leave --question out)."
    )


def _check_room(loaded: LoadedModel, examples: Sequence[Example]) -> None:
    text = loaded.config.text
    windows = agent_of(loaded.config.agent).windows
    stride = text.doc_stride if windows else loaded.config.window_stride or 0
    for tokenizer in loaded.tokenizers:
        try:
            check_room(examples, tokenizer, text.max_length, stride)
        except Infeasible as error:
            raise UserError(f"{error}\nShorten the question, or leave the row out.") from None


def _evaluate(
    loaded: LoadedModel,
    examples: Sequence[Example],
    execution: Execution,
    on_progress: OnProgress | None,
) -> Evaluation:
    """Evaluate the model on unlabelled examples. Their tokens do not stay on disk.

    Ids are replaced by positions, since an id may occur twice.
    """
    classes = [Example(str(i), "", e.text, e.question) for i, e in enumerate(examples)]
    spans = tuple(replace(e, spans=()) for e in classes)
    corpus = Corpus(
        "prediction",
        loaded.label_names,
        tuple(classes),
        spans,
        numbers=tuple(classes),
        label_sets=tuple(classes),
        entities=tuple(
            replace(e, entities=(), words=given.words)
            for e, given in zip(classes, examples, strict=True)
        ),
    )
    sources = tuple(
        Source(loaded.config.encoder.name, None, encoder.model.config)
        for encoder in loaded.model.encoders
    )
    with scratch_folder("predict") as cache:
        data = tokenize(loaded.config, corpus, sources, loaded.tokenizers, cache)
        model, config, pads = loaded.model, loaded.config, loaded.pads
        return evaluate_model(model, config, data, pads, execution, loaded.threshold, on_progress)


def _prediction(
    position: str, example: Example, evaluation: Evaluation, loaded: LoadedModel
) -> Prediction:
    label = labels = probabilities = spans = score = None
    if (values := evaluation.probabilities.get(position)) is not None:
        probabilities = dict(zip(loaded.label_names, values, strict=True))
        label = loaded.label_names[values.index(max(values))]
    if (own := evaluation.label_sets.get(position)) is not None:
        label, labels = None, tuple(loaded.label_names[i] for i in own)
    if (answers := evaluation.spans.get(position)) is not None:
        spans, margin = tuple(answers), evaluation.margins[position]
        score = margin if math.isfinite(margin) else None
    entities = None
    if (found := evaluation.entities.get(position)) is not None:
        entities = tuple(
            PredictedEntity(start, end, loaded.label_names[kind], each.score)
            for each in found
            for start, end, kind in (each.entity,)
        )
    return Prediction(
        example.id,
        label,
        probabilities,
        spans,
        score,
        value=evaluation.numbers.get(position),
        labels=labels,
        entities=entities,
    )


def predict_file(
    folder: str | Path,
    path: str | Path,
    columns: Columns,
    out: str | Path,
    *,
    execution: Execution = AS_EVALUATED,
    with_text: bool = False,
    on_bad: OnBad = "stop",
    encoding: str | None = None,
    trust_remote_code: bool = False,
    on_progress: OnProgress | None = None,
) -> Predicted:
    """Predict every row of a CSV or JSONL file with an exported model.

    Columns of labels, answers and splits are read only afterwards, to score the predictions. `out`
    is written atomically, as CSV or JSONL by its extension; it holds texts and questions only
    with `with_text`. `on_progress` is called with the number of predicted rows and of all rows.
    `trust_remote_code` permits the code that comes with some encoders.
    """
    out = Path(out).expanduser()
    check_output(out, Path(path).expanduser())
    inputs = Columns(columns.text, columns.question, id=columns.id, group=columns.group)
    loaded = load_exported(folder, trust_remote_code=trust_remote_code)
    agent = agent_of(loaded.config.agent)
    read = read_entities if agent.entities else read_table
    corpus = read(path, inputs, on_bad=on_bad, encoding=encoding)
    examples = corpus.entities if agent.entities else corpus.classes
    execution = _resolve_precision(loaded, execution)
    predictions = predict_examples(loaded, examples, execution, on_progress)
    serialise = as_csv if out.suffix.lower() == ".csv" else as_jsonl
    _write(out, serialise(predictions, examples if with_text else None))
    if agent.entities:
        truths = read_entity_truths(path, columns, encoding)
    else:
        columns = replace(columns, several=agent.label_sets)
        truths = read_truths(path, columns, encoding, loaded.label_names)
    return Predicted(
        out,
        len(predictions),
        corpus.skipped,
        precision=execution.precision,
        evaluated_in=loaded.precision,
        detected=corpus.detected,
        scores=score(predictions, examples, truths, loaded.label_names),
    )


def _write(out: Path, text: str) -> None:
    try:
        write_whole(out, text, shared=True)
    except OSError as error:
        raise UserError(
            f"{out} cannot be written: {error.strerror}. Make room there, or name another "
            "file (-o)."
        ) from None
