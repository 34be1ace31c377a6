"""Weights & Biases: a run per trial, in a project named after the study.

A run has an id that follows from its trial, so creating it twice is impossible. With
WANDB_MODE=offline, runs are files that `wandb sync` sends later; they cannot be continued, so a
run that a kill has cut off is written again from the study.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from supermax.engine.storage.locations import Location
from supermax.errors import UserError
from supermax.results.tracking.backend import (
    CURVE,
    FAILED,
    FINISHED,
    RUNNING,
    MetricPoint,
    NewRun,
    RequestRefused,
    Run,
    Unreachable,
    short_message,
    translated,
)
from supermax.results.tracking.destination import WANDB, Destination

SETTINGS = {
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_DISABLE_CODE": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_INIT_TIMEOUT": "20",
    # About the tracker process, not the trial. Names that W&B does not know are ignored.
    "WANDB__DISABLE_META": "true",
    "WANDB__DISABLE_MACHINE_INFO": "true",
    "WANDB__DISABLE_STATS": "true",
    "WANDB__SAVE_REQUIREMENTS": "false",
    # Of a program that is itself a run of W&B: each would make all trials one run.
    "WANDB_RUN_ID": "",
    "WANDB_RESUME": "",
    "WANDB_SERVICE": "",
    "WANDB_SWEEP_ID": "",
}
"""Environment variables of the tracker process; "": removed."""
NO_LOGIN = (
    "no login. Run `wandb login`, or set WANDB_MODE=offline to write files that `wandb sync` "
    "sends later"
)
MODE, FOLDER, PROJECT = "WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT"
OFFLINE = ("offline", "dryrun")
_STEP = "step"
_ID = 16  # characters
_COMPLETE = "supermax-complete"
"""File in the folder of an offline run: it has all of the trial, and how the trial ended."""
_MOST_PROJECT = 100
_PROJECT = re.compile(r"[^/\\#?%:\s]+(/[^/\\#?%:\s]+)?")


def wandb_destination(project: str | None, home: Location) -> Destination:
    """Return a project, or ENTITY/PROJECT, as destination; by default WANDB_PROJECT, or else the
    study's name. Its files are in WANDB_DIR, or beside the study's file."""
    if project is not None and not _PROJECT.fullmatch(project):
        raise UserError(f"{project!r:.80} is no project of W&B: write wandb:ENTITY/PROJECT.")
    beside = home.file.parent if home.file is not None else home.run_dir / "tracking"
    folder = Path(os.environ.get(FOLDER) or beside).absolute()
    project = project or os.environ.get(PROJECT) or ""
    offline = os.environ.get(MODE) in OFFLINE
    shown = f"{folder / 'wandb'}" if offline else project or "the study's project"
    return Destination(project, shown, file=folder, kind=WANDB)


class Wandb:
    """Backend of W&B. The id of an experiment is ENTITY/PROJECT."""

    def __init__(self, destination: Destination) -> None:
        self._wanted = destination.uri
        self._folder = destination.file or Path()
        self._offline = os.environ.get(MODE) in OFFLINE
        self._wandb: Any = None
        self._runs: dict[str, Any] = {}
        self._logged: dict[str, dict[str, dict[int, float]]] = {}
        """Values that open runs were given, by run, metric and step: the server has them later."""
        self._overwritten: set[str] = set()
        self._project = ""

    def connect(self) -> None:
        if self._wandb is None:
            for name, value in SETTINGS.items():
                os.environ.pop(name, None)
                if value:
                    os.environ[name] = value
            with translated("W&B cannot be imported"):
                import wandb
            self._wandb = wandb
        with translated(str(self._folder)):
            self._folder.mkdir(parents=True, exist_ok=True)

    def experiment(self, name: str) -> str:
        return self._wanted or re.sub(r"[/\\#?%:\s]+", "-", name)[:_MOST_PROJECT]

    def find(self, experiment: str, key: str) -> list[Run]:
        self._project = experiment
        found = self.get(key[:_ID])
        return [found] if found is not None else []

    def create(self, experiment: str, new: NewRun) -> Run:
        self._project = experiment
        name = new.key[:_ID]
        kind = "study" if new.parent is None else "trial"
        run = self._begin(name, name=new.name, job_type=kind, group=new.study)
        with _translated():
            run.config.update(dict(new.tags), allow_val_change=True)
        return Run(name, RUNNING)

    def get(self, run: str) -> Run | None:
        """Return a run. Offline, one that a kill has cut off is discarded and counts as none."""
        if run in self._runs:
            return Run(run, RUNNING)
        if self._offline:
            with translated(str(self._folder)):
                return self._complete(run)
        with _translated():
            found = self._public(run)
        if found is None:
            return None
        states = {"finished": FINISHED, "failed": FAILED}
        return Run(run, states.get(found.state, RUNNING))

    def delete(self, run: str) -> None:
        """Discard a run offline. Online, the id of a deleted run could not be used again: instead,
        the next run with the id overwrites it."""
        self._finish(run, 1)
        self._overwritten.add(run)
        for folder in self._folders(run) if self._offline else ():
            shutil.rmtree(folder, ignore_errors=True)

    def history(self, run: str, key: str) -> dict[int, float]:
        logged = self._logged.get(run, {}).get(key, {})
        if self._offline:  # a run of an earlier process is complete
            return dict(logged)
        with _translated():
            found = self._public(run)
            rows = found.scan_history(keys=[_STEP, key]) if found is not None else ()
            return {int(row[_STEP]): float(row[key]) for row in rows} | logged

    def log(
        self,
        run: str,
        params: Mapping[str, object],
        points: Sequence[MetricPoint],
        tags: Mapping[str, str],
    ) -> None:
        opened = self._runs.get(run) or self._begin(run)
        rows: dict[int, dict[str, float]] = defaultdict(dict)
        with _translated():
            for point in points:
                if point.key.startswith(CURVE):
                    rows[point.step][point.key] = point.value
                else:
                    opened.summary[point.key] = point.value
            for step in sorted(rows):
                opened.log({_STEP: step, **rows[step]})
                for key, value in rows[step].items():
                    self._logged[run].setdefault(key, {})[step] = value
            opened.config.update({**params, **tags}, allow_val_change=True)

    def upload(self, run: str, name: str, content: str) -> None:
        opened = self._runs.get(run) or self._begin(run)
        with _translated():
            path = Path(opened.dir) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            opened.save(str(path), base_path=opened.dir, policy="now")

    def end(self, run: str, status: str, at: int | None) -> None:
        if run not in self._runs:
            self._begin(run)
        self._finish(run, 1 if status == FAILED else 0)
        if self._offline:
            with translated(str(self._folder)):
                *older, newest = self._folders(run)
                (newest / _COMPLETE).write_text(status)
                for folder in older:  # of a run of the study, which has been written again
                    shutil.rmtree(folder)

    def resume(self, run: str) -> None:
        """Nothing to do: a run that is logged to is running."""

    def _begin(self, run: str, **about: Any) -> Any:
        """Open a run for writing; create it if there is none."""
        mode = {"mode": "offline"} if self._offline else {"resume": "allow"}
        if run in self._overwritten:
            mode.pop("resume", None)
        entity, _, project = self._project.rpartition("/")
        try:
            opened = self._wandb.init(
                project=project,
                entity=entity or None,
                id=run,
                dir=str(self._folder),
                reinit="create_new",
                **mode,
                **about,
            )
            opened.define_metric(f"{CURVE}*", step_metric=_STEP)
        except Exception as error:
            raise _classified(error) from None
        self._runs[run], self._logged[run] = opened, {}
        self._overwritten.discard(run)
        return opened

    def _finish(self, run: str, code: int) -> None:
        if (opened := self._runs.get(run)) is not None:
            with _translated():
                opened.finish(exit_code=code)
            del self._runs[run], self._logged[run]

    def _public(self, run: str) -> Any:
        """Return the run as W&B's server has it; None if it has none."""
        entity, _, project = self._project.rpartition("/")
        path = "/".join(filter(None, (entity, project, run)))
        try:
            return self._wandb.Api(timeout=10).run(path)
        except Exception as error:
            if "not find" in str(error) or "not found" in str(error):
                return None
            raise

    def _folders(self, run: str) -> list[Path]:
        """Return the folders of an offline run, the newest last."""
        return sorted((self._folder / "wandb").glob(f"offline-run-*-{run}"))

    def _complete(self, run: str) -> Run | None:
        folders = self._folders(run)
        for folder in folders:
            if not (folder / _COMPLETE).is_file():
                shutil.rmtree(folder)
        done = [folder for folder in folders if folder.is_dir()]
        return Run(run, (done[-1] / _COMPLETE).read_text() or FINISHED) if done else None


class _translated:  # noqa: N801
    """Turn errors of W&B into Unreachable or RequestRefused."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            raise _classified(error) from None


def _classified(error: Exception) -> Exception:
    """Return the error of the interface that an error of W&B stands for."""
    if isinstance(error, (Unreachable, RequestRefused)):
        return error
    text = str(error)
    if "API key" in text or "wandb login" in text:
        return Unreachable(NO_LOGIN)
    return Unreachable(short_message(error))
