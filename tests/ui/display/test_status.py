"""status.json and `supermax status`: the same picture from another terminal, and the truth about
runs that were killed."""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from typer.testing import CliRunner

import supermax
from supermax import SupermaxError
from supermax.engine import events as ev
from supermax.engine.storage.locks import Lock, holder
from supermax.ui.cli import app
from supermax.ui.display import status
from supermax.ui.display.gauges import Gauges
from supermax.ui.display.state import RunState
from supermax.ui.display.status import StatusFile, read, restore, standing, status_json, write
from tests import ROOT
from tests.conftest import eventually
from tests.few import quick_are
from tests.ui.display.test_display import Clock, ended, finish, started, state_after
from tests.ui.display.test_view import lines, search


def through_json(fields: dict[str, Any]) -> dict[str, Any]:
    back: dict[str, Any] = json.loads(json.dumps(fields, allow_nan=False))
    return back


class TestSnapshot:
    @pytest.mark.parametrize("width", [80, 200])
    def test_a_restored_state_draws_the_same_picture(self, width: int) -> None:
        clock = Clock()
        state = search(clock=clock)
        state.wall = lambda: clock.now + 1_700_000_000.0
        fields = through_json(status_json(state))
        again = restore(fields, clock=lambda: clock.now + 1_700_000_000.0)
        drawn, redrawn = lines(state, width), lines(again, width)
        # Of events the order and the time of day are those of this test's own clock.
        table = slice(0, drawn.index("") + 5)
        assert drawn[table] == redrawn[table]
        assert len(drawn) == len(redrawn)

    def test_numbers_for_scripts(self) -> None:
        fields = status_json(search())
        assert (fields["finished"], fields["target"], fields["state"]) == (7, 40, "running")
        assert fields["best"] == {"trial": 6, "value": 0.56}
        assert fields["eta"] == pytest.approx(251, abs=1)
        trial = fields["running"][0]
        assert (trial["encoder"], trial["epoch"]) == ("bert-base-uncased", 3.42)
        assert (trial["samples_per_second"], trial["memory"]) == (812.3, 1 << 30)
        assert len(trial["curve"]) == 6
        assert fields["faults"] == {"crash": 1}
        assert fields["events"][-1]["text"]
        assert (fields["pid"], fields["host"]) == (os.getpid(), platform.node())

    def test_values_that_are_not_finite_are_kept(self) -> None:
        begun = ev.TrialStarted(3, 1, 0, 100.0)
        reports = [ev.TrialReported(3, i, v) for i, v in enumerate([math.nan, -math.inf, 1.0])]
        state = state_after(started(best=(1, math.inf)), begun, *reports)
        again = restore(through_json(status_json(state)))
        assert again.best == (1, math.inf)
        assert again.running[3].curve.points[1:] == [-math.inf, 1.0]
        assert math.isnan(again.running[3].curve.points[0])

    def test_the_end_is_in_it(self) -> None:
        fields = status_json(state_after(started(), finish(0, 1.0), ended("timeout")))
        assert (fields["state"], fields["stopped_by"]) == ("ended", "timeout")
        assert restore(through_json(fields)).ending == "stopped by timeout"


class TestReading:
    @pytest.mark.parametrize(
        "content", ["", "{", "[]", "3", '{"format": 1}', '{"running": 3}', "\ufffd", "null"]
    )
    def test_invalid_status_files_are_none(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "status.json").write_text(content)
        assert read(tmp_path) is None
        assert read(tmp_path / "nowhere") is None

    def test_damaged_fields_are_none_too(self, tmp_path: Path) -> None:
        good = status_json(search())
        newer = {"metrics", "evaluated_on", "recent", "head_starts", "out_of_service", "paused",
                 "others", "other_workers", "gain"}  # fmt: skip
        for key in set(good) - {"elapsed", "eta", "state", "stopped_by"} - newer:
            damaged = {k: v for k, v in good.items() if k != key}
            with pytest.raises(ValueError):
                restore(damaged)
        write(tmp_path / "status.json", {**good, "format": 99})
        assert read(tmp_path) is None

    def test_a_run_is_alive_while_it_holds_the_lock(self, tmp_path: Path) -> None:
        fields, lock = status_json(search()), tmp_path / "lock"
        assert standing(fields, lock) == status.KILLED
        held = Lock(lock, "s")
        assert holder(lock) == os.getpid()
        assert standing(fields, lock) == status.RUNNING
        assert standing({**fields, "pid": 1}, lock) == status.KILLED  # another run since
        assert standing({**fields, "ended": 1.0}, lock) == status.ENDED
        assert lock.read_text() == str(os.getpid())
        held.release()
        lock.write_text(str(os.getpid()))  # its number was given to a process that is none of ours
        assert holder(lock) is None

    def test_a_run_on_another_machine_is_judged_by_age(self, tmp_path: Path) -> None:
        fields = {**status_json(search()), "host": "elsewhere", "updated": 1000.0}
        assert standing(fields, tmp_path / "lock", now=1010.0) == status.ELSEWHERE
        assert standing(fields, tmp_path / "lock", now=2000.0) == status.SILENT
        silent = restore(fields, status.SILENT)
        assert "on elsewhere no longer responds" in str(silent.ending)
        assert not silent.running


def begun(folder: Path) -> ev.RunStarted:
    return ev.RunStarted("s", ("minimize",), 10, 0, 0, 1, str(folder), None)


class TestListener:
    def test_it_samples_and_writes_while_nothing_happens(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(status, "INTERVAL", 0.02)
        gauges = Gauges(lambda pid: pid * 100, lambda: (), lambda: time.monotonic() * 1000)
        with StatusFile(gauges) as listener:
            listener(begun(tmp_path))
            assert read(tmp_path) is not None  # at once
            listener(ev.CellStarted(1, 7))
            listener(ev.TrialStarted(0, 1, 1, time.monotonic()))

            def sampled() -> bool:
                fields = read(tmp_path) or {}
                return bool(fields["running"]) and fields["running"][0]["memory"] == 700

            assert eventually(sampled)
        fields = read(tmp_path) or {}
        assert (fields["state"], fields["running"]) == ("ended", [])
        assert not [t for t in threading.enumerate() if t.name == "supermax-status"]
        assert [path.name for path in tmp_path.iterdir()] == ["status.json"]

    def test_the_end_is_written_before_the_lock_is_released(self, tmp_path: Path) -> None:
        with StatusFile() as listener:
            listener(begun(tmp_path))
            listener(ended())
            assert (read(tmp_path) or {})["ending"] == "the target is reached"

    @pytest.mark.parametrize(
        ("error", "words"),
        [(KeyboardInterrupt(), "at once, by Ctrl-C"), (SupermaxError("No\nway."), "No")],
    )
    def test_an_error_is_how_it_ended(
        self, tmp_path: Path, error: BaseException, words: str
    ) -> None:
        def fail() -> None:
            with StatusFile() as listener:
                listener(begun(tmp_path))
                raise error

        with pytest.raises(type(error)):
            fail()
        assert words in (read(tmp_path) or {})["ending"]

    def test_a_folder_that_cannot_be_written_is_ignored(self, tmp_path: Path) -> None:
        with StatusFile() as listener:
            listener(begun(tmp_path / "nowhere"))
            listener(finish(0, 1.0))
            listener(ended())
        assert not (tmp_path / "nowhere").exists()

    def test_a_run_that_never_started_writes_nothing(self, tmp_path: Path) -> None:
        with StatusFile():
            pass
        assert list(tmp_path.iterdir()) == []

    def test_a_run_leaves_its_status(self, study: optuna.Study) -> None:
        summary = supermax.optimize(study, lambda trial: 1.0, 2, progress=False)
        fields = read(summary.run_dir) or {}
        assert (fields["study"], fields["finished"], fields["state"]) == ("test", 2, "ended")


@pytest.fixture
def searching(url: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.ui.display.searches", url, str(tmp_path), "4"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    yield process
    if process.poll() is None:
        process.kill()
    process.wait()


def command(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["status", *words], env={"COLUMNS": "100"})
    if isinstance(done.exception, SupermaxError):
        assert code == 2
        return str(done.exception)
    assert done.exit_code == code, done.output
    return done.output


def facts(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(command(*words, "--json"))
    return found


class TestCommand:
    @pytest.mark.slow
    def test_a_run_that_is_alive_and_then_killed(
        self, searching: subprocess.Popen[bytes], tmp_path: Path
    ) -> None:
        db = str(tmp_path / "study.db")
        run_dir = tmp_path / "study.db.supermax" / "watched"

        def under_way() -> bool:
            fields = read(run_dir) or {"finished": 0, "running": []}
            return fields["finished"] == 2 and any(
                t["memory"] and t["encoder"] and t["samples_per_second"] for t in fields["running"]
            )

        assert eventually(under_way, 30)
        seen = facts("watched", "--storage", db)
        assert (seen["alive"], seen["standing"], seen["finished"]) == (True, "running", 2)
        shown = command("watched", "--storage", db)
        for piece in ("2/4 finished", "bert-base-unca", "812", "2 workers"):
            assert piece in shown
        listed = command("--storage", db)
        assert listed.splitlines()[1].startswith("*")
        assert "running, 0:" in listed

        searching.send_signal(signal.SIGKILL)
        searching.wait()
        seen = facts("watched", "--storage", db)
        assert (seen["alive"], seen["standing"], seen["state"]) == (False, "killed", "running")
        shown = command("watched", "--storage", db, "--watch")
        assert "killed" in shown
        assert "was killed in trial 2, 3; run the same command again to resume" in command(
            "watched", "--storage", db
        )
        assert "killed" in command("--storage", db)

    def test_without_a_status_file_the_study_is_shown(
        self, study: optuna.Study, tmp_path: Path
    ) -> None:
        study.optimize(lambda trial: float(trial.number), n_trials=3)
        db = str(tmp_path / "study.db")
        shown = command("test", "--storage", db)
        assert "test: 3 complete" in shown
        assert "best: value 0 in trial 0" in shown
        assert "none has left a status" in shown
        assert facts("test", "--storage", db)["trials"] == {"COMPLETE": 3}
        assert "no run known" in command("--storage", db)
        assert not (tmp_path / "study.db.supermax").exists()

    @pytest.mark.parametrize("by_a_run", quick_are([True], [True, False]))
    def test_values_have_the_names_that_were_given(
        self, study: optuna.Study, tmp_path: Path, by_a_run: bool
    ) -> None:
        with pytest.warns(optuna.exceptions.ExperimentalWarning):
            study.set_metric_names(["loss"])
        if by_a_run:
            supermax.optimize(study, lambda trial: 0.5, 1, progress=False)
        else:
            study.optimize(lambda trial: 0.5, n_trials=1)
        db = str(tmp_path / "study.db")
        assert "loss 0.5 in trial 0 (minimize)" in command("test", "--storage", db)
        assert "loss 0.5 (trial 0)" in command("--storage", db)
        seen = facts("test", "--storage", db)
        assert (seen["metrics"], seen["evaluated_on"]) == (["loss"], None)

    @pytest.mark.slow
    def test_a_run_in_a_folder_of_its_own(self, study: optuna.Study, tmp_path: Path) -> None:
        supermax.optimize(study, lambda t: 1.0, 1, progress=False, run_dir=tmp_path / "mine")
        db, mine = str(tmp_path / "study.db"), str(tmp_path / "mine")
        seen = facts("test", "--storage", db, "--run-dir", mine)
        assert (seen["alive"], seen["standing"], seen["finished"]) == (False, "ended", 1)
        for words in ((), ("--watch",)):
            shown = command("test", "--storage", db, "--run-dir", mine, *words)
            assert "1/1 finished" in shown
            assert "the target is reached" in shown
        assert "--run-dir" in command("--storage", db, "--run-dir", mine, code=2)

    def test_wrong_use(self, study: optuna.Study, tmp_path: Path) -> None:
        db = str(tmp_path / "study.db")
        assert "There is no study 'tset'" in command("tset", "--storage", db, code=2)
        optuna.create_study(storage=f"sqlite:///{db}", study_name="other")
        said = command("--watch", "--storage", db, code=2)
        assert "--watch shows one study of other, test. Name one with --study." in said
        assert "There is no file" in command("--storage", "nowhere.db", code=2)

    def test_an_empty_state_can_be_drawn(self) -> None:
        assert status_json(RunState())["state"] == "running"
