"""End of a search by itself: the noise of its metric, beside which a gain counts."""

from __future__ import annotations

from optuna.study import Study
from optuna.trial import FrozenTrial

from supermax._util.attributes import RACE, RESULT
from supermax.engine.run.no_gain import WhenNoGain
from supermax.results.noise import noise_of
from supermax.results.race import read_race


def with_noise(stop: WhenNoGain | None, study: Study, metric: str) -> WhenNoGain | None:
    """Return the rule with the noise of an agent's metric on the validation rows, unless it names
    a noise itself."""
    if stop is None or stop.noise is not None:
        return stop
    race = read_race(study.user_attrs.get(RACE))

    def noise(best: FrozenTrial) -> float | None:
        return noise_of(best.user_attrs.get(RESULT), metric, best.values[0], race)

    return WhenNoGain(noise)
