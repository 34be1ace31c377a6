"""Trials that pause at rungs and are promoted."""

from __future__ import annotations

import math
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

import supermax
from supermax.engine import events
from supermax.engine.jobs.job import Job
from supermax.engine.promotion.ladder import Ladder, Promotion, rank_correlation, rungs_below
from supermax.engine.promotion.paused import PausedTrials
from supermax.engine.storage.history import TrialHistory
from supermax.engine.storage.run_folder import TrialFolder
from tests.engine.programs import loss_after, nine_epochs

MINIMIZE = StudyDirection.MINIMIZE


def always(**options: Any) -> Promotion:
    """Return a Promotion whose rungs all count from the start, for trials with nine reports."""
    return Promotion(**{"max_reports": 9, "min_agreement": -1, "run_through": 0, **options})


# The ladder.


@pytest.mark.parametrize(
    ("top", "lowest", "rungs"),
    [(27, 1, (1, 3, 9)), (9, 2, (3,)), (10, 1, (1, 3)), (4, 1, (1,)), (2, 1, (1,)), (1, 1, ())],
)
def test_rungs_are_counted_from_the_top(top: int, lowest: int, rungs: tuple[int, ...]) -> None:
    assert rungs_below(top, 3, lowest) == rungs


losses = st.one_of(st.integers(0, 5).map(float), st.just(math.nan))
"""With many ties."""


@given(st.lists(st.lists(losses, min_size=9, max_size=9), max_size=40), st.data())
def test_ladder_promotes_the_best_of_a_rung(
    curves: list[list[float]], data: st.DataObject
) -> None:
    """Trials arrive at rungs in any order. Compared with sorting all of them each time."""
    ladder = Ladder(always(), MINIMIZE)
    reached: dict[int, int] = {}
    paused: dict[int, int] = {}
    running = dict.fromkeys(range(len(curves)), 0)

    def rank(number: int, rung: int) -> tuple[float, int]:
        seen = [math.inf if math.isnan(v) else v for v in curves[number][:rung]]
        return min(seen), number

    def best(rung: int) -> list[int]:
        there = sorted((n for n, r in reached.items() if r >= rung), key=lambda n: rank(n, rung))
        return there[: len(there) // 3]

    while running or ladder.promotable() is not None:
        if (promoted := ladder.promotable()) is not None:
            rung = paused.pop(promoted)
            waiting = [n for n, r in paused.items() if r == rung]
            assert promoted in best(rung)
            assert all(rank(promoted, rung) < rank(other, rung) for other in waiting)
            ladder.resume(promoted)
            running[promoted] = rung
        else:
            number = data.draw(st.sampled_from(sorted(running)))
            reports = running[number] = running[number] + 1
            if reports == 9:
                del running[number]
                continue
            if reports in (1, 3):
                reached[number] = reports
            pauses = ladder.pauses(number, curves[number][:reports])
            assert pauses == (reports in (1, 3) and number not in best(reports))
            if pauses:
                del running[number]
                paused[number] = reports
                ladder.pause(number)
    assert all(number not in best(rung) for number, rung in paused.items())
    assert (ladder.best() is None) == (not paused)


def test_lower_rung_counts_once_it_ranks_as_the_next_one() -> None:
    ladder = Ladder(always(min_agreement=0.5, min_trials=8), MINIMIZE)
    for number in range(8):  # the order after one report is that after three
        assert not ladder.pauses(number, [float(number)])
        assert ladder.pauses(number, [float(number)] * 3) == (number >= 1 or True)
    assert ladder.trusts(1)
    assert ladder.pauses(8, [9.0])


def test_lower_rung_does_not_count_while_it_ranks_otherwise() -> None:
    ladder = Ladder(always(min_agreement=0.5, min_trials=8), MINIMIZE)
    for number in range(30):
        assert not ladder.pauses(number, [float(number)])
        ladder.pauses(number, [float(number), 0.0, -float(number)])
    assert not ladder.trusts(1)


def test_lower_rung_does_not_count_while_only_the_next_one_ranks_alike() -> None:
    """Each rung has a correlation of 0.57 with the next one; 1 has 0.14 with 9."""
    ladder = Ladder(always(max_reports=27, min_agreement=0.5, min_trials=8), MINIMIZE)
    first, second = [3, 2, 1, 0, 7, 6, 5, 4], [3, 2, 1, 0, 4, 5, 6, 7]
    for number in range(8):
        ladder.add(number, [20.0 + first[number], *[10.0 + second[number]] * 7, float(number)])
    assert ladder.trusts(9)
    assert ladder.trusts(3)
    assert not ladder.trusts(1)


def test_a_share_of_trials_is_never_paused() -> None:
    pruner = always(run_through=0.1)
    ladder = Ladder(pruner, MINIMIZE)
    through = [n for n in range(200) if not ladder.pauses(n, [float(n)]) and n > 5]
    assert len(through) == pytest.approx(20, abs=3)
    assert through == [n for n in range(6, 200) if pruner.runs_through(n)]


def test_paused_trial_whose_reports_are_lost_continues() -> None:
    ladder = Ladder(always(), MINIMIZE)
    ladder.add(0, [])
    ladder.pause(0)
    assert ladder.promotable() == 0
    ladder.resume(0)
    assert ladder.promotable() is None


def test_trial_whose_attempt_fails_before_it_has_paused_pauses_in_the_next_one() -> None:
    ladder = Ladder(always(), MINIMIZE)
    for number in range(5):
        ladder.add(number, [0.1] * 9)
    assert ladder.pauses(7, [9.0])
    assert ladder.pauses(7, [9.0])


def test_trial_that_starts_again_does_not_pause_where_it_was() -> None:
    ladder = Ladder(always(), MINIMIZE)
    for number in range(6):
        assert ladder.pauses(number, [float(number)])
        ladder.pause(number)
    assert ladder.promotable() == 0
    ladder.resume(0)
    for number in range(6, 9):  # by now it would not be among the best
        ladder.add(number, [-float(number)])
    assert not ladder.pauses(0, [0.0])
    assert not ladder.pauses(0, [0.0, 0.0])
    assert ladder.pauses(0, [0.0, 0.0, 0.0])


def test_worst_paused_trials_come_first() -> None:
    ladder = Ladder(always(), MINIMIZE)
    for number, values in enumerate([[2.0], [3.0, 3.0, 3.0], [9.0], [4.0, 4.0, 4.0], []]):
        ladder.add(number, values)
        ladder.pause(number)
    assert ladder.worst_first() == [4, 2, 0, 3, 1]


def test_trial_that_has_continued_past_a_rung_hides_no_better_one() -> None:
    """Its loss at the rung counts, as for the others."""
    ladder = Ladder(always(), MINIMIZE)
    for number, values in enumerate([[5.0, 0.1], [1.0], [9.0], [9.0]]):
        ladder.add(number, values)
        ladder.pause(number)
    assert ladder.promotable() == 1


def test_paused_trial_that_another_run_has_finished_is_dropped() -> None:
    study = optuna.create_study(pruner=always())
    history = TrialHistory(study._study_id)
    emitted: list[events.Event] = []
    paused = PausedTrials(study, lambda: history, emitted.append)
    trial = study.ask()
    trial.report(1.0, 1)
    paused.add(Job(trial, TrialFolder(Path("unused"))))
    for epoch in range(2, 10):
        trial.report(1.0, epoch)
    study.tell(trial, 1.0)
    history.update(study.get_trials())
    assert not paused.has_next(may_fill=False)
    assert paused.drop({trial._trial_id}) == []
    assert len(paused) == 0
    assert emitted == [events.TrialPaused(0, at_rung=True), events.TrialPaused(0)]


def test_without_max_reports_it_is_taken_from_complete_trials() -> None:
    ladder = Ladder(Promotion(), MINIMIZE)
    assert ladder.rungs == ()
    assert not ladder.pauses(0, [1.0, 2.0, 3.0])
    ladder.update([complete(0, 9), complete(1, 27), complete(2, 5)])
    assert ladder.rungs == (1, 3, 9)


def complete(number: int, reports: int) -> FrozenTrial:
    curve = dict.fromkeys(range(reports), 1.0)
    trial = create_trial(value=1.0, intermediate_values=curve)
    trial.number = number
    return trial


@pytest.mark.parametrize(
    ("pairs", "tau"),
    [
        ([(1, 1), (2, 2), (3, 3)], 1),
        ([(1, 3), (2, 2), (3, 1)], -1),
        ([(1, 1), (2, 3), (3, 2)], 1 / 3),
        ([(1, 1), (1, 2)], 0),
        ([], 0),
    ],
)
def test_rank_correlation(pairs: list[tuple[float, float]], tau: float) -> None:
    assert rank_correlation(pairs) == pytest.approx(tau)


@pytest.mark.slow  # importing scipy.stats takes seconds
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=12))
def test_rank_correlation_is_kendalls_tau(pairs: list[tuple[float, float]]) -> None:
    stats = pytest.importorskip("scipy.stats")
    left, right = zip(*pairs, strict=True)
    if len(set(left)) > 1 and len(set(right)) > 1:
        expected = stats.kendalltau(left, right).statistic
        assert rank_correlation(pairs) == pytest.approx(expected)
    else:
        assert rank_correlation(pairs) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"reduction_factor": 1},
        {"min_reports": 0},
        {"max_reports": 2, "min_reports": 3},
        {"run_through": 1.5},
        {"min_agreement": 2},
        {"min_trials": 1},
        {"reduction_factor": 2.5},
        {"reduction_factor": math.nan},
        {"reduction_factor": "3"},
        {"max_reports": math.inf},
        {"max_reports": True},
        {"min_reports": 1.5},
        {"min_trials": None},
        {"run_through": "x"},
        {"min_agreement": math.nan},
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Promotion(**wrong)


def test_optunas_own_loop_prunes_instead() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1), pruner=always())
    study.optimize(_in_process, n_trials=30)
    states = Counter(trial.state for trial in study.trials)
    assert states[TrialState.PRUNED] > 15
    assert states[TrialState.COMPLETE] >= 3


def _in_process(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", -10, 10)
    for epoch in range(1, 10):
        trial.report(loss_after(x, epoch), epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss_after(x, 9)


# Runs.


@pytest.mark.usefixtures("quick")
class TestRun:
    @pytest.fixture
    def marks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("MARKS", str(tmp_path / "marks"))
        return tmp_path / "marks"

    def test_best_trials_complete_and_no_epoch_is_trained_twice(
        self, study: optuna.Study, marks: Path
    ) -> None:
        summary = supermax.optimize(
            study, nine_epochs, n_trials=30, workers=3, pruner=always(), progress=False
        )
        assert summary.finished == 30
        assert summary.trials["RUNNING"] == 0
        trained = [tuple(map(int, line.split())) for line in marks.read_text().splitlines()]
        assert Counter(trained).most_common(1)[0][1] == 1
        for trial in study.trials:
            assert sorted(epoch for number, epoch in trained if number == trial.number) == list(
                trial.intermediate_values
            )
        best = min(study.trials, key=lambda trial: loss_after(trial.params["x"], 9))
        assert study.best_trial.number == best.number
        assert len(trained) < 30 * 9 / 2
        stopped = Counter(max(trial.intermediate_values) for trial in study.trials)
        assert 3 <= stopped[9] <= 12

    @pytest.mark.parametrize("promoted", [True, pytest.param(False, marks=pytest.mark.slow)])
    def test_paused_trials_wait_for_the_next_run(
        self, study: optuna.Study, marks: Path, promoted: bool
    ) -> None:
        """With another pruner, all of them continue."""
        paused: set[int] = set()

        def stop_after_pauses(event: events.Event) -> None:
            if isinstance(event, events.TrialPaused) and len(paused) < 4:
                paused.add(event.number)
                if len(paused) == 4:
                    signal.raise_signal(signal.SIGINT)

        options: dict[str, Any] = {"n_trials": 12, "workers": 2}
        first = supermax.optimize(
            study, nine_epochs, **options, pruner=always(), progress=stop_after_pauses
        )
        assert first.stopped_by
        assert first.trials["RUNNING"] >= 3
        next_pruner = always() if promoted else optuna.pruners.NopPruner()
        second = supermax.optimize(
            study, nine_epochs, **options, pruner=next_pruner, progress=False
        )
        assert second.finished == 12
        assert second.trials["RUNNING"] == 0
        assert promoted == (second.trials["PRUNED"] > 0)
        trained = [tuple(map(int, line.split())) for line in marks.read_text().splitlines()]
        assert Counter(trained).most_common(1)[0][1] == 1

    @pytest.mark.slow
    def test_sampler_compares_paused_trials_with_complete_ones(self, study: optuna.Study) -> None:
        sampler = Recording(seed=1, n_startup_trials=4)
        study.sampler = sampler
        supermax.optimize(study, nine_epochs, n_trials=40, pruner=always(), progress=False)
        paused = {t.number for t in study.trials if t.state is TrialState.PRUNED}
        seen = [number for numbers in sampler.best for number in numbers if number in paused]
        assert seen


class Recording(optuna.samplers.TPESampler):
    """TPE that notes which trials it models as good."""

    best: list[list[int]]

    def _build_parzen_estimator(
        self, study: Any, search_space: Any, trials: Any, handle_below: bool
    ) -> Any:
        if handle_below:
            self.best = [*getattr(self, "best", []), [trial.number for trial in trials]]
        return super()._build_parzen_estimator(study, search_space, trials, handle_below)


def test_filler_that_has_made_its_last_report_completes() -> None:
    study = optuna.create_study(pruner=always(max_reports=2))
    paused = PausedTrials(study, lambda: TrialHistory(study._study_id), lambda _: None)
    job = Job(study.ask(), TrialFolder(Path()), filler=True)
    job.trial._cached_frozen_trial.intermediate_values = {1: 1.0, 2: 1.0}
    assert not paused.pauses(job, may_fill=False)
