"""End of a search by itself, once further trials are not expected to improve the best value.

    finished trials ──GainWatch.look()──▶ expected_gain() ──over──▶ attribute of the study
                                                                 └▶ no new trials

The decision is stored on the study before the run acts on it: after a kill, and in every other
run that stops by itself, it counts as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from supermax._util.attributes import NO_GAIN
from supermax._util.text import counted
from supermax.engine import events
from supermax.engine.gain import Gain, Tried, expected_gain, read_gain
from supermax.engine.ranking import best_of, broken, end_of
from supermax.engine.storage.history import TrialHistory
from supermax.errors import UserError

WHEN_NO_GAIN = "when_no_gain"
_NEW_SHARE = 50  # one of so many trials is new when the gain is estimated again
GO_ON = "To go on, call again with stop=None (for a search: --stop never)."


@dataclass(frozen=True)
class WhenNoGain:
    """Rule by which a run ends by itself: further trials are expected to improve the best value by
    less than its noise.

    The gain is estimated once 50 trials have finished, of half as many further trials as there
    were. Running trials finish, and no new ones start. The study keeps the decision: the next run
    with this rule does not go on, one without it does.

    Args:
        noise:
            Error of a value, such as the standard error of an accuracy on the validation data; or
            a function that returns it for a finished trial, or :obj:`None`. :obj:`None`:
            improvements below 5 % of the distance from the median to the best value do not count.
    """

    noise: float | Callable[[FrozenTrial], float | None] | None = None

    def noise_of(self, best: FrozenTrial) -> float | None:
        """Return the error of the value of the best trial; None: unknown."""
        found: Any = self.noise(best) if callable(self.noise) else self.noise
        if found is not None and not isinstance(found, Real):
            raise UserError(
                f"noise of WhenNoGain must return a number or None, but for trial {best.number} "
                f"it returned {found!r:.80}."
            )
        noise = math.nan if found is None else float(found)
        return noise if math.isfinite(noise) and noise > 0 else None


def when_to_stop(stop: Literal["when_no_gain"] | WhenNoGain | None) -> object:
    """Return the rule that an argument names. Another value is returned as it is, to be refused
    with the other arguments."""
    return WhenNoGain() if stop == WHEN_NO_GAIN else stop


class GainWatch:
    """Expected gain of a run's study, and whether the study is to end."""

    def __init__(
        self,
        study: Study,
        rule: WhenNoGain | None,
        history: Callable[[], TrialHistory],
        emit: events.Listener,
    ) -> None:
        self._study, self._rule = study, rule
        self._history, self._emit = history, emit
        self._looked_at = 0  # number of finished trials
        self._noise: tuple[int, float | None] | None = None  # of the best trial, by its number
        self.gain: Gain | None = None
        """Last estimate."""
        self.over = False
        """True: no new trials start, since no gain is expected."""

    def begin(self) -> None:
        """Continue with the decision of an earlier run, or clear it if this run does not stop by
        itself."""
        found = self._stored()
        if found is not None and self._rule is None:
            self._store(None)
        elif found is not None:
            self._end(found, "has ended by itself earlier")

    def look_at_others(self) -> None:
        """End the run if another one on the study has found that no gain is expected."""
        if self._rule is not None and not self.over and (found := self._stored()) is not None:
            self._end(found, "ends by itself, as another run has decided")

    def look(self, finished: int, paused: Container[int]) -> None:
        """Estimate the gain if enough of the `finished` trials are new, and end the study if it is
        over. `paused`: numbers of the paused trials."""
        if self._rule is None or self.over:
            return
        if finished - self._looked_at <= finished // _NEW_SHARE:
            return
        self._looked_at = finished
        trials, directions = self._history().trials, self._study.directions
        tried = tried_of(trials, directions[0], paused)
        best = best_of(trials, directions)
        if best is None:
            return
        if self._noise is None or self._noise[0] != best.number:
            self._noise = best.number, self._rule.noise_of(best)
        if (gain := expected_gain(tried, self._noise[1])) is None:
            return
        if gain.over:
            self._store(gain)
            self._end(gain, "ends by itself")
        else:
            self.gain = gain
            self._emit(events.GainEstimated(gain))

    def _end(self, gain: Gain, how: str) -> None:
        self.gain, self.over = gain, True
        self._study._stop_flag = True
        self._emit(events.GainEstimated(gain))
        why = f"since no further gain is expected after {counted(gain.after, 'trial')} ({gain})"
        self._emit(events.Notice(f"The search {how}, {why}. {GO_ON}"))

    def _stored(self) -> Gain | None:
        storage, study_id = self._study._storage, self._study._study_id
        return read_gain(storage.get_study_system_attrs(study_id).get(NO_GAIN))

    def _store(self, gain: Gain | None) -> None:
        stored = None if gain is None else gain.data()
        self._study._storage.set_study_system_attr(self._study._study_id, NO_GAIN, stored)


def tried_of(
    trials: list[FrozenTrial], direction: StudyDirection, paused: Container[int] = ()
) -> list[Tried]:
    """Return finished and paused trials as those whose gain is estimated, by number."""
    sign = -1.0 if direction is StudyDirection.MINIMIZE else 1.0
    return [
        _tried(trial, sign)
        for trial in trials
        if trial.state.is_finished() or trial.number in paused
    ]


def _tried(trial: FrozenTrial, sign: float) -> Tried:
    value = None
    if trial.state is TrialState.COMPLETE and not broken(trial):
        value = sign * trial.values[0]
    known = value is not None and math.isfinite(value)
    return Tried(end_of(trial), value if known else None)
