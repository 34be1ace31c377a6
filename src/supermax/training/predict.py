"""What an exported model says about new texts.

folder ──load_exported()──▶ Loaded ──predict_examples()──▶ Predictions ──▶ CSV or JSONL
"""

from __future__ import annotations

import csv
import io
import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from supermax.errors import Infeasible, UserError
from supermax.files import write_whole
from supermax.training.data.bad_rows import OnBad
from supermax.training.data.columns import Columns
from supermax.training.data.examples import Corpus, Example
from supermax.training.data.tables import read_table
from supermax.training.evaluate import Evaluation, evaluate_model
from supermax.training.export import Loaded, load_exported
from supermax.training.exported import check_output
from supermax.training.looking import Told
from supermax.training.metrics import Span
from supermax.training.prepare import tokenise
from supermax.training.scores import Scores, read_truths, score
from supermax.training.sources import Source
from supermax.training.steps import Execution, avoid_onednn, precision_like
from supermax.training.tokens import check_room
from supermax.words import counted

_AT_ONCE = 4096  # examples whose logits are in memory together
AUTO = "auto"
AS_JUDGED = Execution(precision=AUTO)


@dataclass(frozen=True)
class Prediction:
    """None stands where the model has no head for it."""

    id: str
    label: str | None = None
    probabilities: dict[str, float] | None = None
    spans: tuple[Span, ...] | None = None
    """Characters [start, end); (): no answer."""
    score: float | None = None
    """By how much the best span beats no answer, whether it was given or not."""


@dataclass(frozen=True)
class Predicted:
    """What became of a file."""

    out: Path
    rows: int
    skipped: int
    precision: str
    """Precision of the predictions."""
    judged_in: str
    """Precision in which the model was judged and its threshold fitted."""
    detected: str = ""
    """Encoding of the file, where it was detected and is not UTF-8."""
    scores: Scores = Scores()  # noqa: RUF009 (frozen)
    """Scores on the rows whose labels or answers are mapped and known."""


def predict_examples(
    loaded: Loaded,
    examples: Sequence[Example],
    execution: Execution = AS_JUDGED,
    told: Told | None = None,
) -> list[Prediction]:
    """One prediction for each example, in their order. What is known of them is not looked at.
    The precision "auto" is that in which the model was judged, where the device has it. `told`
    hears how many examples are done, and of how many."""
    execution = _as_judged(loaded, execution)
    _check_questions(loaded, examples)
    _check_room(loaded, examples)
    if execution.threads is not None:
        torch.set_num_threads(execution.threads)
    avoid_onednn(execution)
    loaded.model.to(execution.device)
    result: list[Prediction] = []
    for first in range(0, len(examples), _AT_ONCE):
        some = examples[first : first + _AT_ONCE]
        evaluation = _evaluated(loaded, some, execution, _among(told, first, examples, some))
        result += [_prediction(str(i), e, evaluation, loaded) for i, e in enumerate(some)]
    return result


def _among(
    told: Told | None, first: int, examples: Sequence[Example], some: Sequence[Example]
) -> Told | None:
    """Count sequences of some examples as a share of all examples."""
    if told is None:
        return None
    return lambda done, of: told(first + len(some) * done // of, len(examples))


def _as_judged(loaded: Loaded, execution: Execution) -> Execution:
    if execution.precision != AUTO:
        return execution
    return replace(execution, precision=precision_like(loaded.precision, execution.device))


def _check_questions(loaded: Loaded, examples: Sequence[Example]) -> None:
    odd = [example for example in examples if bool(example.question) != loaded.asks]
    if not odd:
        return
    few = counted(len(odd), "example", "examples")
    if loaded.asks:
        raise UserError(
            f"The model was trained on questions and texts, and {few} came without a question: "
            "map the column of the questions."
        )
    raise UserError(
        f"The model was trained on texts alone, and {few} came with a question: map none."
    )


def _check_room(loaded: Loaded, examples: Sequence[Example]) -> None:
    text = loaded.config.text
    stride = text.doc_stride if loaded.config.agent != "criteria" else 0
    for tokenizer in loaded.tokenizers:
        try:
            check_room(examples, tokenizer, text.max_length, stride)
        except Infeasible as error:
            raise UserError(f"{error}\nShorten the question, or leave the row out.") from None


def _evaluated(
    loaded: Loaded, examples: Sequence[Example], execution: Execution, told: Told | None
) -> Evaluation:
    """Examples are numbered, since ids may stand twice. Nothing of them stays on disk."""
    bare = [Example(str(i), "", e.text, e.question) for i, e in enumerate(examples)]
    sought = tuple(replace(e, spans=()) for e in bare)
    corpus = Corpus("prediction", loaded.label_names, tuple(bare), sought)
    sources = tuple(
        Source(loaded.config.encoder.name, None, encoder.model.config)  # type: ignore[union-attr]
        for encoder in loaded.model.encoders
    )
    with tempfile.TemporaryDirectory(prefix="supermax-") as cache:
        data = tokenise(loaded.config, corpus, sources, loaded.tokenizers, Path(cache))
        model, config, pads = loaded.model, loaded.config, loaded.pads
        return evaluate_model(model, config, data, pads, execution, loaded.threshold, told)


def _prediction(
    number: str, example: Example, evaluation: Evaluation, loaded: Loaded
) -> Prediction:
    label = probabilities = spans = score = None
    if (values := evaluation.probabilities.get(number)) is not None:
        probabilities = dict(zip(loaded.label_names, values, strict=True))
        label = loaded.label_names[values.index(max(values))]
    if (found := evaluation.spans.get(number)) is not None:
        spans, margin = tuple(found), evaluation.margins[number]
        score = margin if math.isfinite(margin) else None
    return Prediction(example.id, label, probabilities, spans, score)


# Files.


def predict_file(
    folder: str | Path,
    path: str | Path,
    columns: Columns,
    out: str | Path,
    *,
    execution: Execution = AS_JUDGED,
    with_text: bool = False,
    on_bad: OnBad = "stop",
    encoding: str | None = None,
    told: Told | None = None,
) -> Predicted:
    """Predict every row of a CSV or JSONL file with an exported model.

    Columns of labels, answers and splits are read after that, to score the predictions. `out` is
    written whole or not at all, as its extension says; texts and questions are in it only with
    `with_text`. `told` hears how many rows are done, and of how many.
    """
    out = Path(out).expanduser()
    check_output(out, Path(path).expanduser())
    asked = replace(columns, label=None, answer=None, answer_start=None, split=None)
    corpus = read_table(path, asked, on_bad=on_bad, encoding=encoding)
    loaded = load_exported(folder)
    execution = _as_judged(loaded, execution)
    predictions = predict_examples(loaded, corpus.classes, execution, told)
    texts = corpus.classes if with_text else None
    if out.suffix.lower() == ".csv":
        text = _as_csv(predictions, texts)
    else:
        text = _as_jsonl(predictions, texts)
    _write(out, text)
    truths = read_truths(path, columns, encoding)
    return Predicted(
        out,
        len(predictions),
        corpus.skipped,
        precision=execution.precision,
        judged_in=loaded.precision,
        detected=corpus.detected,
        scores=score(predictions, corpus.classes, truths, loaded.label_names),
    )


def _as_jsonl(predictions: Sequence[Prediction], texts: Sequence[Example] | None) -> str:
    lines = []
    for i, prediction in enumerate(predictions):
        row: dict[str, Any] = {"id": prediction.id}
        if texts is not None:
            row |= _text(texts[i])
        if prediction.probabilities is not None:
            row |= {"label": prediction.label, "probabilities": prediction.probabilities}
        if prediction.spans is not None:
            row |= {"spans": prediction.spans, "score": prediction.score}
            if texts is not None:
                row["answers"] = [texts[i].text[a:b] for a, b in prediction.spans]
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    return "".join(lines)


def _as_csv(predictions: Sequence[Prediction], texts: Sequence[Example] | None) -> str:
    """Probabilities have a column for each label; `start` and `end` are empty for no answer."""
    rows: list[dict[str, Any]] = []
    for i, prediction in enumerate(predictions):
        row: dict[str, Any] = {"id": prediction.id}
        if texts is not None:
            row |= _text(texts[i])
        if prediction.probabilities is not None:
            row["label"] = prediction.label
            row |= {f"p_{name}": value for name, value in prediction.probabilities.items()}
        if prediction.spans is not None:
            start, end = prediction.spans[0] if prediction.spans else (None, None)
            row |= {"start": start, "end": end, "score": prediction.score}
            if texts is not None:
                row["answer"] = texts[i].text[start:end] if prediction.spans else ""
        rows.append(row)
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _text(example: Example) -> dict[str, str]:
    return {"question": example.question, "text": example.text}


def _write(out: Path, text: str) -> None:
    try:
        write_whole(out, text, shared=True)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}.") from None
