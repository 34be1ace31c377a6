"""Report page: self-contained, complete, and every text literal."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import optuna
import pytest

from supermax.errors import EnvironmentFault, UserError
from supermax.results.records import StudyRecord, read_record
from supermax.results.report import page as page_module
from supermax.results.report.page import page
from supermax.results.report.text import clean_text, plot_text, size_cell
from supermax.results.report.writing import write_report
from supermax.space import Space, open_version
from tests.results.report import studies
from tests.results.report.test_figures import ODD
from tests.space.versions import BASE, changed, filled


class Parsed(HTMLParser):
    """Parser that collects the parts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag
        if tag in self.raw:
            self.raw[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in self.raw:
            self.raw[self._open][-1] += data
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


def without_plotly(text: str) -> str:
    return text.replace(page_module._plotly(), "")


def test_the_page_has_all_sections(rich: StudyRecord) -> None:
    parsed = Parsed(page(rich, "study.db", 0.0))
    best = rich.ranking()[0]
    for text in (
        f"Trial {best.number} has the highest macro_f1",
        "deberta-v3-base",
        "compiled, CUDA graphs",
        "signal SIGSEGV",
        "device out of memory",
        "Mend the objective",
        "ValueError: the target 7 is out of bounds",
        "epoch 4: loss 0.377",
        "supermax report criteria -o report.html --storage study.db",
        "made-up 0a1b2c3d4e5f",
        optuna.__version__,
        "1970-01-01",
    ):
        assert text in parsed.text, text
    plots = [a for tag, a in parsed.tags if tag == "script" and "data-plot" in a]
    places = {
        a["id"] for tag, a in parsed.tags if tag == "div" and "plot" in (a.get("class") or "")
    }
    assert {f"plot-{a['data-plot']}" for a in plots} == places
    assert len(plots) >= 15
    ids = [a["id"] for _, a in parsed.tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_nothing_comes_from_elsewhere_and_only_named_scripts_run(rich: StudyRecord) -> None:
    text = page(rich, "study.db", 0.0)
    parsed = Parsed(text)
    for tag, attributes in parsed.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form"}
        assert "src" not in attributes
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("href") or "#").startswith("#")
    assert "http://" not in without_plotly(text)
    assert "https://" not in without_plotly(text)
    (policy,) = [
        a["content"] or ""
        for tag, a in parsed.tags
        if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    code = [
        content
        for content, (_, a) in zip(
            parsed.raw["script"], [t for t in parsed.tags if t[0] == "script"], strict=True
        )
        if a.get("type") != "application/json"
    ]
    assert len(code) == 2
    for content in [*code, parsed.raw["style"][0]]:
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_hostile_texts_are_shown_literally(hostile: StudyRecord) -> None:
    text = page(hostile, "study.db", 0.0)
    parsed = Parsed(text)
    for words in studies.HOSTILE:
        assert words in parsed.text
    assert f"f1 of {studies.HOSTILE[0]}" in parsed.text
    assert "\x1b" not in text
    scripts = [a for tag, a in parsed.tags if tag == "script"]
    assert sum("data-plot" not in a for a in scripts) == 2
    assert not [tag for tag, _ in parsed.tags if tag in {"img", "b"}]
    for content in parsed.raw["script"][:-2]:
        json.loads(content)


def test_no_password_reaches_it(empty: optuna.Study) -> None:
    url = "postgresql://me:s3cr3t@host/db?password=s3cr3t"
    empty.set_user_attr("supermax:experiment", {"data": url, "objectives": ["value"]})
    trial = empty.ask()
    trial.set_user_attr(
        "supermax",
        {"faults": [{"kind": "exception", "culprit": "code", "message": url, "advice": url}]},
    )
    empty.tell(trial, state=optuna.trial.TrialState.FAIL)
    text = page(read_record(empty), url, 0.0)
    assert "s3cr3t" not in text
    assert "postgresql://me:***@host/db" in text


@pytest.mark.parametrize("fill", ODD)
def test_every_study_has_a_page(fill: Any, empty: optuna.Study) -> None:
    fill(empty)
    text = page(read_record(empty), made=0.0)
    assert text.startswith("<!doctype html>")
    assert "empty" in Parsed(text).text


def test_a_study_without_trials_needs_no_script(empty: optuna.Study) -> None:
    text = page(read_record(empty), made=0.0)
    assert "There are no trials yet." in text
    assert "<script" not in text
    assert len(text) < 20_000


def test_the_page_shows_the_space_and_marks_carried_trials(tmp_path: Path) -> None:
    url, space = f"sqlite:///{tmp_path}/s.db", Space(**BASE)
    filled(open_version(space, storage=url, name="s").study, space, 12)
    wider = changed(warmup={"type": "float", "low": 0.0, "high": 0.5})
    study = open_version(wider, storage=url, name="s").study
    parsed = Parsed(page(read_record(study), "s.db", 0.0))
    assert "s@2" in parsed.text
    assert "12 carried over" in parsed.text
    assert "0 to 0.5" in parsed.text
    assert "must hold: small" in parsed.text
    assert "encoder in" in parsed.text
    assert not re.search(r"\w@\[", parsed.text)  # names of branches stay in the storage


def test_the_same_study_gives_the_same_page(rich: StudyRecord, hostile: StudyRecord) -> None:
    again = read_record(hostile.study)
    assert page(hostile, made=1.0) == page(again, made=1.0)
    first, second = page(rich, made=1.0), page(rich, made=2.0)
    assert first != second
    moment = re.compile(r"<time>[^<]*</time>")
    assert moment.sub("", first) == moment.sub("", second)


@pytest.mark.slow
def test_thousands_of_trials_stay_within_bounds() -> None:
    record = studies.rich(studies.agent_study(None, "big"), trials=5000, cells=8)
    before = time.process_time()
    text = page(record, made=0.0)
    assert time.process_time() - before < 30  # 5 s on an idle machine
    assert len(text.encode()) < 8_000_000
    assert re.search(r"Of [\d,]+ complete trials 2,\d+ are shown, evenly spaced", text)
    assert "The best 400 of" in text
    assert "The 300 best of" in text


def test_a_report_is_written_whole_and_replaces_only_a_report(
    empty: optuna.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = read_record(empty)
    target = tmp_path / "report.html"
    assert write_report(record, target) == target
    before = target.read_bytes()
    plain = tmp_path / "plain"
    plain.touch()
    assert target.stat().st_mode == plain.stat().st_mode  # as the umask has it
    plain.unlink()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("supermax.results.report.writing.os.fsync", full)
        with pytest.raises(EnvironmentFault, match="No space left"):
            write_report(record, target)
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    write_report(record, target)
    database = tmp_path / "study.db"
    database.write_bytes(b"SQLite format 3")
    with pytest.raises(UserError, match="is not a report"):
        write_report(record, database)
    assert database.read_bytes() == b"SQLite format 3"
    with pytest.raises(UserError, match="is a folder"):
        write_report(record, tmp_path)
    with pytest.raises(UserError, match="no folder"):
        write_report(record, tmp_path / "nowhere" / "report.html")


def test_without_plotly_the_error_names_the_package_to_install(
    rich: StudyRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(UserError, match=r"pip install 'supermax\[report\]'"):
        page(rich)


def test_texts() -> None:
    assert plot_text("<b>&amp;") == "&lt;b&gt;&amp;amp;"
    assert clean_text("a\x00b\ud800\x1b[31mred") == "a\ufffdb\ufffdred"
    assert clean_text("mysql://u:p@w@host/x") == "mysql://u:***@host/x"
    assert clean_text("see https://host/a:b@c") == "see https://host/a:b@c"
    assert size_cell(1_500_000) == "1.4 MiB"
