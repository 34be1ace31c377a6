"""Live view: its content at every width, the order in which columns are dropped, and its fit."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from supermax._util.text import one_line
from supermax.engine import events as ev
from supermax.engine.gain import Gain
from supermax.engine.summary import NO_GAIN, Summary
from supermax.memory.devices import Gpu
from supermax.ui.display import text
from supermax.ui.display.charts import bar, cut, fold, spark
from supermax.ui.display.curve import Curve
from supermax.ui.display.gauges import Readings
from supermax.ui.display.live import _Console, _Live
from supermax.ui.display.state import RunState
from supermax.ui.display.status import restore, status_json
from supermax.ui.display.view import draw_view
from tests.ui.display.screen import Screen
from tests.ui.display.test_display import (
    HOSTILE,
    Clock,
    ended,
    fault,
    finish,
    started,
    state_after,
)

GIB = 1 << 30
ENCODERS = ("tiny", "bert-base-uncased", "microsoft/deberta-v3-large")


def search(
    trials: int = 3, clock: Clock | None = None, metric: str = "macro_f1", **facts: object
) -> RunState:
    """Return a state with encoders, epochs, curves, speed, memory, a GPU, faults and a notice."""
    clock = clock or Clock()
    begun = started(
        target=40,
        workers=3,
        directions=("maximize",),
        metrics=(metric,),
        evaluated_on=("validation", 374),
    )
    state = state_after(begun, clock=clock)
    state.wall = clock
    for number in range(7):
        clock.now += 9.0
        state.update(finish(number, 0.5 + number / 100))
    for number in range(7, 7 + trials):
        state.update(ev.CellStarted(number, 100 + number))
        state.update(ev.TrialStarted(number, 1, number, clock.now - 75.0, reserved=4 * GIB))
        said = {
            "encoder": ENCODERS[number % 3],
            "epoch": 3.42,
            "epochs": 10,
            "samples_per_second": 812.3,
            "loss": 0.25,
            **facts,
        }
        state.update(ev.TrialNoted(number, said))  # type: ignore[arg-type]
        for step in range(6):
            state.update(ev.TrialReported(number, step, 0.5 + step / 20))
    state.update(fault(3, "retry in 1.0 s"))
    state.update(ev.Notice("The storage is slow."))
    pids = range(107, 107 + trials)
    gpus = (Gpu(0, "NVIDIA H200", 30 * GIB, 140 * GIB, 0.87),)
    state.readings = Readings(dict.fromkeys(pids, GIB), {107: 3 * GIB}, gpus, 8 * GIB)
    return state


def lines(state: RunState, width: int, height: int = 24, ascii: bool = False) -> list[str]:
    """Return the drawn lines, after checking that each one fits."""
    drawn = [line.plain for line in draw_view(state, height).lines(width, ascii)]
    assert max(map(cell_len, drawn)) <= width
    return drawn


def row(drawn: list[str], first: str) -> str:
    (found,) = [line for line in drawn if line.split()[:1] == [first]]
    return found


def test_a_lost_gpu_is_shown_until_the_end() -> None:
    state = search()
    state.update(ev.OutOfService("GPU 1", "it has an uncorrectable ECC error (code 214)"))
    wanted = "lost     GPU 1 is out of service: it has an uncorrectable ECC error (code 214)"
    assert wanted in lines(state, 100)
    state.close()
    assert wanted in lines(restore(status_json(state)), 100)
    assert lines(state, 20)


@pytest.mark.parametrize("width", [80, 200])
def test_expected_gain_is_shown_and_then_that_the_search_ends(width: int) -> None:
    state = search()
    state.update(ev.GainEstimated(Gain(60, 30, 0.02, 0.012)))
    text = "gain     0.02 expected of the next 30 trials, noise 0.012"
    assert row(lines(state, width), "gain") == text
    assert state.eta() is not None
    state.update(ev.GainEstimated(Gain(70, 35, 0.002, 0.012)))
    drawn = row(lines(state, width), "gain")
    assert "0.002 expected of the next 35 trials, noise 0.012; no new trials start" in drawn
    assert state.eta() is None
    state.update(ev.RunEnded(Summary(stopped_by=NO_GAIN)))
    again = restore(status_json(state))
    assert row(lines(again, width), "ended").endswith("no further gain is expected")
    assert again.gain == state.gain
    assert status_json(state)["gain"] == {
        "after": 70, "trials": 35, "expected": 0.002, "noise": 0.012, "assumed": False,
        "over": True,
    }  # fmt: skip


class TestColumns:
    def test_80_columns_hold_what_matters(self) -> None:
        drawn = lines(search(), 80)
        assert row(drawn, "trial").split() == [
            "trial", "encoder", "epoch", "curve", "macro_f1", "memory", "elapsed",
        ]  # fmt: skip
        assert row(drawn, "8").split() == [
            "8", "microsoft/debe…", "3.4/10", "▁▂▄▅▇█", "0.75", "██░░░░░", "1.0/4.0G", "1:15",
        ]  # fmt: skip

    def test_200_columns_are_used(self) -> None:
        drawn = lines(search(), 200)
        assert row(drawn, "trial").split() == [
            "trial", "try", "cell", "encoder", "epoch", "curve", "macro_f1", "samples/s", "memory",
            "gpu", "memory", "elapsed", "notes",
        ]  # fmt: skip
        said = row(drawn, "7")
        for piece in ("bert-base-uncased", "3.0G", "1:15", "loss=0.25"):
            assert piece in said
        assert len(said) > 150

    @pytest.mark.parametrize("width", [80, 200])
    def test_the_rest_of_the_picture(self, width: int) -> None:
        shown = "\n".join(lines(search(), width))
        for piece in (
            "7/40 finished, 4:10 left", "macro_f1 0.56 in trial 6 (maximize; validation, n=374)",
            "1 crash; 1 retry",
            "30/140G", "87% busy", "NVIDIA H200", "! The storage is slow.",
            "x trial 3, crash; retry in 1.0 s", "* trial 6 is the best so far: macro_f1 0.56",
        ):  # fmt: skip
            assert piece in shown

    def test_columns_are_dropped_in_order(self) -> None:
        """A column that is shown at some width is shown at every larger one."""
        before: set[str] = set()
        for width in range(30, 220):
            head = [line for line in lines(search(), width) if line.startswith("trial")]
            now = set(head[0].split())
            assert before <= now, width
            before = now
        assert "notes" in before

    def test_a_long_value_gives_way(self) -> None:
        state = search()
        for number in state.running:
            state.update(ev.TrialReported(number, 6, -0.00123456))
        assert "-0.001235 " in row(lines(state, 78), "8")
        assert "memory" in row(lines(state, 78), "trial")
        assert "-0.00123456 " in row(lines(state, 200), "8")

    @pytest.mark.parametrize("width", [30, 40, 80])
    def test_trial_value_and_elapsed_stay_on_a_narrow_screen(self, width: int) -> None:
        state = search(metric="a metric with a very long name")
        drawn = lines(state, width)
        (head,) = [line for line in drawn if line.startswith("trial")]
        assert "a metric" in head
        assert "elapsed" in head
        (said,) = [line for line in drawn if line.startswith("    8")]
        assert {"8", "0.75", "1:15"} <= set(said.split())

    def test_the_column_of_the_value_is_there_before_the_first_value(self) -> None:
        """Otherwise all columns would move whenever a trial starts."""
        state = search(1)
        for trial in state.running.values():
            trial.value = None
        assert "macro_f1" in row(lines(state, 80), "trial")

    def test_a_plain_objective_has_steps_and_no_empty_columns(self) -> None:
        begun = ev.TrialStarted(0, 1, 0, 90.0)
        reports = [ev.TrialReported(0, step, 1.0) for step in range(3)]
        drawn = lines(state_after(started(), begun, *reports), 120)
        assert row(drawn, "trial").split() == [
            "trial", "try", "cell", "step", "curve", "value", "elapsed",
        ]  # fmt: skip

    def test_a_bar_without_a_reservation_is_against_the_share_of_the_machine(self) -> None:
        state = search()
        for trial in state.running.values():
            trial.reserved = None
        assert "1.0/2.7G" in row(lines(state, 80), "7")

    def test_noted_memory_is_compared_with_the_reservation(self) -> None:
        """Resident memory holds libraries that all cells share, and nothing of a GPU's."""
        assert "2.5/4.0G" in row(lines(search(memory=int(2.5 * GIB)), 80), "7")
        state = search(memory=int(2.5 * GIB))
        for trial in state.running.values():
            trial.reserved = None
        assert "1.0/2.7G" in row(lines(state, 80), "7")

    def test_memory_that_is_full_is_red(self) -> None:
        state = search(1)
        for used, colour in [(1, "green"), (3.2, "yellow"), (3.9, "red"), (9, "red")]:
            state.readings = Readings({107: int(used * GIB)}, {}, (), None)
            (line,) = [x for x in draw_view(state).lines(80) if "/4.0G" in x.plain]
            assert colour in {str(span.style) for span in line.spans}

    @pytest.mark.parametrize("value", HOSTILE)
    @pytest.mark.parametrize("width", [1, 20, 80, 200])
    def test_hostile_facts_stay_in_their_cells(self, value: str, width: int) -> None:
        state = search(encoder=value, **{"loss": value, value or "x": 1})
        drawn = lines(state, width)
        assert all(line.isprintable() for line in drawn)
        for odd in ({"epoch": value}, {"epochs": value}, {"samples_per_second": value}):
            lines(search(**odd), width)


class TestFit:
    @settings(max_examples=60, deadline=None)
    @given(
        st.integers(1, 250), st.integers(1, 60), st.integers(0, 40), st.booleans(), st.booleans()
    )
    def test_never_wider_or_taller_than_the_screen(
        self, width: int, height: int, trials: int, ascii: bool, stopping: bool
    ) -> None:
        state = search(trials)
        for number in range(12):
            state.update(fault(number, "failed", kind=f"kind {number}"))
            state.update(ev.Notice("A long story. " * number))
        if stopping:
            state.update(ev.RunStopping("interrupt", trials))
        assert len(lines(state, width, height, ascii)) <= height

    def test_running_trials_come_before_old_events(self) -> None:
        state = search(12)
        for number in range(12):
            state.update(fault(100 + number, "failed"))
        drawn = lines(state, 80, 24)
        assert len([line for line in drawn if "3.4/10" in line]) == 9
        assert "and 3 more running" in drawn
        assert len([line for line in drawn if "crash; failed" in line]) >= 2

    def test_a_tall_screen_shows_the_trials_that_finished_last(self) -> None:
        state = search()
        state.update(finish(8, 0.81))
        state.update(finish(30, 0.2, state="PRUNED"))
        state.update(finish(31, state="FAIL"))
        drawn = lines(state, 200, 50)
        head = row(drawn, "finished")
        assert head.split() == ["finished", "state", "encoder", "curve", "macro_f1", "took"]
        after = [line.split() for line in drawn[drawn.index(head) + 1 :]]
        assert after[:4] == [
            ["31", "failed", "1.5", "s"],
            ["30", "pruned", "0.2", "1.5", "s"],
            ["8", "complete", "microsoft/deberta-v3-large", "▁▂▄▅▇█", "0.81", "1.5", "s"],
            ["6", "complete", "0.56", "1.5", "s"],
        ]
        assert after[10] == []  # then what happened
        assert any("crash" in line for line in drawn[drawn.index(head) :])

    def test_finished_trials_take_only_room_that_is_left(self) -> None:
        state = search(12)
        for number in range(12):
            state.update(fault(100 + number, "failed"))
        assert not [line for line in lines(state, 80, 24) if line.startswith("finished")]

    @pytest.mark.parametrize("metrics", [("macro_f1", "latency"), ()])
    def test_finished_trials_of_several_objectives(self, metrics: tuple[str, ...]) -> None:
        several = started(directions=("maximize", "minimize"), metrics=metrics)
        drawn = lines(state_after(several, finish(0, 0.5, 3.25), finish(1, state="FAIL")), 80)
        head = row(drawn, "finished")
        for name in metrics or ("value 0", "value 1"):
            assert name in head
        said = drawn[drawn.index(head) + 2].split()
        assert said == ["0", "complete", "0.5", "3.25", "1.5", "s"]

    def test_without_blocks_all_is_ascii(self) -> None:
        drawn = lines(search(encoder="名前"), 80, ascii=True)
        assert "\n".join(drawn).isascii()
        assert "_.:=*#" in row(drawn, "8")
        assert "##........ 1.0/4.0G" in row(drawn, "8")

    def test_a_console_that_cannot_encode_blocks_gets_ascii(self) -> None:
        with io.TextIOWrapper(io.BytesIO(), "latin-1") as stream:
            Console(file=stream, width=80).print(draw_view(search()))
            stream.seek(0)
            assert "1.0/4.0G" in stream.read()

    def test_the_last_picture_is_short_but_tells_all_notices(self) -> None:
        state = search()
        for number in range(30):
            state.update(fault(number, "failed"))
        state.update(ended())
        drawn = lines(state, 80)
        assert len([line for line in drawn if "crash; failed" in line]) == 6
        assert any("! The storage is slow." in line for line in drawn)
        assert any("the target is reached" in line for line in drawn)


class TestNarrower:
    @pytest.mark.parametrize("width", [50, 59, 79])
    def test_a_picture_is_replaced_on_a_screen_that_became_narrower(self, width: int) -> None:
        stream = io.StringIO()
        console = _Console(file=stream, width=80, height=40, force_terminal=True)
        screen, state = Screen(80, 40), search()
        live = _Live(console, lambda: draw_view(state, 40))
        live.auto_refresh = False
        screen.feed("a line before the view\r\n")

        def refresh() -> None:
            live.refresh()
            screen.feed(stream.getvalue().replace("\n", "\r\n"))
            stream.seek(0)
            stream.truncate()

        live.start()
        refresh()
        for size in (width, 80):
            screen.resize(size, 40)
            console.width = size
            refresh()
            expected = [line.plain.rstrip() for line in draw_view(state, 40).lines(size)]
            rows = screen.text.split("\n")[: screen.row + 1]
            assert rows == ["a line before the view", *expected]
            assert not any(screen.rows[screen.row + 1 :])
        live.stop()
        assert screen.wraps == 0


class TestCharts:
    @given(st.lists(st.floats()), st.integers(0, 300))
    def test_a_curve_of_any_numbers_fits(self, values: list[float], width: int) -> None:
        assert len(spark(values, width)) == min(len(values), width)

    def test_curves(self) -> None:
        assert spark([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
        assert spark([0, 1, 2, 3, 4, 5, 6, 7], 4) == "▁▃▆█"
        assert spark([1.0, math.nan, 2.0, math.inf], 8) == "▁ █ "
        assert spark([3.0, 3.0], 8) == "▅▅"
        assert spark([-1e308, 1e308], 8) == "▁█"

    def test_a_long_curve_is_thinned_out_evenly(self) -> None:
        curve = Curve()
        for value in range(100_000):
            curve.add(float(value))
        assert Curve.MAX_POINTS / 2 <= len(curve.points) <= Curve.MAX_POINTS
        steps = {b - a for a, b in zip(curve.points, curve.points[1:], strict=False)}
        assert len(steps) == 1

    @given(st.text(), st.integers(0, 100))
    def test_cut_text_fits(self, said: str, width: int) -> None:
        assert cell_len(cut(one_line(said), width)) <= width

    @given(st.text(), st.integers(1, 40), st.integers(1, 5))
    def test_folded_text_loses_nothing(self, said: str, width: int, most: int) -> None:
        said = one_line(said)
        folded = fold(said, width, most)
        assert len(folded) <= most
        assert "".join(folded).replace(" ", "") == said.replace(" ", "")

    def test_bars(self) -> None:
        assert bar(0.5, 4) == "██░░"
        assert bar(7.0, 4) == "████"
        assert bar(math.nan, 4) == "░░░░"

    def test_sizes(self) -> None:
        sizes = [0, 52 << 20, 1023 << 20, GIB, 139 * GIB, 5000 * GIB]
        shown = [text.size_of(size) for size in sizes]
        assert shown == ["0K", "52M", "1.0G", "1.0G", "139G", "4.9T"]
        assert text.used_of(GIB, 4 * GIB) == "1.0/4.0G"
        assert text.used_of(52 << 20, 4 * GIB) == "52M/4.0G"
