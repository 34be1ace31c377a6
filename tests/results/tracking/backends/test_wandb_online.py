"""Online runs of W&B, with a fake of its package: killed at every step, each row is there once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supermax.results.records import TrialRecord
from supermax.results.tracking.backend import Unreachable
from supermax.results.tracking.backends.wandb import Wandb
from supermax.results.tracking.content import content
from supermax.results.tracking.destination import WANDB, Destination
from supermax.results.tracking.record import TrackingFolder
from supermax.results.tracking.sending import Sender
from tests.results.tracking.test_sending import ABOUT, Killed, at, life  # noqa: F401


class FakeWandb:
    """Fake of the package and of its server. A run with the id of another one resumes it if asked
    to, and overwrites it otherwise. Rows reach the server at the end of a run; a kill may lose
    those of open runs."""

    def __init__(self, trouble: Callable[[str], None] = lambda _: None) -> None:
        self.trouble = trouble
        self.server: dict[str, dict[str, Any]] = {}
        self.open: list[FakeRun] = []

    def init(self, *, id: str, resume: str | None = None, **about: Any) -> FakeRun:
        self.trouble("before init")
        if resume is None or id not in self.server:
            self.server[id] = {"rows": [], "config": {}, "summary": {}, "about": about}
        self.server[id]["state"] = "running"
        self.open.append(FakeRun(self, id))
        self.trouble("after init")
        return self.open[-1]

    def Api(self, timeout: int) -> FakeWandb:  # noqa: N802
        return self

    def run(self, path: str) -> FakeRun:
        self.trouble("before run")
        name = path.rpartition("/")[2]
        if name not in self.server:
            raise ValueError(f"Could not find run {path}")
        return FakeRun(self, name)

    def killed(self, *, lost: bool) -> None:
        """End the process. Rows that are on their way arrive, or are lost."""
        for run in self.open:
            if not lost:
                self.server[run.id]["rows"] += run.rows
            self.server[run.id]["state"] = "crashed"
        self.open.clear()


class FakeRun:
    def __init__(self, package: FakeWandb, name: str) -> None:
        self.package, self.id = package, name
        self.rows: list[dict[str, Any]] = []
        self.config = self
        self.dir = str(Path("/tmp"))

    @property
    def data(self) -> dict[str, Any]:
        return self.package.server[self.id]

    @property
    def state(self) -> str:
        return str(self.data["state"])

    @property
    def summary(self) -> Any:
        return self.data["summary"]

    def define_metric(self, name: str, step_metric: str) -> None:
        assert (name, step_metric) == ("curve/*", "step")

    def update(self, values: dict[str, Any], allow_val_change: bool) -> None:
        self.package.trouble("before update")
        self.data["config"].update(values)

    def log(self, row: dict[str, Any]) -> None:
        self.package.trouble("before log")
        self.rows.append(row)

    def save(self, path: str, base_path: str, policy: str) -> None:
        self.package.trouble("before save")

    def finish(self, exit_code: int) -> None:
        if self not in self.package.open:
            return  # as the package does
        self.package.trouble("before finish")
        self.data["rows"] += self.rows
        self.data["state"] = "failed" if exit_code else "finished"
        self.package.open.remove(self)
        self.package.trouble("after finish")

    def scan_history(self, keys: list[str]) -> Iterator[dict[str, Any]]:
        return iter([row for row in self.data["rows"] if set(keys) <= set(row)])


def session(package: FakeWandb, folder: TrackingFolder) -> Sender:
    """Return the sender of a new process."""
    backend = Wandb(Destination("team/notes", "", file=folder.path, kind=WANDB))
    backend._wandb = package
    backend._offline = False
    return Sender(backend, folder.record(ABOUT.key), ABOUT)


def send_life(
    package: FakeWandb, folder: TrackingFolder, moments: list[TrialRecord], *, lost: bool
) -> None:
    """Send with as many processes as needed."""
    sender = session(package, folder)
    for moment in [*moments, None]:
        while True:
            try:
                sender.open(0)
                if moment is None:
                    sender.end_study({}, "FINISHED")
                else:
                    sender.send(moment)
                break
            except Killed:
                package.killed(lost=lost)
                sender = session(package, folder)
            except Unreachable:
                pass


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("raised", [Killed, ConnectionError])
def test_a_failure_at_every_step_online(
    life: list[TrialRecord],  # noqa: F811
    tmp_path: Path,
    raised: type[BaseException],
    lost: bool,
) -> None:
    count = itertools.count()
    first = FakeWandb(lambda _: next(count) and None)
    send_life(first, TrackingFolder(tmp_path, "count"), life, lost=lost)
    total = next(count)
    assert total > 20
    for call in range(total):
        package = FakeWandb(at(call, raised))
        send_life(package, TrackingFolder(tmp_path, f"at{call}"), life, lost=lost)
        runs = [run for run in package.server.values() if "supermax.trial" in run["config"]]
        (run,) = runs
        assert len(package.server) == 2  # and the study's own
        wanted = content(ABOUT, life[-1])
        curve = [(row["step"], row["curve/f1"]) for row in run["rows"]]
        assert curve == sorted(wanted.curve.items()), call
        assert run["state"] == "finished"
        assert run["summary"]["f1"] == 0.5
        assert run["config"]["supermax.state"] == "COMPLETE"
