"""Asynchronous successive halving by promotion: which trials pause, and which continue.

    report ──▶ Ladder.add ──▶ at a rung, not among the best ──▶ pause
    free worker ──▶ Ladder.promotable ──▶ best paused trial among the best of its rung

A rung is a number of reports. Every trial that gets there has its best value so far recorded.
Rungs are counted from the top: of 27 reports, a reduction factor of 3 has rungs at 9, 3 and 1. A
short training often ranks configurations differently from a long one, so a lower rung pauses
trials only after it has ranked the trials of this study as the next and the highest rung did.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real

from optuna.pruners import BasePruner
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

_MOST_PAIRS = 64  # trials on which two rungs are compared
_GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are spread evenly over [0, 1)


class Promotion(BasePruner):
    """Pruner that pauses trials and continues the best ones from their checkpoints.

    A trial that reaches a rung is paused unless it is among the best ``1 / reduction_factor`` of
    the trials there. A free worker continues the best paused trial that is among the best of its
    rung by now, from its checkpoint; a new trial starts only if there is none. Paused trials that
    are never continued end as PRUNED once the study has its number of trials.

    The objective saves a checkpoint in ``trial.checkpoint_dir`` before it reports; without one, a
    continued trial starts again. Only :func:`supermax.optimize` pauses trials: in
    ``study.optimize``, trials that would pause are pruned.

    Args:
        reduction_factor:
            One of so many trials continues after a rung.
        max_reports:
            Number of reports of a trial that is not stopped. :obj:`None`: as many as the complete
            trials of the study; the first trials are not paused then.
        min_reports:
            Lowest rung: number of reports before which no trial is paused.
        run_through:
            Share of the trials that are never paused. They show whether the rungs rank trials
            correctly, and complete configurations that short trainings underrate.
        min_agreement:
            Rank correlation with the next and with the highest rung from which on a rung below
            the highest one pauses trials. -1: from the start.
        min_trials:
            Number of trials that have reached the highest rung before the correlation counts.
    """

    def __init__(
        self,
        *,
        reduction_factor: int = 3,
        max_reports: int | None = None,
        min_reports: int = 1,
        run_through: float = 0.2,
        min_agreement: float = 0.5,
        min_trials: int = 8,
    ) -> None:
        _require_integer("reduction_factor", reduction_factor, 2)
        _require_integer("min_reports", min_reports, 1)
        if max_reports is not None:
            _require_integer("max_reports", max_reports, 1)
        if max_reports is not None and max_reports < min_reports:
            raise ValueError(
                f"max_reports must be at least min_reports ({min_reports}), not {max_reports}."
            )
        _require_number("run_through", run_through, 0)
        _require_number("min_agreement", min_agreement, -1)
        _require_integer("min_trials", min_trials, 2)
        self.reduction_factor = reduction_factor
        self.max_reports = max_reports
        self.min_reports = min_reports
        self.run_through = run_through
        self.min_agreement = min_agreement
        self.min_trials = min_trials

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether the trial would pause, for Optuna's own loop."""
        trials = study.get_trials(deepcopy=False)
        ladder = Ladder(self, study.direction)
        ladder.update(t for t in trials if t.number != trial.number)
        return ladder.pauses(trial.number, reports_of(trial), for_good=True)

    def runs_through(self, number: int) -> bool:
        """Return whether this trial is never paused."""
        return (number * _GOLDEN) % 1.0 >= 1 - self.run_through


def _require_integer(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, not {value!r:.80}.")


def _require_number(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not least <= float(value) <= 1:
        raise ValueError(f"{name} must be a number from {least} to 1, not {value!r:.80}.")


class Ladder:
    """Values of the trials at each rung. Pure: it knows neither cells nor checkpoints."""

    def __init__(self, pruner: Promotion, direction: StudyDirection) -> None:
        self._pruner = pruner
        self._sign = -1.0 if direction is StudyDirection.MAXIMIZE else 1.0
        self._losses: dict[int, list[float]] = {}
        """By trial: the lowest loss up to each report."""
        self._max_reports = pruner.max_reports
        self.rungs: tuple[int, ...] = ()
        """Numbers of reports, ascending."""
        self._ranked: dict[int, list[tuple[float, int]]] = {}
        """By rung: the loss and number of each trial that has reached it, sorted."""
        self._trusted: set[int] = set()
        self._paused: set[int] = set()
        self._passed: dict[int, int] = {}
        """By trial that was continued: number of the reports that it had then."""
        self._waiting: dict[int, list[tuple[float, int]]] = {}
        """By rung, 0 for none: the loss there and number of each paused trial, sorted."""
        self._set_rungs()

    def update(self, trials: Iterable[FrozenTrial]) -> None:
        """Add the reports of these trials."""
        for trial in trials:
            values = self.read(trial)
            if trial.state is TrialState.COMPLETE and self._pruner.max_reports is None:
                self._extend(len(values))
            if values:
                self.add(trial.number, values)

    def read(self, trial: FrozenTrial) -> list[float]:
        """Return the reports of a trial, one number each."""
        return reports_of(trial)

    def add(self, number: int, values: Sequence[float]) -> None:
        """Record the values that a trial has reported so far."""
        known = self._losses.setdefault(number, [])
        losses = lowest_so_far([self._sign * value for value in values])
        reached = [rung for rung in self.rungs if len(known) < rung <= len(losses)]
        self._losses[number] = max(known, losses, key=len)
        for rung in reached:
            bisect.insort(self._ranked[rung], (losses[rung - 1], number))

    def pauses(self, number: int, values: Sequence[float], *, for_good: bool = False) -> bool:
        """Return whether a trial with these reports, the last one just now, pauses. `for_good`: it
        cannot continue later, so the best one of a rung never does."""
        # A trial that was continued without a checkpoint has started again.
        passed = len(values) <= self._passed.get(number, 0)
        self.add(number, values)
        if passed or self._pruner.runs_through(number) or len(values) not in self.rungs:
            return False
        rung = len(values)
        if not self.trusts(rung) or (for_good and self._ranked[rung][0][1] == number):
            return False
        return not self._among_best(number, rung)

    def is_last(self, reports: int) -> bool:
        """Return whether a trial with so many reports has made all of them."""
        return self._max_reports is not None and reports >= self._max_reports

    def pause(self, number: int) -> None:
        """Note that a trial waits at the rung that it has reached."""
        self._paused.add(number)
        self._add_waiting(number)

    def resume(self, number: int) -> None:
        """Note that a trial does not wait any more."""
        self._passed[number] = len(self._losses[number])
        self._paused.discard(number)
        self._waiting[self._rung_of(number)].remove(self._place(number))

    def promotable(self) -> int | None:
        """Return the number of the paused trial to continue, if any is among the best of its
        rung. Higher rungs come first."""
        for rung in reversed((0, *self.rungs)):
            if self._waiting[rung]:
                number = self._waiting[rung][0][1]
                if rung == 0 or self._among_best(number, rung):
                    return number
        return None

    def best(self) -> int | None:
        """Return the best of the paused trials that are furthest; None: there is none."""
        furthest = [self._waiting[rung] for rung in (0, *self.rungs) if self._waiting[rung]]
        return furthest[-1][0][1] if furthest else None

    def worst_first(self) -> list[int]:
        """Return the numbers of the paused trials: lower rungs first, and in them worse trials."""
        return [n for rung in (0, *self.rungs) for _, n in reversed(self._waiting[rung])]

    def trusts(self, rung: int) -> bool:
        """Return whether the rung ranks the trials as the next one and the highest one do. The
        highest one always counts.

        The next one alone is not enough: two very short trainings often agree with each other, and
        not with a long one.
        """
        highest = self.rungs[-1]
        if rung in self._trusted or rung == highest:
            return True
        numbers = sorted(number for _, number in self._ranked[highest])[:_MOST_PAIRS]
        if self._pruner.min_agreement > -1 and len(numbers) < self._pruner.min_trials:
            return False
        above = self.rungs[self.rungs.index(rung) + 1]
        if self.trusts(above) and all(
            self._agreement(numbers, rung, other) >= self._pruner.min_agreement
            for other in {above, highest}
        ):
            self._trusted.add(rung)
        return rung in self._trusted

    def _agreement(self, numbers: Sequence[int], rung: int, other: int) -> float:
        """Return the rank correlation of these trials' losses at two rungs."""
        curves = [self._losses[number] for number in numbers]
        return rank_correlation([(curve[rung - 1], curve[other - 1]) for curve in curves])

    def _among_best(self, number: int, rung: int) -> bool:
        ranked = self._ranked[rung]
        place = bisect.bisect_left(ranked, (self._losses[number][rung - 1], number))
        return place < len(ranked) // self._pruner.reduction_factor

    def _rung_of(self, number: int) -> int:
        """Return the highest rung that a trial has reached; 0: none."""
        index = bisect.bisect_right(self.rungs, len(self._losses[number]))
        return self.rungs[index - 1] if index else 0

    def _add_waiting(self, number: int) -> None:
        bisect.insort(self._waiting[self._rung_of(number)], self._place(number))

    def _place(self, number: int) -> tuple[float, int]:
        losses = self._losses[number]  # none if the machine has crashed before they were on disk
        return losses[self._rung_of(number) - 1] if losses else math.inf, number

    def _extend(self, reports: int) -> None:
        if self._max_reports is None or reports > self._max_reports:
            self._max_reports = reports
            self._set_rungs()

    def _set_rungs(self) -> None:
        factor, lowest = self._pruner.reduction_factor, self._pruner.min_reports
        self.rungs = rungs_below(self._max_reports or 0, factor, lowest)
        self._ranked = {
            rung: sorted((c[rung - 1], n) for n, c in self._losses.items() if len(c) >= rung)
            for rung in self.rungs
        }
        self._trusted &= set(self.rungs)
        self._waiting = {rung: [] for rung in (0, *self.rungs)}
        for number in self._paused:
            self._add_waiting(number)


def rungs_below(top: int, reduction_factor: int, lowest: int) -> tuple[int, ...]:
    """Return the rungs of trials with `top` reports, ascending: top / factor, top / factor², …"""
    rungs = set()
    power = reduction_factor
    while (rung := round(top / power)) >= lowest and rung >= 1:
        rungs.add(rung)
        power *= reduction_factor
    return tuple(sorted(rung for rung in rungs if rung < top))


def reports_of(trial: FrozenTrial) -> list[float]:
    """Return the reported values of a trial, by step."""
    return [trial.intermediate_values[step] for step in sorted(trial.intermediate_values)]


def lowest_so_far(losses: Sequence[float]) -> list[float]:
    """Return the lowest loss up to each report. NaN counts as the worst one."""
    return list(itertools.accumulate((math.inf if math.isnan(x) else x for x in losses), min))


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Kendall's tau-b; 0 where one side has only ties."""
    same = apart = tied_left = tied_right = 0
    for (a, b), (c, d) in itertools.combinations(pairs, 2):
        left, right = _compare(a, c), _compare(b, d)
        same += left * right > 0
        apart += left * right < 0
        tied_left += left == 0 != right
        tied_right += right == 0 != left
    scale = math.sqrt((same + apart + tied_left) * (same + apart + tied_right))
    return (same - apart) / scale if scale else 0.0


def _compare(one: float, other: float) -> int:
    return (one > other) - (one < other)
