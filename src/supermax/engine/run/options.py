"""Options of a run."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from optuna.study import Study
from optuna.trial import FrozenTrial, Trial

from supermax._util.attributes import LEASE
from supermax.engine.events import Listener
from supermax.engine.jobs.provision import Planner
from supermax.engine.processes.ray_cluster import RayExecutor
from supermax.engine.run.no_gain import WhenNoGain

Callback = Callable[[Study, FrozenTrial], None]


@dataclass(frozen=True)
class RunOptions:
    """Validated arguments of supermax.optimize; see there."""

    n_trials: int | None = None
    """Number of finished trials at which the run ends, earlier ones included; None: no limit."""
    timeout: float | None = None
    """Seconds after which the run pauses, counted from the first ready cell, or from when
    it waits for trials of other runs; None: no limit."""
    deadline: float | None = None
    """Moment of time.monotonic() at which the run pauses, start-up included; None: no limit."""
    workers: int = 1
    """Number of trials that run at the same time."""
    reuse_cells: bool = False
    """True: a cell runs several trials, one after another."""
    trial_timeout: float | None = None
    """Seconds after which an attempt is killed; None: no limit."""
    stall_timeout: float | None = None
    """Seconds without any message of the trial after which an attempt is killed, from its first
    report on; None: no limit."""
    retries: int = 2
    """Number of retries of a trial after faults; kills from outside are not counted."""
    devices: Sequence[int | str] = ()
    """GPUs over which trials are distributed; empty: all trials see all GPUs."""
    executor: RayExecutor | None = None
    """Cluster on which the trials run; None: this machine."""
    lease: float = LEASE
    """Seconds without a sign of life after which other runs on the same database server take over
    the trials of this run."""
    run_dir: str | os.PathLike[str] | None = None
    """Folder of logs, outcomes and checkpoints; None: the one that belongs to the study."""
    checkpoints: str | os.PathLike[str] | None = None
    """Folder or fsspec URL of the checkpoints of trials; None: in the run folder."""
    callbacks: Sequence[Callback] = ()
    """Functions called with the study and each finished trial."""
    listeners: Sequence[Listener] = ()
    """Functions called with each event, beside the display."""
    progress: bool | Listener | None = None
    """None: live view on a terminal, else plain lines. True: as None. False: nothing. A function:
    called with each event instead."""
    paused_space: int | None = None
    """Bytes on disk that checkpoints of paused trials may take; None: half of what is free."""
    stop: WhenNoGain | None = None
    """Rule by which the run ends by itself; None: it does not."""
    planner: Planner | None = None
    """Planner of the memory of each trial; None: memory is not planned."""

    configure: Callable[[Trial], object] | None = None
    """Function that samples all parameters of a trial before it has a cell. A trial with the
    configuration of a completed one then gets its result without running. None: each trial
    runs."""

    def pauses_at(self, first_cell: float | None) -> float:
        """Return the moment at which the run pauses; infinite: never. `first_cell`: when the first
        cell was ready, None: not yet."""
        at = math.inf if self.deadline is None else self.deadline
        if self.timeout is None or first_cell is None:
            return at
        return min(at, first_cell + self.timeout)
