"""Truncated texts are counted for each encoder and length, before the first trial."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import optuna
import pytest

from supermax.errors import UserError
from supermax.results.records import read_record
from supermax.results.report.page import page
from supermax.search.search import Search
from supermax.space import Space, load, loads
from supermax.tasks import text_length as module
from supermax.tasks.data_summary import data_summary
from supermax.tasks.preflight import check_questions
from supermax.tasks.truncation import Cut, lengths_in, truncation, truncation_notices
from supermax.training.data.examples import Corpus, Example
from supermax.training.data.splits import split
from supermax.training.models.sources import find
from supermax.training.models.tokenizers import tokenizer_for
from tests.ui.cli.helping import inside, sm

DEMO = load("demo/criteria")
LENGTHS = {"text.max_length": {"choices": [16, 32, 64]}}
SPACE = Space(name="walks", parameters={**DEMO.parameters, **LENGTHS})


def corpus(rows: int) -> Corpus:
    """Return texts of which a third have 6 words, a third 24 and a third 100."""
    words = [f"{i} " + "went home " * ((6, 24, 100)[i % 3] // 2) for i in range(rows)]
    examples = tuple(
        Example(f"r{i}", f"g{i}", text, "", i // 3 % 2) for i, text in enumerate(words)
    )
    return Corpus("walks", ("no", "yes"), examples)


def counted(rows: int, cache: Path, agent: str = "criteria") -> list[Cut]:
    return truncation(agent, split(corpus(rows)), SPACE, [find("tiny")], cache)


def test_every_length_of_the_space_is_counted(tmp_path: Path) -> None:
    data = corpus(90)
    own = tokenizer_for(find("tiny"), [e.text for e in split(data).train.classes], tmp_path)
    tokens = [len(own(e.text)["input_ids"]) for e in data.classes]
    found = counted(90, tmp_path)
    expected = [(n, sum(t > n for t in tokens)) for n in lengths_in(SPACE)]
    assert [(cut.length, cut.texts) for cut in found] == [pair for pair in expected if pair[1]]
    assert {cut.of for cut in found} == {90}
    assert found == counted(90, tmp_path)  # from the cache
    assert "Of 90 texts to classify" in truncation_notices(found)[0]
    assert f"{found[-1].texts} (33%) at {found[-1].length} tokens" in truncation_notices(found)[0]
    assert counted(90, tmp_path, "evidence") == []


def test_windows_that_cannot_advance_name_an_overlap_that_works(tmp_path: Path) -> None:
    def narrowed(stride: int) -> Space:
        fixed = {
            "text.long_texts": {"choices": ["windows"]},
            "text.max_length": {"choices": [64]},
            "text.doc_stride": {"choices": [stride]},
        }
        return Space(name="walks", parameters={**SPACE.parameters, **fixed})

    parts = split(corpus(30))
    with pytest.raises(UserError, match="an overlap of 64 leaves no room") as caught:
        check_questions("criteria", parts, narrowed(64), [find("tiny")], tmp_path)
    said = str(caught.value)
    assert "question" not in said
    advised = re.search(r"--set text.doc_stride=(\d+)\.$", said)
    assert advised is not None
    check_questions("criteria", parts, narrowed(int(advised[1])), [find("tiny")], tmp_path)


def test_texts_that_become_windows_are_counted_and_not_called_truncated(tmp_path: Path) -> None:
    windows = {"text.long_texts": {"choices": ["windows"]}}
    space = Space(name="walks", parameters={**SPACE.parameters, **windows})
    data = split(corpus(90))
    found = truncation("criteria", data, space, [find("tiny")], tmp_path)
    assert [cut.texts for cut in found] == [cut.texts for cut in counted(90, tmp_path)]
    (notice,) = truncation_notices(found)
    assert notice.startswith("Of 90 texts to classify, tiny splits ")
    assert notice.endswith(" at 64 tokens into windows.")
    summary = data_summary("criteria", data, found)
    assert (summary["cut"], summary["cuts"]) == ([], False)
    assert data_summary("criteria", data, counted(90, tmp_path))["cuts"] is True


def test_a_sample_of_many_texts_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SAMPLE", 300)
    monkeypatch.setattr(module, "_LEAST_SAMPLE", 10)
    last = counted(3000, tmp_path)[-1]
    assert last.sampled
    assert abs(last.texts - 1000) < 300
    assert str(last).startswith("about ")


def test_lengths_of_a_space() -> None:
    assert lengths_in(load("demo/criteria")) == [48, 64, 96]
    without = loads("name: s\nparameters: {encoder.name: {choices: [tiny]}}")
    assert lengths_in(without) == [256]


def test_encoders_that_truncate_alike_share_a_line() -> None:
    cuts = [Cut(name, 64, 3, 1000, False) for name in "ab"] + [Cut("c", 64, 500, 1000, True)]
    assert truncation_notices(cuts) == [
        "Of 1,000 texts to classify, c truncates about 500 (50%) at 64 tokens.",
        "Of 1,000 texts to classify, a, b truncate 3 (under 1%) at 64 tokens.",
    ]
    assert truncation_notices([]) == []
    many = [Cut(f"e{i}", 64, 100 - i, 1000, False) for i in range(8)]
    assert truncation_notices(many)[-1] == "3 more encoders truncate fewer."


def test_the_report_repeats_the_notices_about_the_data(tmp_path: Path) -> None:
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/s.db")
    assert 'id="data"' not in page(read_record(study))
    study.set_user_attr("supermax:notices", ["tiny cuts <b>"])
    assert "<li>tiny cuts &lt;b&gt;</li>" in page(read_record(study))


def written(folder: Path) -> None:
    lines = [f'"{e.text}",{["no", "yes"][e.label or 0]}' for e in corpus(60).classes]
    (folder / "walks.csv").write_text("\n".join(["note,label", *lines, "more words,"]) + "\n")


@pytest.mark.usefixtures("quick", "preloaded")
def test_a_search_reports_truncation_before_the_run_and_in_the_report(tmp_path: Path) -> None:
    told_: list[str] = []
    tuned = Search(
        "criteria",
        corpus(60),
        str(tmp_path / "s.db"),
        tmp_path / "cache",
        space=SPACE,
        trials=1,
        limits={"epochs": 1, "patience": None},
        tell=told_.append,
    ).run(progress=False)
    (line,) = [line for line in told_ if "tiny truncates" in line]
    assert "40 (67%) at 16 tokens, 20 (33%) at 32 tokens" in line
    shown = " ".join(re.sub("<[^>]*>", " ", page(read_record(tuned.study))).split())
    assert "40 of 60 texts to classify (67%) are truncated at 16 tokens" in shown
    assert "tiny 16 40 tiny 32 20 tiny 64 20" in shown


def test_plan_counts_them_and_writes_nothing(tmp_path: Path) -> None:
    with inside(tmp_path):
        written(tmp_path)
        said = sm("init", "walks.csv")
        assert "1 row without a label" in said
        before = sorted(tmp_path.iterdir())
        shown = " ".join(sm("plan", "walks.yaml", "--gpu-memory", "8GiB").split())
        assert "Of 60 texts to classify, tiny truncates 20 (33%) at 48 tokens" in shown
        found: Any = json.loads(sm("plan", "walks.yaml", "--gpu-memory", "8GiB", "--json"))
        assert found["truncation"][0]["texts"] == 20
        assert sorted(tmp_path.iterdir()) == before
        (tmp_path / "walks.csv").unlink()
        gone = sm("plan", "walks.yaml", "--gpu-memory", "8GiB")
        assert "are not counted" in " ".join(gone.split())
