"""Machines of a shared study: their names, in the report and in `show`."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from rich.console import Console

from supermax._util.attributes import CLAIM, TAKEN_FROM
from supermax.engine.sharing.shared_run import RunOfStudy
from supermax.engine.storage.lease_tables import ENDED, RUNNING, RunInfo
from supermax.engine.storage.run_folder import TrialFolder
from supermax.results.machines import at_work, machine_text, run_names, short_hosts
from supermax.results.records import StudyRecord, TrialRecord
from supermax.results.report.overview import overview
from supermax.results.report.page import page
from supermax.ui.cli.status import Snapshot, _runs_table, find_snapshot


def run(name: str, host: str, state: str = RUNNING, expires: float = 200.0) -> RunOfStudy:
    info = RunInfo(name, host, 1, f"/runs/{name}", 2, "0.1", 1, state, "", 0.0, 90.0, expires, 100)
    return RunOfStudy(info, running=(7,), finished=3, lost=(0,) if state != RUNNING else ())


def record(*runs: RunOfStudy) -> StudyRecord:
    study = optuna.create_study(study_name="s")
    attributes = [{CLAIM: "a"}, {CLAIM: "b", f"{TAKEN_FROM}1": "a", f"{TAKEN_FROM}2": "c"}, {}]
    for system_attrs in attributes:
        study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.COMPLETE, value=1.0, system_attrs=system_attrs
            )
        )
    trials = [TrialRecord(trial, TrialFolder(Path("/nowhere"))) for trial in study.trials]
    return StudyRecord(study, Path("/nowhere"), trials, runs)


def test_machines_are_named_so_that_they_differ() -> None:
    assert short_hosts(["a.x", "b.x"]) == {"a.x": "a", "b.x": "b"}
    assert short_hosts(["a.x", "a.y"]) == {"a.x": "a.x", "a.y": "a.y"}
    runs = [run("one", "a.x"), run("two", "a.x"), run("three", "b.x")]
    assert run_names(runs) == {"one": "a (one)", "two": "a (two)", "three": "b"}
    assert run_names([run("a", "a.x"), run("two", "a.x")]) == {"a": "a", "two": "a (two)"}


def test_a_trial_names_its_machine_and_the_former_ones() -> None:
    shared = record(run("a", "left.x"), run("b", "right.x"), run("c", "third.x"))
    texts = [machine_text(shared, trial) for trial in shared.trials]
    assert texts == ["left", "right, taken over from left, then third", "unknown"]
    alone = record(run("a", "left.x"))
    assert [machine_text(alone, trial) for trial in alone.trials] == [None] * 3


def test_more_unfinished_trials_than_workers_are_paused() -> None:
    paused = replace(run("a", "left.x"), running=(1, 2, 4, 5, 6))
    shown = Console(width=80, file=io.StringIO(), record=True)
    shown.print(_runs_table([paused, run("b", "right.x")]))
    head, left, right = shown.export_text().splitlines()
    assert head.split()[-2:] == ["unfinished", "paused"]
    assert left.rstrip().endswith("trial 1, 2, 4, 5, 6  3")
    assert right.rstrip().endswith("trial 7")
    assert run("c", "left.x", ENDED).paused == 1
    html = page(record(paused, run("b", "right.x")))
    assert '<td>1, 2, 4, 5, 6</td><td class="n">3</td>' in html
    assert ">paused<" not in page(record(run("a", "left.x"), run("b", "right.x")))


def test_lists_of_studies_name_the_machines_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """This one may have no run: the dashboard and `status` show those of the others."""
    ended, lost = run("a", "left.x", ENDED), run("b", "right.x", expires=95.0)
    left, right = run("c", "left.x"), run("d", "right.x")
    for runs, words in (
        ((ended, lost), ""),
        ((ended, left, replace(left)), "running on left"),
        ((left, right), "running on 2 machines"),
    ):
        assert at_work(runs) == words
        shown = record(*runs)
        monkeypatch.setattr("supermax.results.report.overview.read_record", lambda _, s=shown: s)
        monkeypatch.setattr(sys.modules[Snapshot.__module__], "runs_of", lambda _, r=runs: r)
        assert overview(shown.study).state == (words or "finished")
        assert find_snapshot(shown.study).run_text() == (words or "no run known")


def test_the_report_lists_the_machines_of_a_shared_study() -> None:
    html = page(record(run("a", "left.x", ENDED), run("b", "<right>.x", expires=95.0)))
    table = html.partition('id="machines"')[2].partition("</section>")[0]
    assert "<td>left</td><td>ended</td>" in table
    assert "<td>&lt;right&gt;</td><td>lost</td>" in table
    assert '>7</td><td class="n">1</td><td>0</td>' in table
    assert "<td>&lt;right&gt;, taken over from left, then unknown</td>" in html
    assert 'id="machines"' not in page(record(run("a", "left.x")))
