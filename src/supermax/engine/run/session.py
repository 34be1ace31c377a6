"""Open a study for a run, and run it. At the end the study gets back its own storage, and the
program its signal handlers."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from optuna.exceptions import StorageInternalError
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from supermax._util import system
from supermax._util.attributes import evaluated_on, metric_names
from supermax._util.files import make_folder, make_private
from supermax._util.text import counted
from supermax.engine import events
from supermax.engine.jobs.job import Job
from supermax.engine.processes import descriptors
from supermax.engine.processes.checkpoints import check_url, is_remote
from supermax.engine.processes.executor import Executor
from supermax.engine.processes.hosts import HostProcesses
from supermax.engine.processes.pickling import pickle_objective
from supermax.engine.processes.prestart import TAG
from supermax.engine.processes.ray_cluster import RayLauncher
from supermax.engine.processes.transport import Processes
from supermax.engine.ranking import best_of
from supermax.engine.run.checks import check_arguments
from supermax.engine.run.coordinator import Coordinator
from supermax.engine.run.leftovers import find_leftovers, foreign_notice
from supermax.engine.run.options import RunOptions
from supermax.engine.run.other_runs import StudyFinished
from supermax.engine.run.requests import RequestHandler
from supermax.engine.run.signals import SignalHandlers
from supermax.engine.sampling.bounded_sampler import BoundedSampler, is_bounded, unwrapped
from supermax.engine.sampling.seeded_samplers import reseed
from supermax.engine.sharing.shared_run import OWN_FOLDER, SharedRun, register
from supermax.engine.storage import locations, locks, rdb, servers, sqlite
from supermax.engine.storage.lease_tables import create_tables, read_owners
from supermax.engine.storage.leases import Leases, RunSuperseded
from supermax.engine.storage.network_disk import refuse_sqlite_on_network_disk
from supermax.engine.storage.patience import Patience
from supermax.engine.storage.patient import PatientStorage
from supermax.engine.storage.run_folder import (
    StudyFolder,
    TrialFolder,
    cannot_be_written,
    new_identity,
)
from supermax.engine.storage.sqlite import SameFile
from supermax.engine.summary import NO_GAIN, Summary
from supermax.engine.trial.branch_names import Names
from supermax.errors import EnvironmentFault, Quarantined

IDENTITY = "supermax:run"
_OPENING_PATIENCE = 60.0
_LAST_WRITE = 1.0  # seconds that a run ended at once waits for its database server


def run(
    study: Study,
    objective: Callable[..., object],
    options: RunOptions,
    *,
    listeners: Sequence[events.Listener] = (),
) -> Summary:
    """Run `objective` until the study holds `options.n_trials` finished trials."""
    started = time.monotonic()
    check_arguments(study, objective, options)
    descriptors.check_descriptors(options.workers)
    blob = pickle_objective(objective, study)
    place = locations.find_location(study)
    emit = _emitter(listeners)
    patience = Patience(lambda text: emit(events.Notice(text)))
    elsewhere = options.run_dir is not None
    where = _absolute(options.run_dir, "run_dir") if options.run_dir is not None else place.run_dir
    folder = StudyFolder(where, patience)
    signals = SignalHandlers()
    try:
        with (
            _opened(study, place, folder, patience, elsewhere) as (storage, trials),
            _shared(study, storage, folder, options) as shared,
        ):
            folder.checkpoints = _checkpoints(study, storage, options)
            mark = storage.claim if shared is not None and shared.has_others else ""
            reseed(unwrapped(study.sampler), len(trials), mark)
            processes = _executor(blob, storage.claim, folder, options, emit)
            requests = RequestHandler(study, storage, Names(trials), volatile=place.volatile)
            coordinator = Coordinator(
                study, storage, folder, processes, requests, options, emit, shared
            )
            leftovers = _leftovers(coordinator, trials)
            del trials  # the coordinator sees them anew as they change
            signals.install(coordinator)
            with contextlib.suppress(StudyFinished), _ended(coordinator):
                coordinator.run(leftovers)
            summary = _summary(coordinator, time.monotonic() - started)
            if (queued := summary.trials["WAITING"]) and not summary.stopped_by:
                emit(events.Notice(_not_run(queued, summary.finished + queued)))
            emit(events.RunEnded(summary))
            return summary
    finally:
        signals.restore()


def _absolute(path: str | os.PathLike[str], what: str) -> Path:
    try:
        return Path(path).absolute()
    except OSError as error:  # the working directory is gone
        raise EnvironmentFault(f"{what} {str(path)!r} leads nowhere ({error}).") from error


def _executor(
    blob: bytes,
    identity: str,
    folder: StudyFolder,
    options: RunOptions,
    emit: Callable[[events.Event], None],
) -> Executor:
    if (cluster := options.executor) is None:
        return Processes(
            blob,
            identity=identity,
            workers=options.workers,
            fresh=not options.reuse_cells,
            log=folder.fork_server_log,
        )
    return HostProcesses(
        RayLauncher(cluster, options.workers),
        blob,
        fresh=not options.reuse_cells,
        run_dir=folder.path,
        share=cluster.shared_run_dir,
        emit=lambda text: emit(events.Notice(text)),
    )


def _leftovers(coordinator: Coordinator, trials: list[FrozenTrial]) -> list[Job]:
    """Emit the state of the study. Return the trials of earlier runs to continue with."""
    claim, emit = coordinator.storage.claim, coordinator.emit
    running = [trial for trial in trials if trial.state is TrialState.RUNNING]
    storage, study, leased = coordinator.storage, coordinator.study, frozenset[int]()
    if (server := rdb.server_of(storage.inner)) is not None:
        leased = frozenset(storage.call(read_owners, server, study._study_id))
    own, foreign = find_leftovers(study, running, claim, coordinator.folder, leased)
    # Another run may have finished a trial, and so ended its lease, since `trials` were read.
    ended = {t.number for t in running if t.number in foreign and _has_ended(storage, t)}
    foreign = [number for number in foreign if number not in ended]
    if (leases := storage.leases) is not None:
        own = [
            job
            for job in own
            if job.trial._trial_id in leases.tokens
            or storage.call(leases.adopt, job.trial._trial_id)
        ]
    emit(_started(coordinator, trials, len(own)))
    if foreign:
        emit(events.Notice(foreign_notice(foreign)))
    return coordinator.others.split_arriving(own)


def _has_ended(storage: PatientStorage, trial: FrozenTrial) -> bool:
    return storage.get_trial(trial._trial_id).state.is_finished()


def _checkpoints(study: Study, storage: PatientStorage, options: RunOptions) -> str | None:
    """Return the shared folder or URL of the study's checkpoints; None: they are not shared."""
    if options.checkpoints is None:
        return None
    root = os.fspath(options.checkpoints)
    if is_remote(root):
        root = root.rstrip("/")
        check_url(root)
    else:
        root = str(_absolute(root, "checkpoints"))
        try:
            make_folder(Path(root))
        except OSError as error:
            raise EnvironmentFault(
                f"The folder {root} of checkpoints cannot be created ({error.strerror})."
            ) from error
    identity = str(storage.get_study_system_attrs(study._study_id)[IDENTITY])
    folder = locations.checkpoint_folder(root, study.study_name, identity)
    there = folder if os.path.lexists(folder) else root
    if not is_remote(root) and not os.access(there, os.W_OK | os.X_OK):
        raise EnvironmentFault(
            f"The folder {there} of checkpoints cannot be written by this user. Make it writable, "
            f"or name another one (checkpoints)."
        )
    return folder


@contextlib.contextmanager
def _ended(coordinator: Coordinator) -> Iterator[None]:
    """End all processes however the run ends, and note in the ledgers that attempts were
    stopped."""
    try:
        yield
    except RunSuperseded:
        coordinator.trials.attempts.clear()  # their ledgers are another process's now
        raise
    finally:
        coordinator.processes.close()
        coordinator.pool.closed()
        for attempt in coordinator.trials.attempts.values():
            job = attempt.job
            job.folder = TrialFolder(
                job.folder.path
            )  # without waiting for a folder that cannot be written
            with contextlib.suppress(OSError):
                job.record_stop()


@contextlib.contextmanager
def _opened(
    study: Study,
    place: locations.Location,
    folder: StudyFolder,
    patience: Patience,
    elsewhere: bool,
) -> Iterator[tuple[PatientStorage, list[FrozenTrial]]]:
    """Lock the study for this run, wrap its storage, prepare its folder, and end processes that an
    earlier run left. `elsewhere`: the run folder is not where other commands look for it."""
    if place.file is not None and sqlite.is_sqlite(rdb.uncached(study._storage)):
        refuse_sqlite_on_network_disk(place.file)
    if place.file is not None and not place.file.is_file():
        raise EnvironmentFault(_cannot_open(study, f"there is no file {place.file} any more"))
    name = study.study_name
    with contextlib.ExitStack() as stack:
        try:
            owner = place.file.stat().st_uid if place.file is not None else None
            make_private(place.run_dir.parent, trusted=owner)
            make_private(place.run_dir, trusted=owner)
            with tempfile.TemporaryFile(dir=place.run_dir):
                pass
        except (OSError, EnvironmentFault) as error:
            if not elsewhere:
                if isinstance(error, EnvironmentFault):
                    raise
                words = cannot_be_written(place.run_dir, error, in_home=place.file is None)
                raise EnvironmentFault(words) from error
        else:
            if not place.shared:
                stack.enter_context(_locked(place.lock, name))
        if place.shared:
            stack.enter_context(_locked(folder.lock, name, advice=OWN_FOLDER))
        if place.file is not None:
            shared = locks.beside(place.file, str(study._study_id))
            stack.enter_context(_locked(shared, name, like=place.file))
        storage = stack.enter_context(_patient(study, place, patience))
        identity, trials = _first_look(study, storage)
        if not place.shared:
            own = locks.own_folder() / locations.key_of(study, place, identity)
            stack.enter_context(_locked(own, name))
        storage.claim = folder.open(identity, name, place.address)
        system.kill_tagged(f"{TAG}={storage.claim}")
        yield storage, trials


@contextlib.contextmanager
def _shared(
    study: Study, storage: PatientStorage, folder: StudyFolder, options: RunOptions
) -> Iterator[SharedRun | None]:
    """Register the run on a database server, which other runs may share; None: no server."""
    if (server := rdb.server_of(storage.inner)) is None:
        yield None
        return
    leases = Leases(server, study._study_id, storage.claim, options.lease, options.n_trials)
    with _explained("The tables supermax_runs and supermax_leases cannot be created"):
        storage.call(create_tables, server)
    with _explained("The run cannot be registered"):
        others = register(storage, leases, folder, options.workers)
    storage.leases = leases
    shared = SharedRun(storage, leases, has_others=bool(others))
    with leases.enforced():
        quarantined = None
        try:
            yield shared
        except Quarantined as error:
            quarantined = str(error)
            raise
        except KeyboardInterrupt:  # the second Ctrl-C
            storage.patience.limit = _LAST_WRITE
            raise
        finally:
            release = options.checkpoints is not None or quarantined is not None
            with contextlib.suppress(EnvironmentFault, StorageInternalError):
                shared.end(release=release, quarantined=quarantined)
            storage.leases = None


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn errors of a database server into an EnvironmentFault with the reason and advice."""
    try:
        yield
    except EnvironmentFault as error:
        why = servers.why(error.__cause__ or error)
        raise EnvironmentFault(f"{what} in the study's database: {why}.") from error


@contextlib.contextmanager
def _locked(
    path: Path, study_name: str, like: Path | None = None, advice: str | None = None
) -> Iterator[None]:
    """Allow one coordinator per study and host, wherever its run folder is; on a server, one per
    run folder."""
    lock = locks.Lock(path, study_name, like=like, advice=advice)
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _patient(
    study: Study, place: locations.Location, patience: Patience
) -> Iterator[PatientStorage]:
    """Let the study write through a storage that waits for outages and claims trials."""
    inner = study._storage
    locations.prepare_location(inner)
    file = SameFile(place.file) if place.file is not None else None
    storage = PatientStorage(inner, study, file=file, patience=patience)
    study._storage = storage
    own_sampler = study.sampler
    if is_bounded(study):
        study.sampler = BoundedSampler(own_sampler, storage.history)
    study._stop_flag = False
    study._thread_local.in_optimize_loop = True  # lets samplers and callbacks call study.stop()
    try:
        yield storage
    finally:
        study._storage = inner
        if isinstance(study.sampler, BoundedSampler):  # a callback may have set another one
            study.sampler = own_sampler
        study._thread_local.in_optimize_loop = False
        study._thread_local.cached_all_trials = None


def _first_look(study: Study, storage: PatientStorage) -> tuple[str, list[FrozenTrial]]:
    """Return the identity of the study, created if it has none, and its trials."""
    storage.patience.limit = _OPENING_PATIENCE
    try:
        identity = storage.get_study_system_attrs(study._study_id).get(IDENTITY)
        if identity is None:
            identity = new_identity()
            storage.set_study_system_attr(study._study_id, IDENTITY, identity)
        return str(identity), storage.get_all_trials(study._study_id, deepcopy=False)
    except EnvironmentFault as error:
        why = servers.why(error.__cause__ or error)
        raise EnvironmentFault(_cannot_open(study, why)) from error
    finally:
        storage.patience.limit = Patience.default


def _cannot_open(study: Study, why: str) -> str:
    return (
        f"The study '{study.study_name}' cannot be opened: {why}. Check that its storage is "
        f"there, is running and can be written."
    )


def _emitter(listeners: Sequence[events.Listener]) -> Callable[[events.Event], None]:
    active = list(listeners)

    def emit(event: events.Event) -> None:
        for listener in list(active):
            try:
                listener(event)
            except Exception:  # a listener never stops the run
                active.remove(listener)

    return emit


def _started(
    coordinator: Coordinator, trials: list[FrozenTrial], resumed: int
) -> events.RunStarted:
    study, options = coordinator.study, coordinator.options
    best = best_of(trials, study.directions)
    return events.RunStarted(
        study_name=study.study_name,
        directions=tuple(direction.name.lower() for direction in study.directions),
        target=options.n_trials,
        finished=sum(trial.state.is_finished() for trial in trials),
        resumed=resumed,
        workers=options.workers,
        run_dir=str(coordinator.folder.path),
        best=(best.number, best.values[0]) if best is not None else None,
        metrics=metric_names(study),
        evaluated_on=evaluated_on(study),
    )


def _summary(coordinator: Coordinator, seconds: float) -> Summary:
    study = coordinator.study
    coordinator.storage.check_file()
    trials = coordinator.storage.get_all_trials(study._study_id, deepcopy=False)
    ended_by = "study.stop()" if study._stop_flag else None
    states = Counter(trial.state.name for trial in trials)
    faults = coordinator.attempt_end.faults + coordinator.pool.faults
    return Summary(
        trials={state.name: states[state.name] for state in TrialState},
        faults=dict(faults.most_common()),
        retries=coordinator.attempt_end.retries,
        told=coordinator.attempt_end.told,
        cells=coordinator.processes.cells_started,
        seconds=seconds,
        stopped_by=coordinator.stop_reason or (NO_GAIN if coordinator.gains.over else ended_by),
        gain=coordinator.gains.gain,
        run_dir=coordinator.folder.path,
    )


def _not_run(queued: int, enough: int) -> str:
    """Return what to type to run queued trials that are beyond the target."""
    return (
        f"{counted(queued, 'queued trial')} did not run: the search has its number of trials. "
        f"n_trials={enough} (--trials {enough}) runs them too."
    )
