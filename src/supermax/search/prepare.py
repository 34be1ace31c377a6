"""Preparation of a search from its settings.

Resolved ──prepare_search()──▶ Search
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import optuna
import torch
from optuna.pruners import BasePruner

from supermax._util.attributes import ALL_GPUS
from supermax._util.files import user_name
from supermax.engine.processes.mps import PIPE, SHARE, shared
from supermax.engine.promotion.ladder import Promotion
from supermax.engine.run.no_gain import WHEN_NO_GAIN, WhenNoGain
from supermax.engine.run.options import RunOptions
from supermax.errors import EnvironmentFault, UserError
from supermax.memory.budgets import GpuBudget
from supermax.memory.devices import named_gpus
from supermax.memory.sharing import share_of_each
from supermax.results.notifying import check_targets
from supermax.results.tracking import check_trackers
from supermax.search.cluster import Cluster, read_cluster
from supermax.search.data import data_of, join_splits, with_columns
from supermax.search.earlier import find_earlier
from supermax.search.gpu_share import check_share
from supermax.search.search import Search
from supermax.search.settings import Resolved, Settings
from supermax.search.spaces import fits_length, space_for
from supermax.studies import check_storage
from supermax.tasks.preflight import check_parts
from supermax.training.steps.execution import Execution


def prepare_search(resolved: Resolved, tell: Callable[[str], None] = print) -> Search:
    """Read the data and the space. Raises UserError.

    `tell` is called with messages during the run, such as that a tracker fails."""
    resolved = with_columns(resolved)
    settings = resolved.settings
    cluster = _cluster_of(settings)
    check_cache(settings.cache_folder)
    check_trackers(settings.track)
    check_targets(settings.notify)
    check_storage(settings.storage_address)
    earlier = find_earlier(settings)
    splits = data_of(settings)
    check_parts(settings.agent, splits)
    compiled = None if settings.compile == "auto" else settings.compile
    execution = Execution(device="auto", precision="auto", compiled=compiled)
    return Search(
        settings.agent,
        join_splits(splits),
        settings.storage_address,
        settings.cache_folder,
        preset=settings.preset,
        space=space_for(settings),
        fit_length=fits_length(settings),
        name=settings.study,
        trials=settings.trials,
        objectives=settings.objectives,
        limits=settings.limits,
        sampler=settings.sampler,
        pruner=pruner_of(settings),
        seed=settings.seed,
        earlier=earlier,
        splits=splits,
        top=settings.top,
        race=settings.race,
        folds=settings.folds,
        budget=settings.keep,
        execution=execution,
        memory=settings.gpu_memory,
        workers=settings.workers,
        cluster=cluster,
        resolved=resolved,
        options=run_options(settings),
        track=settings.track,
        notify=settings.notify,
        around=partial(run_context, settings, tell),
        tell=lambda _: None,  # the plan has the same notices
        warn=tell,
        busy=tell,
    )


def run_options(settings: Settings) -> RunOptions:
    """Return the options of the run that the settings give it."""
    return RunOptions(
        reuse_cells=True,
        timeout=settings.timeout,
        stop=WhenNoGain() if settings.stop == WHEN_NO_GAIN else None,
        trial_timeout=settings.trial_timeout,
        stall_timeout=settings.stall_timeout,
        lease=settings.lease,
        run_dir=settings.run_dir,
        checkpoints=settings.checkpoints,
        retries=settings.retries,
        devices=devices_of(settings.gpus),
    )


def _cluster_of(settings: Settings) -> Cluster | None:
    """Return the Ray cluster of a search; None: it runs on this machine."""
    if settings.executor == "local":
        if settings.address is not None:
            raise UserError("address names a Ray cluster: add --executor ray, or leave it out.")
        check_gpus(settings)
        return None
    given = [name for name in ("gpus", "mps") if getattr(settings, name)]
    if given:
        raise UserError(
            f"{' and '.join(given)} cannot be combined with executor ray: Ray chooses the GPUs. "
            f"Leave {'them' if len(given) > 1 else 'it'} out."
        )
    return read_cluster(settings.address)


@contextmanager
def run_context(
    settings: Settings, tell: Callable[[str], None], study: optuna.Study, workers: int, gpus: int
) -> Iterator[None]:
    """Run CUDA MPS, where the settings ask for it, during the context.

    `workers` and `gpus` are the numbers of the run, which may differ from the settings."""
    with ExitStack() as stack:
        wanted = [name for name in ("mps", "compile") if getattr(settings, name) is True]
        if wanted and settings.executor == "local" and not torch.cuda.is_available():
            are, do = ("is", "does") if len(wanted) == 1 else ("are", "do")
            tell(
                f"{' and '.join(wanted)} {are} for GPUs and {do} nothing here: torch "
                f"{torch.__version__} sees none."
            )
        elif settings.mps:
            _start_mps(stack, settings, tell, _gpu_share(settings, study, workers, gpus))
        yield


def _start_mps(
    stack: ExitStack, settings: Settings, tell: Callable[[str], None], share: int
) -> None:
    """Run MPS until the stack is closed, with a share for each cell that computes correctly."""
    share_before, daemon_before = os.environ.get(SHARE), os.environ.get(PIPE)
    if stack.enter_context(shared(tell, share)):
        given = bool(share_before) or os.environ.get(PIPE) == daemon_before
        check_share(devices_of(settings.gpus), tell, given=given)


def _gpu_share(settings: Settings, study: optuna.Study, workers: int, gpus: int) -> int:
    """Return the share of a GPU for each cell, in percent."""
    finished = sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))
    cells = min(workers, max(1, settings.trials - finished))
    return share_of_each(-(-cells // gpus), GpuBudget(settings.gpu_memory).whole)


def check_gpus(settings: Settings) -> None:
    """Raise UserError for GPUs that are not there, or whose memory is unknown."""
    wanted, visible = settings.gpus, os.environ.get("CUDA_VISIBLE_DEVICES")
    if not torch.cuda.is_available():
        if wanted:
            hidden = visible is not None and visible.strip() in ("", "-1")
            why = "CUDA_VISIBLE_DEVICES hides all GPUs: unset it, or leave gpus out"
            unknown = "torch sees no GPU on this machine. Run `supermax doctor` for the reason"
            raise UserError(f"gpus={','.join(wanted)}: {why if hidden else unknown}.")
        return
    names = (visible or "").split(",") if wanted in ([], [ALL_GPUS]) else wanted
    slices = [name.strip() for name in names if name.strip().startswith("MIG-")]
    if slices and settings.gpu_memory is None:
        raise UserError(
            f"The memory of {slices[0]}, a part of a GPU, cannot be read. Give it with "
            f"--gpu-memory, such as --gpu-memory 20GiB."
        )


def devices_of(wanted: list[str]) -> list[str]:
    """Return the GPUs of a run. Without the driver's library, "all" are numbered as torch does."""
    count = torch.cuda.device_count() if wanted else 0
    return named_gpus(wanted) or [str(number) for number in range(count)]


def check_cache(cache: Path) -> None:
    """Raise EnvironmentFault where the cache exists and cannot be used, such as another user's."""
    try:
        readable = os.access(cache, os.R_OK | os.X_OK) and cache.is_dir()
        folders = [cache, *(cache.iterdir() if readable else ())]
        _check_writable(folders)
    except OSError as error:
        raise EnvironmentFault(f"The cache {cache} cannot be used: {error.strerror}.") from error


def _check_writable(folders: Sequence[Path]) -> None:
    for folder in folders:
        usable = not folder.is_dir() or os.access(folder, os.R_OK | os.W_OK | os.X_OK)
        if not usable and (uid := folder.stat().st_uid) != os.getuid():
            owner = user_name(uid)
            raise EnvironmentFault(
                f"The cache {folder} cannot be written; it belongs to {owner}. Give this search "
                f"one of its own: --set cache=FOLDER."
            )


def pruner_of(settings: Settings) -> BasePruner:
    pruners: dict[str, Callable[[], BasePruner]] = {
        "median": partial(optuna.pruners.MedianPruner, n_startup_trials=5, n_warmup_steps=1),
        "promotion": partial(Promotion, max_reports=settings.epochs),
        "hyperband": partial(
            optuna.pruners.HyperbandPruner, min_resource=1, max_resource=settings.epochs
        ),
        "halving": partial(optuna.pruners.SuccessiveHalvingPruner, min_resource=1),
        "none": optuna.pruners.NopPruner,
    }
    return pruners[settings.pruner]()
