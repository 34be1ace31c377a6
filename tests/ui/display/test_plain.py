"""Plain display: one line per trial, rate-limited."""

from __future__ import annotations

import io
import os

import pytest

from supermax.engine import events as ev
from supermax.engine.gain import Gain
from supermax.ui.display.plain import PlainDisplay
from tests.ui.display.test_display import HOSTILE, Clock, ended, fault, finish, started


def plain(clock: Clock) -> tuple[PlainDisplay, io.StringIO]:
    stream = io.StringIO()
    return PlainDisplay(stream, clock), stream


class TestPlain:
    def test_a_stream_of_few_characters_gets_all_lines(self) -> None:
        raw = io.BytesIO()
        display = PlainDisplay(io.TextIOWrapper(raw, "ascii"), Clock())
        for said in ("näher", "x" * 2000, "last"):
            display(ev.Notice(said))
        assert raw.getvalue().decode("ascii").splitlines()[0].endswith("n?her")
        assert raw.getvalue().endswith(b"last\n")

    def test_a_slow_run_gets_a_line_per_trial(self) -> None:
        clock = Clock()
        display, stream = plain(clock)
        with display:
            display(started())
            for number in range(3):
                clock.now += 60.0
                display(finish(number, 0.25))
            display(ended())
        lines = stream.getvalue().splitlines()
        assert lines[0] == (
            "[supermax 0:00] Study 'study' (minimize): 0/10 finished, 1 worker, "
            "run files in runs/1"
        )
        assert lines[1].startswith("[supermax 0:00] Starting the first cell")
        assert lines[3] == (
            "[supermax 2:00] Trial 1 complete: value 0.25 in 1.5 s; 2/10 finished; "
            "best value 0.25 in trial 0; about 8:00 left"
        )
        assert lines[-1].startswith("[supermax 3:00] Done. 3 finished trials in the study")
        assert len(lines) == 6

    def test_the_expected_gain_is_in_the_lines_of_trials(self) -> None:
        display, stream = plain(Clock())
        display(started())
        display(finish(0, 0.25))
        display(ev.GainEstimated(Gain(50, 25, 0.0021, 0.012)))
        display(finish(1, 0.25))
        *_, before, after = stream.getvalue().splitlines()
        assert "gain" not in before
        assert "; expected gain of the next 25 trials: 0.0021, noise 0.012" in after

    def test_every_value_has_the_name_of_its_metric(self) -> None:
        display, stream = plain(Clock())
        display(
            started(
                directions=("maximize",),
                best=(1, 0.512),
                metrics=("macro_f1",),
                evaluated_on=("validation", 374),
            )
        )
        display(finish(3, 0.454))
        display(finish(4, 0.1, state="PRUNED"))
        display(finish(5, state="FAIL"))
        lines = stream.getvalue().splitlines()
        assert lines[0].startswith(
            "[supermax 0:00] Study 'study' (maximize macro_f1; validation, n=374): 0/10 finished, "
            "best macro_f1 0.512 in trial 1, "
        )
        best = "best macro_f1 0.512 in trial 1"
        assert [line.partition("; about")[0] for line in lines[2:]] == [
            "[supermax 0:00] Trial 3 complete: macro_f1 0.454 (validation, n=374) in 1.5 s; "
            f"4/10 finished; {best}",
            "[supermax 0:00] Trial 4 pruned: macro_f1 0.1 (validation, n=374) in 1.5 s; "
            f"5/10 finished; {best}",
            f"[supermax 0:00] Trial 5 failed in 1.5 s; 6/10 finished; {best}",
        ]

    @pytest.mark.parametrize(
        ("metrics", "goal", "said"),
        [
            (("macro_f1", "latency"), "maximize macro_f1 and minimize latency",
             "Trial 0 complete: macro_f1 0.5, latency 3.25 in 1.5 s; 1/10 finished"),
            ((), "maximize and minimize",
             "Trial 0 complete: values 0.5, 3.25 in 1.5 s; 1/10 finished"),
        ],
    )  # fmt: skip
    def test_values_of_several_objectives_have_the_names_of_their_metrics(
        self, metrics: tuple[str, ...], goal: str, said: str
    ) -> None:
        display, stream = plain(Clock())
        display(started(directions=("maximize", "minimize"), metrics=metrics))
        display(finish(0, 0.5, 3.25))
        assert f"Study 'study' ({goal}): 0/10" in stream.getvalue()
        assert said in stream.getvalue()

    def test_trials_that_end_together_get_a_line_each(self) -> None:
        display, stream = plain(Clock())
        display(started(workers=12, target=12))
        for number in range(12):
            display(finish(number, 1.0))
        said = [line.split()[2:5] for line in stream.getvalue().splitlines() if "Trial" in line]
        assert said == [["Trial", str(number), "complete:"] for number in range(12)]

    def test_a_fast_run_gets_three_lines_a_second(self) -> None:
        clock = Clock()
        display, stream = plain(clock)
        with display:
            display(started(target=1000))
            for number in range(1000):
                clock.now += 0.01
                display(finish(number, 1.0))
            display(ended())
        progress = [line for line in stream.getvalue().splitlines() if "Trial" in line]
        said = [line.partition("complete")[0].split()[-1] for line in progress]
        first, second = [*range(15), 499], [*range(500, 515), 999]
        assert said == [str(number) for number in (*first, *second)]
        assert [line for line in progress if "(+" in line] == [progress[15], progress[31]]
        for held in (progress[15], progress[31]):
            assert held.endswith(" (+484 more trials; at most 15 lines in 5 s)")

    def test_any_event_flushes_suppressed_lines(self) -> None:
        clock = Clock()
        display, stream = plain(clock)
        for event in (started(), *(finish(number, 1.0) for number in range(16))):
            display(event)
        assert "Trial 15" not in stream.getvalue()
        clock.now += 5.0
        display(ev.TrialReported(2, 1, 0.5))
        assert "Trial 15" in stream.getvalue()

    def test_faults_are_printed_with_the_culprit_once_it_is_final(self) -> None:
        display, stream = plain(Clock())
        display(started())
        for decision in ("failed", "retry in 1.0 s", "pruned", "halt"):
            display(fault(4, decision))
        said = [line for line in stream.getvalue().splitlines() if "crash" in line]
        assert said == [
            f"[supermax 0:00] Trial 4, attempt 1: crash{culprit}; {decision}; "
            "The process was killed."
            for culprit, decision in (
                (" (objective)", "failed"),
                ("", "retry in 1.0 s"),
                (" (objective)", "pruned"),
                (" (objective)", "halt"),
            )
        ]

    def test_repeated_faults_are_counted(self) -> None:
        clock = Clock()
        display, stream = plain(clock)
        with display:
            display(started())
            for number in range(50):
                display(fault(number, "failed"))
                display(ev.Notice("The storage is slow."))
            clock.now += 5.0
            display(ev.CellStarted(1, 4242))
            display(fault(50, "failed"))
        lines = stream.getvalue().splitlines()
        faults = [line for line in lines if "crash" in line]
        assert len(faults) == 5
        assert "Trial 49" in faults[3]
        assert faults[3].endswith("(+46 more)")
        notices = [line for line in lines if "slow" in line]
        assert len(notices) == 4
        assert notices[3].endswith("The storage is slow. (+46 more)")

    def test_an_error_flushes_suppressed_lines(self) -> None:
        display, stream = plain(Clock())

        def fail() -> None:
            with display:
                for event in (started(), *(finish(number, 1.0) for number in range(16))):
                    display(event)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fail()
        lines = stream.getvalue().splitlines()
        assert "Trial 15 complete" in lines[-2]
        assert lines[-1] == "[supermax 0:00] The run ended early: 16/10 finished"

    @pytest.mark.parametrize("name", HOSTILE)
    def test_a_hostile_name_stays_on_its_line(self, name: str) -> None:
        display, stream = plain(Clock())
        display(started(name=name, finished=10))
        assert len(stream.getvalue().splitlines()) == 1
        assert "\x1b" not in stream.getvalue()

    def test_a_closed_stream_is_ignored(self) -> None:
        display, stream = plain(Clock())
        stream.close()
        with display:
            display(started())
            display(ended())

    def test_a_closed_pipe_is_ignored(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        stream = os.fdopen(writer, "w")
        with PlainDisplay(stream) as display:
            display(started())
            display(ended())
        with pytest.raises(BrokenPipeError):  # the pipe was broken indeed
            stream.close()
