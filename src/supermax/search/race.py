"""Race of the best configurations at the end of a search: each is trained with fresh seeds, or on
the folds of a cross-validation. The best of the search within one standard error of the best mean
wins.

study ──contestants──▶ race_state() ──schedule──▶ run on the race's own study ──scores──▶ again …
                           └──▶ RaceRecord, an attribute of the study
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, islice
from typing import Any, Literal

from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from supermax._util.attributes import EVALUATED, RACE, REPLICATE, SCHEDULE, plain_params
from supermax._util.text import counted
from supermax.engine.ranking import ranked
from supermax.engine.run.options import RunOptions
from supermax.engine.summary import Summary
from supermax.errors import UserError
from supermax.results.race import Contestant, RaceRecord, read_race
from supermax.search.race_rules import (
    FEWEST_SEEDS,
    MOST_SEEDS,
    Pair,
    RaceRules,
    RaceState,
    race_state,
)
from supermax.search.spaces import SEED
from supermax.studies import explain_write_errors, open_race
from supermax.tasks.objective import AgentObjective
from supermax.tasks.replicates import FIRST_SEED, ReplicateObjective
from supermax.training.data.examples import Corpus
from supermax.training.data.splits import Splits, cross_validation

FEWEST, MOST = 3, 8
"""Configurations in a race, by default."""
TRIALS_EACH = 15
"""Trials of the search for each configuration in its race, by default."""
FEWEST_TRIALS = 10
"""Trials of a search below which it has no race by default: the race would take longer than the
search, and little was selected."""
CROSS_VALIDATION = "cross-validation"
"""Name of all splits but test, in a race over folds."""
QUICK = "demo"
"""Preset whose searches have no race by default."""
Wanted = bool | int | Literal["auto"]
Schedule = list[Pair | None]


def race_size(wanted: Wanted, preset: str, trials: int, folds: int | None = None) -> int:
    """Return the most configurations that race after a search of `trials` trials; 0: no race.
    Raises UserError if folds are given for a race that is turned off."""
    if folds and wanted != "auto" and not wanted:
        raise UserError("The race, which folds are for, is turned off: leave out race or folds.")
    if wanted == "auto":
        wanted = bool(folds) or (preset != QUICK and trials >= FEWEST_TRIALS)
    if isinstance(wanted, bool):
        return max(FEWEST, min(MOST, round(trials / TRIALS_EACH))) if wanted else 0
    return int(wanted)


def race_text(size: int, trials: int, folds: int | None = None) -> str:
    """Return what a race does: the best 5 of 60 configurations over 3 to 5 fresh seeds."""
    fewest, most = min(FEWEST_SEEDS, folds or MOST_SEEDS), folds or MOST_SEEDS
    number = f"{most}" if fewest == most else f"{fewest} to {most}"
    kind = "folds" if folds else "fresh seeds"
    return f"the best {size} of {counted(trials, 'configuration')} over {number} {kind}"


def with_time_left(options: RunOptions, spent: float) -> RunOptions:
    """Return options whose `timeout` includes the seconds that the search has run."""
    if options.timeout is None:
        return options
    pause = time.monotonic() + max(0.0, options.timeout - spent)
    return replace(options, timeout=None, deadline=min(pause, options.deadline or math.inf))


def contestants_of(study: Study, size: int) -> list[FrozenTrial]:
    """Return the best trials of a search; [] if there are too few to race."""
    order = ranked(study.get_trials(deepcopy=False), study.directions)
    found = [trial for trial in order if math.isfinite(trial.values[0])][:size]
    return found if len(found) > 1 else []


def fresh_seeds(contestants: Sequence[FrozenTrial]) -> tuple[int, ...]:
    """Return seeds that no contestant had in the search. Studies of earlier versions searched
    them."""
    used = {plain_params(trial).get(SEED) for trial in contestants}
    return tuple(islice((seed for seed in count(FIRST_SEED) if seed not in used), MOST_SEEDS))


@dataclass(frozen=True)
class Race:
    """Race of the best configurations of a study.

    Its trainings are trials of a study of their own: they count for no `trials`, and no sampler
    sees them. What is stored there is never trained again.
    """

    study: Study
    objective: AgentObjective
    """Objective of the search."""
    size: int
    """Most configurations that race."""
    defaults: Mapping[str, Any] | None
    """Default configuration of the space."""
    run: Callable[[Study, ReplicateObjective, int], Summary]
    """Runs the study of the race until it has so many finished trials."""
    tell: Callable[[str], None]
    splits: Splits | None = None
    """Data of the search, if it races over folds."""
    folds: int | None = None
    """Folds of a cross-validation; None: fresh seeds on the split of the search."""

    def finish(self) -> tuple[RaceRecord | None, str | None]:
        """Run the race to its end, or until the run is stopped, and store its outcome.

        Return the outcome and what stopped the run; None and None: there is nothing to race."""
        contestants = contestants_of(self.study, self.size)
        if not contestants:
            return None, None
        rules = self._rules(contestants)
        race, known = self._opened(), -1
        state, schedule = self._state(race, contestants, rules)
        if state.next:
            trials = len(self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
            self.tell(f"Racing {race_text(len(contestants), trials, self.folds)}.")
        while state.next and known < _trained(state):
            schedule = self._scheduled(race, schedule, state.next, first=known < 0)
            known = _trained(state)
            objective = self._replicates(contestants, schedule)
            summary = self.run(race, objective, len(schedule))
            if summary.stopped_by is not None:
                return None, summary.stopped_by
            state, schedule = self._state(race, contestants, rules)
            if state.next and _trained(state) > known:
                self.tell(next_round_text(state, rules, self.folds))
        if state.next:
            self.tell("The race cannot go on: trainings are missing. Run the same command again.")
            return None, None
        return self._stored(contestants, state, rules), None

    def _opened(self) -> Study:
        """Open the study of the race, and store what its values are computed on."""
        race, evaluated = open_race(self.study, self.folds), self.study.user_attrs.get(EVALUATED)
        if self.folds is not None and self.splits is not None:
            examples = self.splits.seen.count(self.objective.agent)
            evaluated = {"split": CROSS_VALIDATION, "examples": examples}
        if evaluated is not None and EVALUATED not in race.user_attrs:
            with explain_write_errors(race._storage):
                race.set_user_attr(EVALUATED, evaluated)
        return race

    def _rules(self, contestants: Sequence[FrozenTrial]) -> RaceRules:
        if self.folds is None:
            return RaceRules(fresh_seeds(contestants))
        return RaceRules(tuple(range(self.folds)), fewest=min(FEWEST_SEEDS, self.folds))

    @cached_property
    def _data(self) -> tuple[tuple[Corpus, Corpus], ...]:
        if self.folds is None or self.splits is None:
            return ()
        return cross_validation(self.splits, self.folds)

    def _state(
        self, race: Study, contestants: Sequence[FrozenTrial], rules: RaceRules
    ) -> tuple[RaceState, Schedule]:
        """Return what the race needs, and its schedule, padded for trials beyond it."""
        trials = race.get_trials(deepcopy=False)  # before the schedule, which other runs extend
        schedule = schedule_of(race)
        schedule += [None] * (len(trials) - len(schedule))
        scores = scores_of(trials, schedule)
        maximize = self.study.directions[0] is StudyDirection.MAXIMIZE
        numbers = [trial.number for trial in contestants]
        return race_state(numbers, scores, rules, maximize=maximize), schedule

    def _scheduled(
        self, race: Study, schedule: Schedule, wanted: Sequence[Pair], *, first: bool
    ) -> Schedule:
        """Append trainings to the schedule, unless a trial will still run them.

        That is a trial which does not exist yet or, before the first run (`first`), an unfinished
        one: the first run continues the trials of runs that were stopped."""
        trials = race.get_trials(deepcopy=False)
        to_come = {
            pair
            for number, pair in enumerate(schedule)
            if number >= len(trials) or (first and not trials[number].state.is_finished())
        }
        longer = [*schedule, *(pair for pair in wanted if pair not in to_come)]
        with explain_write_errors(race._storage):
            if longer != schedule_of(race):
                race.set_user_attr(SCHEDULE, longer)
        return longer

    def _replicates(
        self, contestants: Sequence[FrozenTrial], schedule: Schedule
    ) -> ReplicateObjective:
        fields = {**vars(self.objective), "top": 0}  # no weights
        params = {trial.number: plain_params(trial) for trial in contestants}
        # A contestant of an earlier race may still be scheduled.
        known = [pair if pair is None or pair[0] in params else None for pair in schedule]
        return ReplicateObjective(**fields, schedule=known, params=params, folds=self._data)

    def _stored(
        self, contestants: Sequence[FrozenTrial], state: RaceState, rules: RaceRules
    ) -> RaceRecord:
        """Return the outcome of the race, stored on the study."""
        rows = tuple(
            Contestant(
                trial.number,
                trial.values[0],
                tuple(None if math.isnan(score) else score for score in standing.scores),
                standing.mean,
                standing.half_width,
                standing.stopped,
                "seed" if self.folds is None else "fold",
            )
            for trial, standing in zip(contestants, state.standings, strict=True)
        )
        longest = max(len(row.scores) for row in rows)
        record = RaceRecord(rules.seeds[:longest], rows, state.winner, self._default())
        with explain_write_errors(self.study._storage):
            if record != read_race(self.study.user_attrs.get(RACE)):
                self.study.set_user_attr(RACE, record.data())
        return record

    def _default(self) -> tuple[int, float] | None:
        """Return the first trial of the default configuration that has a value."""
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            same = {**plain_params(trial), SEED: None} == {**(self.defaults or {}), SEED: None}
            if same and math.isfinite(trial.values[0]):
                return trial.number, trial.values[0]
        return None


def next_round_text(state: RaceState, rules: RaceRules, folds: int | None) -> str:
    """Return which configurations need another training: the run that follows has a new target."""
    going = {contestant for contestant, _ in state.next}
    scored = (len(each.scores) for each in state.standings if each.contestant in going)
    return (
        f"{len(going)} of {counted(len(state.standings), 'configuration')} race on, since no mean "
        f"is clearly the best: {'fold' if folds else 'seed'} {min(scored) + 1} of up to "
        f"{len(rules.seeds)}."
    )


def _trained(state: RaceState) -> int:
    return sum(len(standing.scores) for standing in state.standings)


def schedule_of(race: Study) -> Schedule:
    stored = race.user_attrs.get(SCHEDULE, [])
    return [None if pair is None else (int(pair[0]), int(pair[1])) for pair in stored]


def scores_of(trials: Sequence[FrozenTrial], schedule: Schedule) -> dict[Pair, float]:
    """Return the values of a race's finished trials by trial of the search and seed; NaN: it
    failed. The first of two trials with the same training counts."""
    scores: dict[Pair, float] = {}
    for trial in trials:
        stored = trial.user_attrs.get(REPLICATE)
        pair = schedule[trial.number] if stored is None else (int(stored[0]), int(stored[1]))
        if pair is not None and trial.state.is_finished():
            complete = trial.state is TrialState.COMPLETE
            scores.setdefault(pair, trial.values[0] if complete else math.nan)
    return scores
