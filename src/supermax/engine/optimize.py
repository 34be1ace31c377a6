"""Opens a study for a run, runs it, and puts everything back."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from supermax.engine import events as say
from supermax.engine import home, kernel
from supermax.engine.answers import Answers
from supermax.engine.coordinator import FINISHED, Coordinator, Options
from supermax.engine.fleet import TAG, Fleet
from supermax.engine.folder import Lock, StudyFolder, new_identity
from supermax.engine.names import Names
from supermax.engine.pickling import pickle_objective
from supermax.engine.remote_trial import RemoteStudy
from supermax.engine.resume import find_leftovers, foreign_notice
from supermax.engine.sampling import reseed
from supermax.engine.sqlite import SameFile
from supermax.engine.storage import PatientStorage, reason
from supermax.engine.summary import Summary
from supermax.errors import EnvironmentFault, UserError

IDENTITY = "supermax:run"
_OPENING_PATIENCE = 60.0


def run(
    study: Study,
    objective: Callable[..., Any],
    options: Options,
    *,
    run_dir: Path | None = None,
    listeners: Sequence[say.Listener] = (),
) -> Summary:
    """Run `objective` until the study holds `options.n_trials` finished trials."""
    started = time.monotonic()
    check(study, objective, options)
    blob = pickle_objective(objective, study)
    place = home.find_home(study)
    folder = StudyFolder(Path(run_dir).absolute() if run_dir is not None else place.run_dir)
    emit = _emitter(listeners)
    if place.file is not None and not place.file.is_file():
        raise EnvironmentFault(_cannot_open(study, f"there is no file {place.file} any more"))
    with _locked(place, study.study_name), _patient(study, place, emit) as storage:
        trials = _first_look(study, storage)
        folder.open(storage.claim, study.study_name, place.address)
        kernel.sweep(f"{TAG}={storage.claim}")
        reseed(study.sampler, len(trials))
        running = [trial for trial in trials if trial.state is TrialState.RUNNING]
        leftovers, foreign = find_leftovers(study, running, storage.claim, folder)
        emit(_started(study, options, trials, len(leftovers), folder))
        if foreign:
            emit(say.Notice(foreign_notice(foreign)))
        fleet = Fleet(
            blob,
            identity=storage.claim,
            workers=options.workers,
            fresh=not options.reuse_cells,
            log=folder.keeper_log,
        )
        coordinator = Coordinator(
            study,
            storage,
            folder,
            fleet,
            Answers(study, storage, Names(trials)),
            options,
            emit,
            volatile=place.volatile,
        )
        del trials, running
        try:
            with _signals(coordinator):
                coordinator.run(leftovers)
        finally:
            fleet.close()
            for attempt in coordinator.attempts.values():
                with contextlib.suppress(OSError):
                    attempt.job.note_stop()
        summary = _summary(coordinator, folder, time.monotonic() - started)
        emit(say.RunEnded(summary))
        return summary


def check(study: Any, objective: Any, options: Options) -> None:
    """Find what is wrong with a call before anything is touched, all of it at once."""
    wrong = []
    if not isinstance(study, Study):
        wrong.append(f"study must be an optuna.Study, not {_kind(study)}")
    if not callable(objective):
        wrong.append(f"objective must be a function that takes a trial, not {_kind(objective)}")
    for name, least in (("n_trials", 0), ("workers", 1), ("retries", 0)):
        count: Any = getattr(options, name)
        if name == "n_trials" and count is None:
            continue
        if type(count) is bool or not isinstance(count, Integral) or int(count) < least:
            wrong.append(f"{name} must be a whole number from {least} on, but is {count!r}")
    for name in ("timeout", "trial_timeout", "stall_timeout"):
        seconds: Any = getattr(options, name)
        if seconds is not None and not (isinstance(seconds, Real) and float(seconds) > 0):
            wrong.append(f"{name} must be a number of seconds above 0, but is {seconds!r}")
    callbacks: tuple[Any, ...] = options.callbacks
    wrong += [f"callbacks must be functions, not {_kind(c)}" for c in callbacks if not callable(c)]
    if wrong:
        raise UserError(f"{'; '.join(wrong)}.")
    if isinstance(study, RemoteStudy):
        raise UserError(
            "supermax.optimize cannot run on a study from inside one of that study's own trials."
        )
    if study._thread_local.in_optimize_loop:
        raise UserError("This study is being optimised already; one run at a time.")


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


@contextlib.contextmanager
def _locked(place: home.Home, study_name: str) -> Iterator[None]:
    """One coordinator a study and host, wherever its run folder is."""
    lock = Lock(place.run_dir / "lock", study_name)
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _patient(
    study: Study, place: home.Home, emit: Callable[[say.Event], None]
) -> Iterator[PatientStorage]:
    """For the run's duration the study writes through a patient storage that claims trials."""
    inner = study._storage
    home.prepare(inner)
    file = SameFile(place.file) if place.file is not None else None
    storage = PatientStorage(
        inner, study._study_id, file=file, on_wait=lambda text: emit(say.Notice(text))
    )
    study._storage = storage
    study._stop_flag = False
    study._thread_local.in_optimize_loop = True  # lets samplers and callbacks call study.stop()
    try:
        yield storage
    finally:
        study._storage = inner
        study._thread_local.in_optimize_loop = False
        study._thread_local.cached_all_trials = None


def _first_look(study: Study, storage: PatientStorage) -> list[FrozenTrial]:
    """The study's trials; and the run's identity, which is made when the study has none."""
    storage.patience = _OPENING_PATIENCE
    try:
        claim = storage.get_study_system_attrs(study._study_id).get(IDENTITY)
        if claim is None:
            claim = new_identity()
            storage.set_study_system_attr(study._study_id, IDENTITY, claim)
        storage.claim = str(claim)
        return storage.get_all_trials(study._study_id, deepcopy=False)
    except EnvironmentFault as error:
        raise EnvironmentFault(_cannot_open(study, reason(error.__cause__ or error))) from error
    finally:
        storage.patience = PatientStorage.default_patience


def _cannot_open(study: Study, why: str) -> str:
    return (
        f"The study '{study.study_name}' cannot be opened: {why}. Check that its storage is "
        f"there, is running and can be written."
    )


@contextlib.contextmanager
def _signals(coordinator: Coordinator) -> Iterator[None]:
    """First Ctrl-C or TERM: end cleanly. Second Ctrl-C: at once. Only the main thread may."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    terminated = False

    def on_signal(signum: int, _: object) -> None:
        nonlocal terminated
        terminated |= signum == signal.SIGTERM
        if coordinator.stop_reason == "interrupt" and signum == signal.SIGINT:
            raise KeyboardInterrupt
        coordinator.request_stop("interrupt")

    before = {s: signal.signal(s, on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if terminated:  # now that all is safe, it may do what it does to this program
        os.kill(os.getpid(), signal.SIGTERM)


def _emitter(listeners: Sequence[say.Listener]) -> Callable[[say.Event], None]:
    active = list(listeners)

    def emit(event: say.Event) -> None:
        for listener in list(active):
            try:
                listener(event)
            except Exception:  # looking never stops the work
                active.remove(listener)

    return emit


def _started(
    study: Study,
    options: Options,
    trials: list[FrozenTrial],
    resumed: int,
    folder: StudyFolder,
) -> say.RunStarted:
    best = None
    if len(study.directions) == 1:
        with contextlib.suppress(ValueError):
            trial = study.best_trial
            best = (trial.number, trial.values[0])
    return say.RunStarted(
        study_name=study.study_name,
        directions=tuple(direction.name.lower() for direction in study.directions),
        target=options.n_trials,
        finished=sum(trial.state in FINISHED for trial in trials),
        resumed=resumed,
        workers=options.workers,
        run_dir=str(folder.path),
        best=best,
    )


def _summary(coordinator: Coordinator, folder: StudyFolder, seconds: float) -> Summary:
    study = coordinator.study
    coordinator.storage.check_file()
    trials = coordinator.storage.get_all_trials(study._study_id, deepcopy=False)
    states = Counter(trial.state.name for trial in trials)
    faults = coordinator.faults + coordinator.crew.faults
    reason = coordinator.stop_reason or ("study.stop()" if study._stop_flag else None)
    return Summary(
        trials={state.name: states[state.name] for state in TrialState},
        faults=dict(faults.most_common()),
        retries=coordinator.retries,
        told=coordinator.told,
        cells=coordinator.fleet.made,
        seconds=seconds,
        stopped_by=reason,
        run_dir=folder.path,
    )
