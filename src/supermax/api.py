"""`supermax.Study`: a search from Python, as `supermax tune` does it, and what it came to.

settings ──from_config()──▶ Study ──run()──▶ frame(), figures(), report(), refit()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna

from supermax import planning, search
from supermax.engine.summary import Summary
from supermax.errors import UserError
from supermax.records import StudyRecord, TrialRecord, read
from supermax.settings import Resolved, Settings, resolve
from supermax.settings.resolving import Value, flattened
from supermax.settings.units import workers
from supermax.space.presets import presets
from supermax.space.versions import find_versions
from supermax.study import existing, without_password
from supermax.training.data.splits import Splits
from supermax.training.refit import Refit
from supermax.tuning import Tuned

if TYPE_CHECKING:
    import pandas
    from plotly.graph_objects import Figure


class Study:
    """A search over an agent. Nothing happens before run(); running again goes on."""

    def __init__(self, resolved: Resolved) -> None:
        self._resolved = resolved
        self._search: search.Search | None = None
        self._tuned: Tuned | None = None

    @classmethod
    def from_config(
        cls, config: str | Path | Mapping[str, Any] | None = None, **settings: Any
    ) -> Study:
        """From a YAML file as `supermax init` writes it, from a mapping, from keywords, or from
        a file with keywords over it. Raises UserError with all that is wrong."""
        file = Path(config).expanduser() if isinstance(config, (str, Path)) else None
        given: dict[str, Any] = {**(config if isinstance(config, Mapping) else {}), **settings}
        agent = given.pop("agent", None)
        if isinstance(given.get("data"), Path):
            given["data"] = str(given["data"])
        values = {
            key: Value(value, f"{key} of from_config", "from_config")
            for key, value, _ in flattened(given)
        }
        return cls(resolve(agent, file=file, flags=values, presets=presets(), parameters={}))

    @property
    def settings(self) -> Settings:
        return self._resolved.settings

    def plan(self, verbose: bool = False) -> list[str]:
        """Return what is about to be done, as `supermax tune` prints it; `verbose` as its -v."""
        return planning.plan(self._prepared(), verbose)

    def run(self, **options: Any) -> Study:
        """Search to the settings' number of trials. `options` go to supermax.optimize."""
        if "workers" in options:
            try:
                options["workers"] = workers(options["workers"])
            except ValueError as error:
                raise UserError(f"workers of run(): {error}.") from None
        prepared = self._prepared()
        self._tuned = prepared.tuning.run(**{**prepared.options, **options})
        return self

    def _prepared(self) -> search.Search:
        if self._search is None:
            self._search = search.prepared(self._resolved)
        return self._search

    @property
    def splits(self) -> Splits:
        """The data, as it is learnt from, judged by and tested on."""
        splits = self._prepared().tuning.splits
        assert splits is not None
        return splits

    # What it came to.

    @property
    def summary(self) -> Summary:
        """Of the last run here."""
        if self._tuned is None:
            raise UserError("This study has not run here yet: call run() first.")
        return self._tuned.summary

    @property
    def study(self) -> optuna.Study:
        """Optuna's, newest version; also of a run that was somewhere else."""
        if self._tuned is not None:
            return self._tuned.study
        storage = existing(search.storage_of(self.settings))
        versions = find_versions(storage, self.settings.study)
        if not versions:
            raise UserError(f"There is no study '{self.settings.study}' yet: call run() first.")
        return versions[-1]

    @property
    def record(self) -> StudyRecord:
        """Trials with their attempts, faults, curves and logs, as they are now."""
        return read(self.study)

    def best(self) -> TrialRecord:
        return self.record.best()

    def frame(self) -> pandas.DataFrame:
        """A row for each trial: state, values, parameters, metrics, time and memory."""
        from supermax.frames import frame

        return frame(self.record)

    def figures(self) -> dict[str, Figure]:
        """All pictures of the report that make sense for this study, by name."""
        from supermax.report.page import draw

        drawn = draw(self.record)
        return {name: figure for name, figure in drawn.items() if figure is not None}

    def report(self, path: str | Path) -> Path:
        """One HTML file with everything."""
        from supermax.report.writing import write_report

        storage = without_password(search.storage_of(self.settings))
        return write_report(self.record, path, storage=storage)

    def refit(
        self, folder: str | Path, *, seeds: Sequence[int] = (1, 2, 3), trial: int | None = None
    ) -> Refit:
        """Train the best trial, or another, for good and export it to the folder."""
        done: Refit = search.refit(self.record, trial, self.settings, seeds=seeds, folder=folder)[
            1
        ]
        return done
