"""HTML sections on the quality of the best configuration and on the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from supermax._util.text import counted
from supermax.agents.agent import CLASSES, TARGETS, Target
from supermax.results.intervals import interval
from supermax.results.report.collect import ReportFacts
from supermax.results.report.html import Html, join, tag
from supermax.results.report.noted import PARTS, Baselines, DataNote, PredictionCounts, RefitNote
from supermax.results.report.sections import html_table, pairs
from supermax.results.report.text import clean_text, fixed

SHADES = 5
"""Colour steps of a confusion matrix: classes s1 to s5 of page.css."""
ABBREVIATED = {
    "auroc": "auroc: area under the ROC curve",
    "auprc": "auprc: area under the precision-recall curve",
    "mcc": "mcc: Matthews correlation coefficient",
    "ece": "ece: expected calibration error, lower is better",
}
Estimate = tuple[float, float | None, float | None]
Compared = tuple[str, str, str, Estimate | None]
"""Model, split, value, and its confidence interval (None if unknown)."""


def comparison(facts: ReportFacts) -> Html:
    """Return the best value beside the baselines, on the validation split and, after a refit, on
    the test split."""
    if not facts.top or not facts.metric:
        return Html("")
    best, refit = facts.top[0], facts.refit
    validation = facts.baselines.trivial or facts.baselines.tfidf
    if not validation and refit is None:
        return Html("")
    value = best.values[0] if best.values else None
    bounds = None
    if value is not None and _independent(facts.data):
        bounds = interval(facts.counts.confusion, facts.metric, value)
    split = f"validation{_rows(facts.data, 'validation')}"
    found: Estimate | None = None if bounds is None or value is None else (value, *bounds)
    raced = facts.race is not None and facts.race.winner == best.number
    which = "winner of the race; its value in the search" if raced else "the best of the search"
    rows: list[Compared] = [(f"trial {best.number}, {which}", split, fixed(value), found)]
    rows += _compared(split, facts, facts.baselines)
    notes: list[str | None] = [
        *_baseline_warning(facts, value),
        _split_of_baselines(facts),
        "The search selected the best trial by its validation value, so that value is optimistic.",
        "Its interval is a bootstrap over rows." if found else None,
    ]
    if refit is None:
        notes += [
            tag("code", "supermax refit"),
            "trains it again with several seeds and evaluates it on the test split, which was "
            "not used for selection.",
        ]
    else:
        rows += _refitted(facts, refit)
        notes += [
            "The test split was not used for selection. Intervals there are a bootstrap over "
            + ("groups of examples and seeds." if refit.seeds > 1 else "groups of examples."),
            "One seed does not show how results vary between seeds." if refit.seeds == 1 else None,
            *_trained(refit),
            *refit.cautions,
        ]
    notes += _sampled(facts.baselines)
    head = ["model", "split", facts.objectives[0][0]]
    known = any(bounds for *_, bounds in rows)
    return join(
        html_table(
            [*head, "95% interval"] if known else head,
            [_row((*row[:3], *([_interval(row[3])] if known else ())), wraps=2) for row in rows],
        ),
        tag("p", join(*_spaced(notes)), class_="quiet note"),
        refit_metrics(facts),
    )


def selection(facts: ReportFacts) -> Html | None:
    """Return how much of the best value is likely luck, and when more trials hardly helped."""
    if not facts.selection:
        return None
    return tag("p", clean_text(" ".join(facts.selection)))


def _independent(data: DataNote | None) -> bool:
    """Return whether each validation row is a group by itself, so that rows can be resampled."""
    return data is not None and data.groups["validation"] == data.rows["validation"]


def _spaced(parts: Sequence[str | None]) -> list[str]:
    sentences = [part for part in parts if part is not None]
    return [piece for sentence in sentences for piece in (sentence, " ")][:-1]


def _refitted(facts: ReportFacts, refit: RefitNote) -> list[Compared]:
    split = f"test, n={refit.rows:,}" if refit.rows else "test"
    found = refit.metrics.get(facts.metric)
    rows: list[Compared] = []
    if found is not None:
        mean = ", mean" if refit.seeds > 1 else ""
        name = f"trial {refit.trial}, refit with {counted(refit.seeds, 'seed')}{mean}"
        rows.append((name, split, fixed(found[0]), found))
    return rows + _compared(split, facts, refit.baselines)


def _trained(refit: RefitNote) -> list[str]:
    if not refit.learnt_from:
        return []
    where = f" The model is in {refit.folder}." if refit.folder else ""
    epochs = counted(refit.epochs, "epoch")
    return [f"The refit was trained on {refit.learnt_from:,} rows for {epochs}.{where}"]


def _rows(data: DataNote | None, part: str) -> str:
    return f", n={data.rows[part]:,}" if data is not None and data.rows[part] else ""


def _named(facts: ReportFacts, known: Baselines) -> list[tuple[str, float]]:
    """Return name and value of each baseline that has one."""
    targets = _targets(facts.data)
    fitted = ", ".join(target.fitted for target in targets)
    simplest = ", ".join(target.trivial for target in targets)
    values = ((fitted, known.tfidf), (f"trivial: {simplest}", known.trivial))
    return [(name, found[facts.metric]) for name, found in values if facts.metric in found]


def _targets(data: DataNote | None) -> list[Target]:
    """Return the targets that the data have; classes if the data are unknown."""
    if data is None:
        return [CLASSES]
    kinds = {
        "classes": data.classes and not data.sets,
        "label_sets": data.sets,
        "spans": data.spans,
        "numbers": data.numbers,
        "entities": data.entities,
    }
    return [target for target in TARGETS if kinds[target.kind]]


def _compared(split: str, facts: ReportFacts, known: Baselines) -> list[Compared]:
    return [(name, split, fixed(value), None) for name, value in _named(facts, known)]


def _baseline_warning(facts: ReportFacts, value: float | None) -> list[str]:
    """Return a sentence if a baseline is at least as good as the best trial."""
    sign = 1 if facts.objectives[0][1] == "maximize" else -1
    above = [
        name
        for name, other in _named(facts, facts.baselines)
        if value is not None and sign * other >= sign * value
    ]
    if not above:
        return []
    return [f"The best trial is no better than {' and '.join(above)} on the validation split."]


def _split_of_baselines(facts: ReportFacts) -> str | None:
    """Return a sentence if the race was over other rows than the baselines are evaluated on."""
    if facts.race is None or facts.race.unit != "fold" or not _named(facts, facts.baselines):
        return None
    return (
        "The baselines are of the validation split alone: compare them with the value in the "
        "search, not with the mean over folds."
    )


def _sampled(known: Baselines) -> list[str]:
    rows, of = known.learnt_from
    return [f"TF-IDF was fitted on {rows:,} of {of:,} rows."] if 0 < rows < of else []


def _interval(found: Estimate | None) -> str:
    if found is None:
        return ""
    _, low, high = found
    return "–" if low is None or high is None else f"{fixed(low)} to {fixed(high)}"


def _row(cells: Sequence[str], wraps: int = 1) -> Html:
    """Return a row of `wraps` names, which may wrap, and numbers, which may not."""
    return tag(
        "tr",
        *(tag("td", cell, class_=None if i < wraps else "n") for i, cell in enumerate(cells)),
    )


def refit_metrics(facts: ReportFacts) -> Html | None:
    """Return a table of every metric of the refit; None without one."""
    if facts.refit is None:
        return None
    rows = [
        _row((facts.title(name), fixed(found[0]), _interval(found)))
        for name, found in facts.refit.metrics.items()
    ]
    return tag(
        "details",
        tag("summary", "All metrics of the refit on the test split"),
        html_table(["metric", "mean", "95% interval"], rows),
        _explained(facts.refit.metrics),
    )


def _explained(metrics: Iterable[str]) -> Html | None:
    sentences = [f"{ABBREVIATED[name]}." for name in metrics if name in ABBREVIATED]
    return tag("p", " ".join(sentences), class_="quiet note") if sentences else None


def predictions(facts: ReportFacts) -> Html:
    """Return the confusion matrix and the outcomes of span examples: of the refit, else of the
    best trial."""
    refit: RefitNote | None = facts.refit
    if refit is not None and (refit.counts.confusion or refit.counts.spans):
        median = " (median of its seeds)" if refit.seeds > 1 else ""
        which = f"the refit of trial {refit.trial}{median} on the test split"
        return _predictions(refit.counts, which)
    if not facts.top:
        return Html("")
    return _predictions(facts.counts, f"trial {facts.top[0].number} on the validation split")


def _predictions(counts: PredictionCounts, which: str) -> Html:
    parts = []
    if counts.confusion:
        parts.append(
            tag(
                "div",
                tag(
                    "p",
                    f"Confusion matrix of {which}: rows by true and predicted class. Darker cells "
                    f"are a larger share of their true class.",
                    class_="quiet",
                ),
                _matrix(counts),
            )
        )
    if counts.spans:
        total = sum(n for _, n in counts.spans)
        rows = [(title, f"{n:,} ({n / total:.0%})") for title, n in counts.spans]
        parts.append(
            tag("div", tag("p", f"Span examples of {which}.", class_="quiet"), pairs(rows))
        )
    return join(*parts) if parts else Html("")


def _matrix(counts: PredictionCounts) -> Html:
    head = ["true ↓ predicted →", *counts.labels, "all", "recall"]
    rows = []
    for i, (label, row) in enumerate(zip(counts.labels, counts.confusion, strict=True)):
        total = sum(row)
        cells = [
            tag("td", f"{n:,}", class_=f"n s{round(SHADES * n / total) if total else 0}")
            for n in row
        ]
        cells += [tag("td", cell, class_="n") for cell in (f"{total:,}", _share(row[i], total))]
        rows.append(tag("tr", tag("th", label, scope="row"), *cells))
    predicted = [sum(column) for column in zip(*counts.confusion, strict=True)]
    shares = [_share(counts.confusion[i][i], n) for i, n in enumerate(predicted)]
    cells = [tag("td", cell, class_="n") for cell in (*shares, "", "")]
    rows.append(tag("tr", tag("th", "precision", scope="row"), *cells))
    return html_table(head, rows, class_="matrix")


def _share(part: int, of: int) -> str:
    return f"{part / of:.0%}" if of else "–"


def data(facts: ReportFacts) -> Html:
    """Return sizes, classes and lengths of the data, and the notices of the search about it."""
    notices = tag("ul", *(tag("li", line) for line in facts.notices)) if facts.notices else None
    note = facts.data
    if note is None:
        return notices or Html("")
    return join(
        tag("div", tag("div", _sizes(note)), tag("div", _lengths(note)), class_="two"), notices
    )


def _sizes(note: DataNote) -> Html:
    total = {part: max(note.rows[part], 1) for part in PARTS}
    rows = [_row(("rows", *(f"{note.rows[part]:,}" for part in PARTS)))]
    if any(note.groups[part] != note.rows[part] for part in PARTS):
        groups = [f"{note.groups[part]:,}" for part in PARTS]
        rows.append(_row(("groups, never divided between splits", *groups)))
    rows += [
        _row((name, *(f"{n:,} ({n / total[p]:.0%})" for n, p in zip(counts, PARTS, strict=True))))
        for name, counts in (*note.classes, *note.spans)
    ]
    rows += [
        _row((name, *("–" if value is None else f"{value:.4g}" for value in values)))
        for name, values in note.numbers
    ]
    rows += [
        _row((f"entities: {name}", *(f"{n:,}" for n in counts))) for name, counts in note.entities
    ]
    return html_table(["", *PARTS], rows)


def _lengths(note: DataNote) -> Html:
    rows = [_row((unit, *(f"{n:,}" for n in values))) for unit, values in note.lengths]
    return join(
        html_table([f"{counted(note.texts, 'text')}, in", "median", "95%", "longest"], rows),
        tag("p", _truncation(note), class_="quiet note"),
        _truncation_table(note),
    )


def _truncation_table(note: DataNote) -> Html | None:
    if len(note.cuts) < 2:
        return None
    rows = [
        _row((cut.encoder, f"{cut.length:,}", f"{'about ' * cut.sampled}{cut.texts:,}"))
        for cut in note.cuts
    ]
    return tag(
        "details",
        tag("summary", "Truncated texts by encoder and length"),
        html_table(["encoder", "tokens", f"texts of {note.cuts[0].of:,}"], rows),
    )


def _truncation(note: DataNote) -> str:
    if not note.may_cut:
        return "No text is truncated: long ones are split into windows."
    if not note.cuts:
        return "No text is truncated at the lengths of this search."
    most = max(note.cuts, key=lambda cut: cut.texts)
    about = "About " if most.sampled else ""
    share = f"{most.texts / max(most.of, 1):.0%}" if 100 * most.texts >= most.of else "under 1%"
    return (
        f"{about}{most.texts:,} of {most.of:,} texts to classify ({share}) are truncated at "
        f"{most.length} tokens, the most of any encoder and length of this search."
    )
