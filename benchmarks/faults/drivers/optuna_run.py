"""Optuna: `study.optimize` with threads, or in several processes, on a storage.

As its documentation recommends for runs that may be killed: heartbeats, with a callback that puts
stale trials back into the queue. MaxTrialsCallback counts completed trials, so that trials without
a result are replaced.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import optuna
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.study import MaxTrialsCallback
from optuna.trial import FrozenTrial, Trial, TrialState
from stored import Stored, drive
from work import read_plan, run_trial


def run_threads(folder: Path, workers: int) -> None:
    _optimize(folder, workers)


def run_processes(folder: Path, workers: int) -> None:
    """Start the processes, as a shell script with `&` and `wait` does. The run has failed if all
    have died before the last trial."""
    _study(folder)
    program = [sys.executable, __file__, "one", str(folder)]
    for process in [subprocess.Popen(program) for _ in range(workers)]:
        process.wait()
    if len(report(folder).values) < read_plan(folder).trials:
        sys.exit("All processes have ended before the last trial.")


def _optimize(folder: Path, threads: int) -> None:
    def objective(trial: Trial) -> float:
        trial.suggest_float("x", 0, 1)
        return run_trial(folder, _identity(trial.study.trials[trial.number]), trial.report)

    stop = MaxTrialsCallback(read_plan(folder).trials, states=(TrialState.COMPLETE,))
    _study(folder).optimize(objective, n_jobs=threads, callbacks=[stop], catch=(Exception,))


def report(folder: Path) -> Stored:
    trials = _study(folder).get_trials(deepcopy=False)
    values = {_identity(t): t.value for t in trials if t.state == TrialState.COMPLETE}
    running = sum(t.state == TrialState.RUNNING for t in trials)
    return Stored({k: v for k, v in values.items() if v is not None}, running)


def _identity(trial: FrozenTrial) -> str:
    first = RetryHeartbeatStaleTrialCallback.retried_trial_number(trial)
    return str(trial.number if first is None else first)


def _study(folder: Path) -> optuna.Study:
    storage = RDBStorage(
        read_plan(folder).url,
        heartbeat_interval=2,
        grace_period=6,
        heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=3),
    )
    return optuna.create_study(storage=storage, study_name="faults", load_if_exists=True)


if __name__ == "__main__":
    kind = sys.argv.pop(1)
    if kind == "one":
        _optimize(Path(sys.argv[1]), 1)
    else:
        drive(run_threads if kind == "threads" else run_processes, report)
