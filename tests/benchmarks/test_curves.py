"""The analysis of recorded curves, on values that can be counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks import toy  # noqa: F401, sets the path

import curves  # isort: skip
from trainings import EPOCHS, RECORDING, Item, Line, configurations, read_lines  # isort: skip


def test_share_of_the_best_third() -> None:
    truth = np.arange(9.0)
    assert curves.top_third(truth, truth) == 1
    assert curves.top_third(-truth, truth) == 0
    assert curves.top_third(np.array([9, 0, 0, 0, 0, 0, 1, 2, 3.0]), truth) == pytest.approx(2 / 3)


def test_value_is_that_of_the_best_epoch_in_validation() -> None:
    line = Line(Item("irony", "half", 0), [0.1, 0.5, float("nan")], [0.9, 0.3, 0.8], 1.0)
    assert curves.value(line) == 0.5
    assert curves.value(line, "test") == 0.3


def _line(number: int, epochs: int, scores: list[float]) -> Line:
    return Line(Item("irony", "half", number, epochs), scores, scores, 1.0)


def test_prefixes_and_short_schedules_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The epochs of the long schedule rank the configurations as their values, the short ones in
    reverse."""
    monkeypatch.setattr(curves, "_RESAMPLES", 20)
    lines = {}
    for number in range(12):
        full = [0.01 * number + 0.05 * epoch for epoch in range(EPOCHS)]
        for scores in (full, [0.9 - 0.01 * number], [0.1, 0.2, 0.9 - 0.01 * number]):
            lines[Item("irony", "half", number, len(scores))] = _line(number, len(scores), scores)
    lines[Item("irony", "half", 12)] = _line(12, EPOCHS, full)  # without short schedules
    found = curves.guesses(lines, "irony-half")
    assert list(found.numbers) == list(range(12))
    assert list(found.prefix[3][:2]) == [pytest.approx(0.1), pytest.approx(0.11)]
    assert list(found.short[3][:2]) == [pytest.approx(0.9), pytest.approx(0.89)]
    result = curves.compared(found, 3, "test", curves.spearman)
    assert (result.prefix, result.short) == (pytest.approx(1), pytest.approx(-1))
    rows = list(curves.schedule_rows(lines, ["irony-half"]))
    assert rows[-1][0] == "mean of tasks"
    assert rows[1][5:] == ["1.00 [1.00, 1.00]", "-1.00 [-1.00, -1.00]", "+2.00 [2.00, 2.00]"]


def test_best_configurations_of_the_recording() -> None:
    lines, names = read_lines(RECORDING), curves.tuning_tasks()
    assert {name.rsplit("-", 1)[0] for name in names} == {"offensive", "stance-feminist"}
    name = names[0]
    top = curves.best(lines, name, 0.1)
    values = [curves.value(curves.training(lines, name, i)) for i in range(240)]
    assert len(top) == 24
    assert min(values[i] for i in top) >= np.quantile(values, 0.9)
    rows = {row[0]: row[2:] for row in curves.preset_rows(lines, names)}
    rates = [configurations()[i]["optim.lr"] for i in top]
    assert rows["optim.lr"][0] == str(sum(not 1e-5 <= rate <= 2e-4 for rate in rates))
    counts = [list(map(int, row[2:])) for row in list(curves.lr_rows(lines, names))[1:]]
    assert np.array(counts).sum(0).tolist() == [24] * len(names)
    selected = list(curves.selection_rows(lines, names))[1]
    assert float(selected[2]) == pytest.approx(max(values), abs=1e-3)


def test_training_stops_after_epochs_without_improvement() -> None:
    scores = [0.5, 0.4, 0.6, 0.6, 0.5, 0.9]
    assert curves.stopped_early(scores, 1) == (2, 0.5)
    assert curves.stopped_early(scores, 2) == (5, 0.6)
    assert curves.stopped_early(scores, 3) == (6, 0.9)


def test_batches_have_all_of_the_best_tenth() -> None:
    lines, names = read_lines(RECORDING), curves.tuning_tasks()
    title, *rows = curves.batch_rows(lines, names)
    assert [row[0] for row in rows] == [n for n in (*names, "all tasks") for _ in curves.BATCHES]
    assert sum(int(row[2]) for row in rows[-3:]) == 24 * len(names)
    (first,) = (row for row in rows if row[:2] == [names[0], "16"])
    top = curves.best(lines, names[0], 0.1)
    known = configurations()
    best16 = [i for i in top if known[i]["train.effective_batch"] == 16]
    rates = [known[i]["optim.lr"] for i in best16]
    assert float(first[3]) == pytest.approx(np.exp(np.log(rates).mean()), rel=0.05)
    epochs = [np.argmax(curves.training(lines, names[0], i).validation) + 1 for i in best16]
    assert float(first[4]) == pytest.approx(np.mean(epochs), abs=0.05)
    losses = [[float(cell.split(", ")[1]) for cell in row[5:8]] for row in rows]
    assert all(row == sorted(row, reverse=True) for row in losses), title


def test_parts_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    curves.main(["--parts", "epochs", "rates"])
    printed = capsys.readouterr().out
    assert printed.startswith("\nepochs\ntask")
    assert "\nrates\nlearning rate" in printed


def test_a_winner_is_the_first_within_the_margin() -> None:
    scores = np.array([0.5, 0.7, 0.72, 0.9])
    assert curves.winner_of([0, 1, 2], scores, 0.0) == 2
    assert curves.winner_of([0, 1, 2], scores, 0.03) == 1
    assert curves.winner_of([0, 1, 2], scores, 0.3) == 0
