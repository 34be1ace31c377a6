"""`supermax.Study`: run a search from Python, as `supermax tune` does, and read its results.

settings ──from_config()──▶ Study ──run()──▶ frame(), figures(), report(), refit()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna

from supermax.engine.summary import Summary
from supermax.errors import UserError
from supermax.results.race import RaceRecord
from supermax.results.records import StudyRecord, TrialRecord, read_record
from supermax.search.data import guessed_agent, taken_from_memory, with_stored
from supermax.search.prepare import prepare_search
from supermax.search.preview import describe_plan
from supermax.search.refit import refit_study
from supermax.search.search import Search
from supermax.search.settings import Resolved, Settings, resolve
from supermax.search.settings.resolving import Value, flattened
from supermax.search.tuned import Tuned
from supermax.space.migration.versions import find_versions
from supermax.space.presets import presets
from supermax.studies import existing, without_password
from supermax.training.data.inputs.stored import StoredTable
from supermax.training.data.splits import Splits
from supermax.training.deploy.refit import Refit

if TYPE_CHECKING:
    import pandas
    from plotly.graph_objects import Figure


class Study:
    """Hyperparameter search of an agent. Nothing runs before run(); running again resumes."""

    def __init__(self, resolved: Resolved, data: StoredTable | None = None) -> None:
        self._resolved = resolved if data is None else with_stored(resolved, data)
        self._data = data
        self._tuned: Tuned | None = None

    @classmethod
    def from_config(
        cls, config: str | Path | Mapping[str, Any] | None = None, **settings: Any
    ) -> Study:
        """Make a search from a YAML file as `supermax init` writes it, from a mapping, from
        keywords, or from a file with keywords that override it. Raises UserError with all
        mistakes.

        Without `agent`, the one that fits the columns of the data is chosen, as by
        `supermax init`. Name it if you name the columns.

        `data` may also be a data frame of pandas or polars, or a Dataset or DatasetDict of
        Hugging Face, alone or as `path` beside `columns` and other settings of the data. It is
        written once to the folder supermax-data in `outdir`, where later runs and a refit read
        it."""
        file = Path(config).expanduser() if isinstance(config, (str, Path)) else None
        given: dict[str, Any] = {**(config if isinstance(config, Mapping) else {}), **settings}
        agent = given.pop("agent", None)
        if agent is None and file is None:
            agent = guessed_agent(given)
        data = taken_from_memory(given)
        values = {
            key: Value(value, f"{key} of from_config", "from_config")
            for key, value, _ in flattened(given)
        }
        found = resolve(agent, file=file, flags=values, presets=presets(), parameters={})
        return cls(found, data)

    @property
    def settings(self) -> Settings:
        return self._resolved.settings

    def plan(self, verbose: bool = False) -> list[str]:
        """Return the plan that `supermax tune` prints first; `verbose` as its -v."""
        return describe_plan(self._search, verbose)

    def run(self, **options: Any) -> Study:
        """Run up to the settings' number of trials. `options` are arguments of supermax.optimize
        that replace the settings'."""
        self._tuned = self._search.run(**options)
        return self

    @cached_property
    def _search(self) -> Search:
        self._write_data()
        return prepare_search(self._resolved)

    def _write_data(self) -> None:
        """Write data that was given in memory."""
        if self._data is not None:
            self._data.write(self.settings.stored_data)

    @property
    def splits(self) -> Splits:
        """Train, validation and test split of the data."""
        return self._search.all_splits

    @property
    def summary(self) -> Summary:
        """Summary of the last run() of this object."""
        if self._tuned is None:
            raise UserError("This study has not been run by this program yet: call run() first.")
        return self._tuned.summary

    @property
    def study(self) -> optuna.Study:
        """Newest version of the Optuna study, whether or not this object ran it."""
        if self._tuned is not None:
            return self._tuned.study
        storage = existing(self.settings.storage_address)
        versions = find_versions(storage, self.settings.study)
        if not versions:
            raise UserError(f"There is no study '{self.settings.study}' yet: call run() first.")
        return versions[-1]

    @property
    def record(self) -> StudyRecord:
        """Snapshot of the trials with their attempts, faults, learning curves and logs."""
        return read_record(self.study)

    def best(self) -> TrialRecord:
        """Return the winner of the race, else the best trial."""
        return self.record.best()

    @property
    def race(self) -> RaceRecord | None:
        """Race of the best configurations over fresh seeds: means, intervals, winner; None: there
        was none, or other trials have become the best since."""
        return self.record.race

    def frame(self) -> pandas.DataFrame:
        """Return a row for each trial: state, values, parameters, metrics, time and memory."""
        from supermax.results.frames import frame

        return frame(self.record)

    def figures(self) -> dict[str, Figure]:
        """Return the figures of the report that apply to this study, by name."""
        from supermax.results.report.page import draw_figures

        drawn = draw_figures(self.record)
        return {name: figure for name, figure in drawn.items() if figure is not None}

    def report(self, path: str | Path) -> Path:
        """Write the report as one HTML file. Return its path."""
        from supermax.results.report.writing import write_report

        storage = without_password(self.settings.storage_address)
        return write_report(self.record, path, storage=storage)

    def refit(
        self,
        folder: str | Path,
        *,
        seeds: Sequence[int] = (1, 2, 3),
        trial: int | None = None,
        adapter: bool = False,
    ) -> Refit:
        """Train the configuration of the winner of the race, else of the best trial, or of
        `trial`, once for each seed; export the model to the folder, with `adapter` only its LoRA
        adapter."""
        self._write_data()
        return refit_study(
            self.record, trial, self.settings, seeds=seeds, folder=folder, adapter=adapter
        )[1]
