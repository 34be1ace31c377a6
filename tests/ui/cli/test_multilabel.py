"""The agent multilabel from a table to predictions, by the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from supermax.training.data.examples import Corpus
from supermax.training.data.synthetic import synthetic_requests
from tests.ui.cli.helping import inside, sm

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick", "preloaded")]
NAMES = ("account", "billing", "delivery", "quality", "praise")


def write(path: Path, corpus: Corpus, *, wide: bool) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["message", *(NAMES if wide else ["topics"])])
        for example in corpus.label_sets:
            own = example.labels or ()
            cells = [str(int(i in own)) for i in range(len(NAMES))]
            joined = [";".join(NAMES[i] for i in own)]
            writer.writerow([example.text, *(cells if wide else joined)])


@pytest.mark.parametrize("wide", [False, True])
def test_a_table_is_searched_refitted_and_predicted(tmp_path: Path, wide: bool) -> None:
    with inside(tmp_path):
        write(tmp_path / "mail.csv", synthetic_requests(200, difficulty=0.2), wide=wide)
        assert "agent        multilabel" in sm("init", "mail.csv")
        tuned = sm("tune", "mail.yaml", "--trials", "2", "--set", "epochs=3", "--no-supervisor")
        assert "200 texts with" in tuned
        assert "without any" in tuned
        assert "Labels are decoded with thresholds" in sm("best")
        assert "f1 of billing" in sm("refit", "mail", "--seeds", "1", "--out", "model")
        said = sm("predict", "model", "mail.csv", "-o", "out.jsonl")
        assert "On the 200 rows with known labels: macro_f1" in said
        assert ("labels from 5 columns" if wide else "label from '") in said
        rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert all(set(row["labels"]) <= set(NAMES) for row in rows)
        assert any(row["labels"] for row in rows)
        sm("report", "-o", "report.html")
        report = (tmp_path / "report.html").read_text()
        assert "trivial: every label" in report
        assert "no label" in report
        assert "labels decoded with" in report
