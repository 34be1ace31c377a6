"""The displays: what they know, what they write, and that neither can hurt a run."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from supermax.engine import events as ev
from supermax.engine.summary import Summary
from supermax.ui.display import display_for
from supermax.ui.display.live import LiveDisplay
from supermax.ui.display.plain import PlainDisplay
from supermax.ui.display.state import RunState
from supermax.ui.display.status import restore, status_json
from supermax.ui.display.view import draw_view

HOSTILE = ["[bold]x[/]", "[/]", "[link=x]", "a\x1b[2Jb\r\nc", "名前" * 60, "\ud800", ""]


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def started(
    name: str = "study",
    directions: tuple[str, ...] = ("minimize",),
    target: int | None = 10,
    finished: int = 0,
    workers: int = 1,
    best: tuple[int, float] | None = None,
    metrics: tuple[str, ...] = (),
    evaluated_on: tuple[str, int] | None = None,
) -> ev.RunStarted:
    return ev.RunStarted(
        name, directions, target, finished, 0, workers, "runs/1", best, metrics, evaluated_on
    )


def finish(number: int, *values: float, state: str = "COMPLETE") -> ev.TrialFinished:
    return ev.TrialFinished(number, state, values or None, {}, 1, 1.5, number + 1)


def fault(number: int, decision: str, kind: str = "crash") -> ev.FaultSeen:
    retried = decision.startswith("retry")
    return ev.FaultSeen(number, 1, kind, "objective", "The process was killed.", decision, retried)


def ended(stopped_by: str | None = None) -> ev.RunEnded:
    return ev.RunEnded(Summary({"COMPLETE": 2, "FAIL": 1}, {"crash": 1}, stopped_by=stopped_by))


def state_after(*events: ev.Event, clock: Clock | None = None) -> RunState:
    state = RunState(clock or Clock())
    for event in events:
        state.update(event)
    return state


def drawn(state: RunState) -> str:
    return "\n".join(line.plain for line in draw_view(state).lines(80))


class TestState:
    def test_best_follows_the_direction(self) -> None:
        for direction, expected in [("minimize", (1, -2.0)), ("maximize", (2, 5.0))]:
            trials = [finish(0, 1.0), finish(1, -2.0), finish(2, 5.0), finish(3, math.nan)]
            assert state_after(started(directions=(direction,)), *trials).best == expected

    def test_ties_go_to_the_lowest_trial_number(self) -> None:
        """The order in which they ended does not matter, as in the ranking."""
        state = state_after(started(), finish(1, 0.5), finish(0, 0.5), finish(2, 0.5))
        assert state.best == (0, 0.5)

    def test_only_complete_trials_can_be_the_best(self) -> None:
        pruned = finish(1, -9.0, state="PRUNED")
        assert state_after(started(best=(7, 1.0)), pruned, finish(2, 2.0)).best == (7, 1.0)

    def test_several_objectives_have_no_best(self) -> None:
        state = state_after(started(directions=("minimize", "maximize")), finish(0, 1.0, 2.0))
        assert state.best is None
        assert state.states["COMPLETE"] == 1

    def test_eta_comes_from_the_rate(self) -> None:
        clock = Clock()
        state = state_after(started(target=10), clock=clock)
        assert state.eta() is None
        for number in range(4):
            clock.now += 2.0
            state.update(finish(number, 1.0))
        assert state.eta() == pytest.approx(6 * 2.0)

    def test_eta_grows_while_nothing_finishes(self) -> None:
        clock = Clock()
        state = state_after(started(target=3), clock=clock)
        clock.now += 1.0
        state.update(finish(0, 1.0))
        clock.now += 99.0
        assert state.eta() == pytest.approx(2 * 50.0)

    def test_eta_waits_for_the_first_trial_of_each_worker(self) -> None:
        clock = Clock()
        state = state_after(started(workers=2), clock=clock)
        clock.now += 1.0
        state.update(finish(0, 1.0))
        assert state.eta() is None
        state.update(finish(1, 1.0))
        assert state.eta() == pytest.approx(8 * 0.5)

    def test_eta_counts_the_finished_share_of_running_trials(self) -> None:
        clock = Clock()
        state = state_after(started(target=2), clock=clock)
        state.update(ev.TrialStarted(0, 1, 1, clock.now))
        for share, left in ((0.0, None), (0.05, None), (0.25, 350.0), (0.75, 250.0)):
            state.update(ev.TrialNoted(0, {"epoch": 4 * share, "epochs": 4}))
            assert state.eta() == (None if left is None else pytest.approx(left))
            assert state.done() == pytest.approx(share)
            clock.now += 200.0 * {0.0: 0.05, 0.05: 0.2, 0.25: 0.5}.get(share, 0.0)

    def test_eta_ignores_work_of_an_earlier_run(self) -> None:
        """Its first 60 percent took no time here. The estimate falls with the next trial."""
        clock = Clock()
        state = state_after(started(target=2), clock=clock)
        state.wall = clock
        state.update(ev.TrialStarted(0, 2, 1, clock.now))
        state.update(ev.TrialNoted(0, {"epoch": 0.6, "epochs": 1}))
        assert state.eta() is None
        clock.now += 40.0
        state.update(finish(0, 1.0))
        state.update(ev.TrialStarted(1, 1, 1, clock.now))
        found = []
        for tenth in range(1, 10):
            clock.now += 10.0
            state.update(ev.TrialNoted(1, {"epoch": tenth / 10, "epochs": 1}))
            found.append(state.eta())
        assert found == pytest.approx([10.0 * left for left in range(9, 0, -1)])
        again = restore(json.loads(json.dumps(status_json(state))), clock=clock)
        assert again.eta() == pytest.approx(10.0)

    def test_eta_counts_work_of_earlier_attempts_in_this_run(self) -> None:
        clock = Clock()
        state = state_after(started(target=2), clock=clock)
        state.update(ev.TrialStarted(0, 1, 1, clock.now))
        clock.now += 90.0
        state.update(ev.TrialNoted(0, {"epoch": 0.9, "epochs": 1}))
        state.update(fault(0, "retry in 1.0 s"))
        state.update(ev.TrialStarted(0, 2, 1, clock.now))
        clock.now += 10.0
        state.update(ev.TrialNoted(0, {"epoch": 0.95, "epochs": 1}))
        assert state.eta() == pytest.approx(1.05 * 100 / 0.95)

    def test_many_resumed_trials_leave_an_estimate(self) -> None:
        clock = Clock()
        state = state_after(started(target=400), clock=clock)
        for number in range(300):
            state.update(ev.TrialStarted(number, 2, 1, clock.now))
            state.update(ev.TrialNoted(number, {"epoch": 4, "epochs": 10}))
            clock.now += 6.0
            state.update(finish(number, 1.0))
        left = state.eta()
        assert left is not None
        assert left == pytest.approx(100 * 10.0, rel=0.05)

    def test_paused_trials_are_shown_and_bring_the_end_nearer(self) -> None:
        """The first one paused in an earlier run, and took no time here."""
        clock = Clock()
        state = state_after(started(target=10), ev.TrialPaused(7, at_rung=True), clock=clock)
        state.wall = clock
        assert state.eta() is None
        for number in range(3):
            state.update(ev.TrialStarted(number, 1, 1, clock.now))
            clock.now += 2.0
            state.update(ev.TrialPaused(number, at_rung=True))
        again = restore(json.loads(json.dumps(status_json(state))), clock=clock)
        for found in (state, again):
            assert "0/10 finished, 4 paused, 0:12 left" in drawn(found)
            assert found.eta() == pytest.approx(6 * 2.0)
        state.update(ev.TrialStarted(1, 2, 1, clock.now))
        assert set(state.paused) == {7, 0, 2}
        state.update(finish(0, state="PRUNED"))
        state.update(ev.TrialPaused(2))  # another run has it now
        assert set(state.paused) == {7}

    def test_unfinished_trials_of_an_earlier_run_are_counted_at_the_start(self) -> None:
        """Some of them may be paused: they are kept, and not all of them continue."""
        stream = io.StringIO()
        PlainDisplay(stream)(replace(started(), resumed=13))
        assert "13 unfinished trials kept, 1 worker" in stream.getvalue()

    def test_trials_of_other_runs_count(self) -> None:
        clock = Clock()
        state = state_after(started(target=10), clock=clock)
        clock.now += 2.0
        state.update(ev.StudyChanged(1, (3, 0.5)))
        assert state.starting
        state.update(finish(1, 1.0))  # the second of the study
        assert state.best == (3, 0.5)
        assert state.finished == 2
        assert state.eta() == pytest.approx(8 * 1.0)
        assert "trial 3 is the best so far" in drawn(state)
        state.update(ev.StudyChanged(9, None))
        assert state.best == (3, 0.5)

    def test_invalid_epochs_have_no_share(self) -> None:
        state = state_after(started(target=2), ev.TrialStarted(0, 1, 1, 0.0))
        for epoch, epochs in (("a", 3), (1, 0), (2, None), (-1, 3), (math.nan, 3)):
            state.update(ev.TrialNoted(0, {"epoch": epoch, "epochs": epochs}))
            assert state.done() == 0.0

    def test_no_eta_without_target_or_when_stopping(self) -> None:
        assert state_after(started(target=None), finish(0, 1.0)).eta() is None
        stopping = ev.RunStopping("interrupt", 1)
        assert state_after(started(), finish(0, 1.0), stopping).eta() is None

    def test_a_fault_ends_its_attempt_only(self) -> None:
        first, second = ev.TrialStarted(3, 1, 0, 100.0), ev.TrialStarted(3, 2, 1, 101.0)
        state = state_after(started(), first, fault(3, "retry in 1.0 s"))
        assert (state.running, state.waiting, state.retries) == ({}, {3}, 1)
        state.update(second)
        state.update(fault(3, "retry in 1.0 s"))  # late news of the first attempt
        assert state.running[3].attempt == 2
        state.update(finish(3, state="FAIL"))
        assert (state.running, state.waiting) == ({}, set())
        assert state.faults == {"crash": 2}

    def test_reports_reach_their_trial(self) -> None:
        begun = ev.TrialStarted(0, 1, 0, 100.0)
        reports = [ev.TrialReported(0, 1, 0.5), ev.TrialReported(9, 2, 0.1)]
        trial = state_after(started(), begun, *reports).running[0]
        assert (trial.step, trial.value) == (1, 0.5)

    def test_only_the_last_notices_are_kept(self) -> None:
        texts = ["a", "b", "b", "c", "d", "b"]
        state = state_after(started(), *map(ev.Notice, texts), ev.CellEnded(1, 4, None))
        assert state.notices == {"c": 1, "d": 1, "b": 3}

    def test_the_end_stops_the_clock(self) -> None:
        clock = Clock()
        state = state_after(started(), ev.TrialStarted(0, 1, 0, 100.0), clock=clock)
        clock.now += 5.0
        state.update(ended())
        clock.now += 5.0
        assert state.elapsed() == 5.0
        assert (state.finished, state.running) == (3, {})


def picture(state: RunState, width: int, height: int = 24) -> str:
    """Return the view as text; check that colours can be drawn and every line fits."""
    Console(file=io.StringIO(), width=width, force_terminal=True).print(draw_view(state, height))
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(draw_view(state, height))
    assert max(map(cell_len, stream.getvalue().splitlines())) <= width
    return stream.getvalue()


def busy(name: str = "study", trials: int = 3, clock: Clock | None = None) -> RunState:
    running = [ev.TrialStarted(number, 1, number, 90.0) for number in range(trials)]
    reports = [ev.TrialReported(number, 123456789, -1.23456789e-123) for number in range(trials)]
    return state_after(
        started(name=name, best=(4, 0.125)),
        *running,
        *reports,
        ev.TrialStarted(77, 1, 7, 90.0),
        fault(77, "retry in 1.0 s"),
        fault(78, "failed", kind="[/] " + name),
        ev.Notice("The storage is slow. " * 20),
        ev.Notice(name),
        ev.RunStopping("interrupt " + name, 3),
        clock=clock,
    )


class TestView:
    @pytest.mark.parametrize("width", [80, 200])
    def test_everything_is_on_the_screen(self, width: int) -> None:
        shown = picture(busy(), width)
        for piece in [
            "study", "0/10 finished", "value 0.125 in trial 4", "1 crash", "1 retry",
            "1 trial to be retried", "123456789", "-1.23457e-123", "0:10", "The storage is slow.",
            "interrupt",
        ]:  # fmt: skip
            assert piece in shown

    @pytest.mark.parametrize("width", [80, 200])
    @pytest.mark.parametrize("name", HOSTILE)
    def test_hostile_text_is_shown_as_it_is(self, name: str, width: int) -> None:
        shown = picture(busy(name), width)
        if name.startswith("["):
            assert shown.startswith(name)
            assert f"! {name}" in shown

    @pytest.mark.parametrize("width", [1, 10, 40])
    def test_a_narrow_screen_is_only_ugly(self, width: int) -> None:
        assert picture(busy(), width)

    def test_more_trials_than_lines(self) -> None:
        shown = picture(busy(trials=500), 80)
        assert len(shown.splitlines()) <= 24
        assert "more running" in shown

    def test_eta_and_several_objectives(self) -> None:
        clock = Clock()
        state = state_after(started(directions=("minimize", "minimize")), clock=clock)
        clock.now += 60.0
        state.update(finish(0, 1.0, 2.0))
        shown = picture(state, 80)
        assert "1/10 finished, 9:00 left" in shown
        assert "1 complete trial in this run, 2 objectives" in shown

    def test_the_last_picture_says_how_it_ended(self) -> None:
        for reason, words in [(None, "the target is reached"), ("timeout", "stopped by timeout")]:
            state = busy()
            state.update(ended(reason))
            shown = picture(state, 80)
            assert words in shown
            assert "running" not in shown
            assert shown.count("slow.") == 20  # now there is room for all of it

    def test_the_start_of_the_first_cell_is_shown(self) -> None:
        state = state_after(started())
        assert "starting the first cell" in picture(state, 80)
        state.update(ev.TrialStarted(0, 1, 1, 0.0))
        assert "starting" not in picture(state, 80)
        state.update(finish(0, 1.0))
        assert "starting" not in picture(state, 80)
        assert not state_after(started(finished=10)).starting

    def test_before_the_run_and_without_target(self) -> None:
        assert "opening" in picture(RunState(), 80)
        assert "0 finished" in picture(state_after(started(target=None)), 80)


class Terminal:
    """Pseudo-terminal that records everything written to it."""

    def __init__(self) -> None:
        self.master, slave = os.openpty()
        self.stream = os.fdopen(slave, "w")
        self._seen = bytearray()
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # how Linux says that the other side is closed
            while data := os.read(self.master, 4096):
                with self._news:
                    self._seen += data
                    self._news.notify()

    def everything(self) -> str:
        """Return the output, once an end marker written after it has arrived."""
        self.stream.write("THE END")
        self.stream.flush()
        with self._news:
            assert self._news.wait_for(lambda: self._seen.endswith(b"THE END"), timeout=30)
            return self._seen.decode()

    def close(self) -> None:
        self.stream.close()
        self._reader.join(timeout=30)
        os.close(self.master)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    yield terminal
    terminal.close()


class TestLive:
    def test_it_draws_and_leaves_the_terminal_as_it_was(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "stderr", terminal.stream)

        def fail() -> None:
            with display_for(None) as listener:
                assert isinstance(listener, LiveDisplay)
                listener(started(name="[/]"))
                listener(finish(0, 0.5))
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fail()
        assert sys.stderr is terminal.stream
        shown = terminal.everything()
        assert "[/]" in shown
        assert "1/10 finished" in shown
        assert "\x1b[?" not in shown  # no mode was ever set: no cursor hidden, no second screen

    def test_prints_and_log_lines_go_through_it(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "stderr", terminal.stream)
        handler = logging.StreamHandler()
        logger = logging.getLogger("test_display")
        logger.addHandler(handler)
        try:
            with display_for(True) as listener:
                listener(started())
                assert handler.stream is sys.stderr
                assert handler.stream is not terminal.stream
                logger.warning("a log line [/]")
                print("printed [/]", end="", file=sys.stderr, flush=True)
            assert handler.stream is terminal.stream
        finally:
            logger.removeHandler(handler)
        shown = terminal.everything()
        assert "a log line [/]" in shown
        assert "printed [/]" in shown

    def test_a_terminal_that_hangs_up_is_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        master, slave = os.openpty()
        stream = os.fdopen(slave, "w")
        with LiveDisplay(stream) as display:
            display(started())
            os.close(master)
            display(finish(0, 1.0))
        with pytest.raises(OSError, match="Input/output error"):  # it had hung up indeed
            stream.close()


class TestChoice:
    def test_a_file_gets_plain_lines(self, tmp_path: Path) -> None:
        with (tmp_path / "log").open("w") as stream, display_for(True, stream) as listener:
            assert isinstance(listener, PlainDisplay)

    def test_a_dumb_terminal_gets_plain_lines(
        self, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TERM", "dumb")
        with display_for(None, terminal.stream) as listener:
            assert isinstance(listener, PlainDisplay)

    def test_no_display_when_progress_is_false(self) -> None:
        stream = io.StringIO()
        with display_for(False, stream) as listener:
            listener(started())
        assert stream.getvalue() == ""

    def test_no_display_without_standard_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stderr", None)
        with display_for(None) as listener:
            listener(started())

    def test_a_closed_stream_is_not_a_terminal(self) -> None:
        stream = io.StringIO()
        stream.close()
        with display_for(None, stream) as listener:
            listener(started())
