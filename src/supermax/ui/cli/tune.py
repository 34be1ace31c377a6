"""`supermax tune`: run a search, or resume it with the same command.

target, flags ──resolve()──▶ Resolved ──supervisor──▶ run_all, agent by agent ──▶ outcome
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, get_args

import optuna
import typer

from supermax._util import system
from supermax._util.attributes import COSTS
from supermax._util.importing import gc_paused
from supermax._util.text import ended, nearest, printable
from supermax._util.yaml_lines import scalar
from supermax.agents import AGENT_NAMES, AGENTS, agent_of, stored_name
from supermax.engine.processes import descriptors
from supermax.engine.processes import supervisor as supervision
from supermax.errors import UserError
from supermax.search.earlier import find_earlier
from supermax.search.settings import Resolved, resolve
from supermax.search.settings.model import TRACKERS, Pruner, Sampler, Settings, Stop
from supermax.search.settings.resolving import Value
from supermax.search.spaces import space_for
from supermax.space.adapters import lora_parameters
from supermax.space.presets import presets, unsearched
from supermax.space.reading import load
from supermax.studies import check_storage
from supermax.training.data.guessing import guess_file
from supermax.training.data.inputs.hf_datasets import hub_hint, is_hub
from supermax.training.data.inputs.reading import is_table
from supermax.training.data.redsm5 import is_redsm5
from supermax.training.eval.metrics import check_metric
from supermax.ui.cli.completing import among, preset_names, studies, targets
from supermax.ui.cli.early import started_early
from supermax.ui.cli.init import encoders_here, settings_path, write_settings
from supermax.ui.cli.opening import STUDY
from supermax.ui.cli.outcome import outcome
from supermax.ui.cli.stdio import Surviving, wrapped

ALL = "all"
Text = str | None


def tune(
    target: Annotated[
        str,
        typer.Argument(
            help="criteria, evidence, share, joint, all, a YAML file, or your own CSV or JSONL.",
            autocompletion=targets,
        ),
    ],
    preset: Annotated[
        Text,
        typer.Option(help="demo, standard, modern, max or supermax.", autocompletion=preset_names),
    ] = None,
    trials: Annotated[Text, typer.Option(help="Finished trials in total.")] = None,
    epochs: Annotated[Text, typer.Option(help="Epochs of a trial, at most.")] = None,
    patience: Annotated[
        Text, typer.Option(help="Early stopping: epochs without a better value.")
    ] = None,
    workers: Annotated[Text, typer.Option(help="Parallel trials, or auto.")] = None,
    gpu_memory: Annotated[
        Text, typer.Option(help="Memory budget of a device, such as 24GiB.")
    ] = None,
    gpus: Annotated[Text, typer.Option(help="GPUs to use: all, or such as 0,1.")] = None,
    executor: Annotated[
        Text, typer.Option(help="local, or ray: run the trials on a Ray cluster.")
    ] = None,
    address: Annotated[Text, typer.Option(help="Address of the Ray cluster.")] = None,
    mps: Annotated[
        bool | None,
        typer.Option(help="Run the kernels of parallel trials concurrently with CUDA MPS."),
    ] = None,
    compile_: Annotated[
        Text,
        typer.Option(
            "--compile",
            help="torch.compile of the encoder's layers on a GPU: auto, true or false.",
            autocompletion=among(("auto", "true", "false")),
        ),
    ] = None,
    models: Annotated[Text, typer.Option(help="Encoders, separated by commas.")] = None,
    data: Annotated[
        Text, typer.Option(help="A CSV or JSONL file, a ReDSM5 folder, or synthetic.")
    ] = None,
    study: Annotated[
        Text,
        typer.Option(
            "--study",
            metavar=STUDY,
            help="Name of the study. Default: the agent's name.",
            autocompletion=studies,
        ),
    ] = None,
    storage: Annotated[
        Text, typer.Option(help="Storage of the study: a file or an Optuna URL.")
    ] = None,
    run_dir: Annotated[
        Text, typer.Option(help="Folder of the run, for a second run on the same machine.")
    ] = None,
    timeout: Annotated[Text, typer.Option(help="Pause after this time, such as 8h.")] = None,
    sampler: Annotated[
        Text,
        typer.Option(
            help="tpe, prior, random, gp, cmaes, qmc, nsgaii.",
            autocompletion=among(get_args(Sampler)),
        ),
    ] = None,
    pruner: Annotated[
        Text,
        typer.Option(
            help="median, promotion, hyperband, halving, none.",
            autocompletion=among(get_args(Pruner)),
        ),
    ] = None,
    stop: Annotated[
        Text,
        typer.Option(
            help="never, or when_no_gain: end by itself once no gain is expected.",
            autocompletion=among(get_args(Stop)),
        ),
    ] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(help="Metric to optimize; repeat for several objectives."),
    ] = None,
    seed: Annotated[Text, typer.Option(help="Random seed of the sampler.")] = None,
    warm_start: Annotated[
        list[str] | None,
        typer.Option(
            help="Earlier study of the agent, whose best configurations begin the search: STUDY, "
            "STORAGE#STUDY or STORAGE; repeat for several.",
            autocompletion=studies,
        ),
    ] = None,
    race: Annotated[
        Text,
        typer.Option(
            help="Best configurations to train again with fresh seeds at the end: a number, auto, "
            "true or false.",
            autocompletion=among(("auto", "true", "false")),
        ),
    ] = None,
    folds: Annotated[
        Text,
        typer.Option(
            help="Folds of a cross-validation over which these configurations race, instead of "
            "fresh seeds."
        ),
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(
            help="Log trials to a tracker: mlflow, tensorboard, wandb, or one with an address, "
            "such as mlflow:URI; repeat for several.",
            autocompletion=among(TRACKERS),
        ),
    ] = None,
    notify: Annotated[
        list[str] | None,
        typer.Option(
            help="Command or webhook (URL) that is called when the search ends, halts or finds a "
            "better value; repeat for several."
        ),
    ] = None,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE: any setting, or a parameter to narrow."),
    ] = None,
    supervisor: Annotated[bool, typer.Option(help="Restart the run if its process dies.")] = True,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show each setting and where it comes from.")
    ] = False,
) -> None:
    """Search for the best configuration. The same command resumes the search.

    Every option can also be set in a YAML file. `supermax init` writes one, and so does this
    command for a CSV or JSONL file. Options override the environment (HPO_EPOCHS, HPO_PATIENCE,
    HPO_MIN_DELTA, HPO_MODEL_CHOICES, PAR, HPO_OUTDIR, N_TRIALS_CRITERIA and so on), which
    overrides the file, which overrides the preset.

    The first Ctrl-C pauses the run, a second one ends it at once. Exit codes: 0 all trials are
    finished, 2 wrong input, 3 the machine or the storage prevents the run, 4 every trial fails in
    the same way, 5 paused by --timeout, 6 quarantined: trials fail here that succeed on other
    machines, 130 paused by Ctrl-C.

    \b
    Examples:
      supermax tune criteria --trials 2 --epochs 1 --set data.posts=100
      supermax tune notes.csv --trials 2 --epochs 1
      supermax tune notes.yaml --workers 2 --timeout 8h
      supermax tune all --trials 1 --epochs 1 --set data.posts=60 --set optim.lr=1e-3
    """
    options = {
        "preset": preset,
        "trials": trials,
        "epochs": epochs,
        "patience": patience,
        "seed": seed,
        "workers": workers,
        "gpu_memory": gpu_memory,
        "gpus": gpus,
        "executor": executor,
        "address": address,
        "mps": mps,
        "compile": compile_,
        "models": models,
        "data.path": data,
        "name": study,
        "storage": storage,
        "run_dir": run_dir,
        "timeout": timeout,
        "sampler": sampler,
        "pruner": pruner,
        "stop": stop,
        "objectives": objective or None,
        "race": race,
        "folds": folds,
        "warm_start": warm_start or None,
        "track": track or None,
        "notify": notify or None,
    }
    flags = {k: Value(v, f"--{_flag(k, v)}") for k, v in options.items() if v is not None}
    if is_data(target):
        target = str(_settings_of(Path(target).expanduser(), flags.get("models")))
    searches = resolved(target, flags | assigned(assign or []))
    for each in searches:  # before torch is loaded, which takes seconds
        check_names(each.settings)
        if not supervision.is_supervised():
            check_storage(each.settings.storage_address)
            find_earlier(each.settings)
    descriptors.check_descriptors(workers=1)  # torch opens many
    if not supervision.is_supervised():
        _say("Starting. Loading torch and transformers takes a few seconds.")
    if supervisor and not supervision.is_supervised():
        run = functools.partial(run_all, searches, verbose=verbose)
        code = supervision.Supervisor(run if system.LINUX else _exec_again, _say).run()
        if code == supervision.BUG:
            _notify_of_deaths(searches)
        raise typer.Exit(code)
    raise typer.Exit(run_all(searches, verbose=verbose))


def _notify_of_deaths(searches: list[Resolved]) -> None:
    """Notify that the process of a search has died too often, in the supervisor."""
    if targets := list(dict.fromkeys(t for each in searches for t in each.settings.notify)):
        from supermax.results.notifying import notify_halted

        names = ", ".join(each.settings.study for each in searches)
        notify_halted(targets, names, "The process of the search has died too often.")


def _exec_again() -> int:
    """Replace the forked child by a new interpreter: libraries of macOS do not survive a fork."""
    os.set_inheritable(int(os.environ[supervision.BEAT]), True)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "supermax", *sys.argv[1:]])


def resolved(
    target: str, flags: dict[str, Value], *, without: Collection[str] = ()
) -> list[Resolved]:
    """Return the settings of each search that `target` names. For a table, they are those that
    `supermax init` would write. `without`: environment variables that do not count."""
    file = None
    agents: list[str | None] = [target]
    if target == ALL:
        agents = [name for name in AGENTS if agent_of(name).redsm5]
        if "name" in flags:
            given = flags["name"].source
            raise UserError(f"{len(agents)} agents cannot share one study: leave out {given}.")
    elif is_data(target):
        agents = [guess_file(target).agent]
        guessed = {"data.path": target, "models": ",".join(encoders_here()) or None}
        flags = {k: Value(v, "as init has it") for k, v in guessed.items() if v} | flags
    elif target not in AGENT_NAMES:
        file, agents = _settings_file(target), [None]
    return [
        resolve(
            agent,
            file=file,
            environment={k: v for k, v in os.environ.items() if k not in without},
            flags=flags,
            presets=presets(),
            parameters=_parameters(agent),
        )
        for agent in agents
    ]


def check_names(settings: Settings) -> None:
    """Raise UserError for metrics and values that the agent and its space do not have."""
    for name in settings.objectives:
        if name not in COSTS:
            check_metric(name, settings.agent)
    space_for(settings)


def is_data(target: str) -> bool:
    """Return True for a table, a folder of data other than ReDSM5, or a dataset of the Hub."""
    if target in (*AGENT_NAMES, ALL):
        return False
    path = Path(target).expanduser()
    is_folder = _is(path, Path.is_dir) and not is_redsm5(path)
    return is_hub(target) or is_folder or (is_table(path) and _is(path, Path.is_file))


def _is(path: Path, kind: Callable[[Path], bool]) -> bool:
    try:
        return kind(path)
    except OSError:  # the name is too long for a file
        return False


def _settings_file(target: str) -> Path:
    path = Path(target).expanduser()
    if _is(path, Path.is_file):
        return path
    if is_table(path):
        raise UserError(f"There is no file {path}.")
    if path.suffix in (".yaml", ".yml", ".json") or os.sep in target:
        hint = hub_hint(target)
        raise UserError(
            f"There is no file {path}. `supermax init` writes one to start from.{hint}"
        )
    raise UserError(ended(f"There is no agent {target!r}{nearest(target, (*AGENT_NAMES, ALL))}"))


def _settings_of(path: Path, models: Value | None) -> Path:
    """Return the settings file of a table, after writing it as `supermax init` does if missing.

    Raises UserError where a file of that name describes another table.
    """
    place = settings_path(path)
    if not place.exists():
        named = str(models.value).split(",") if models is not None else encoders_here()
        for line in write_settings(path, place, named):
            _say(line)
        _say(f"Settings written to {place}. To change them, edit it and run this command again.")
    elif not _describes(place, path):
        settings, table = shlex.quote(str(place)), shlex.quote(str(path))
        raise UserError(
            f"{place} exists already and does not describe {path}. Search it with `supermax tune "
            f"{settings}`, or write other settings with `supermax init {table} -o OTHER.yaml`."
        )
    elif not supervision.is_supervised():
        _say(f"Settings are read from {place}.")
    return place


def _describes(place: Path, path: Path) -> bool:
    try:
        data = resolve(None, file=place, presets=presets()).settings.data.path
    except UserError:  # raised again, and reported, when the search is resolved
        return True
    return data is not None and Path(data).expanduser().resolve() == path.resolve()


def _parameters(agent: str | None) -> dict[str, Any]:
    """Return the parameters that --set may narrow: those of the agent's space, or of all, and
    those that no space of the package searches."""
    found: dict[str, Any] = {}
    for each in AGENTS if agent is None else [stored_name(agent)]:
        found |= load(each).parameters | unsearched(each) | lora_parameters()
    return found


def assigned(pairs: list[str]) -> dict[str, Value]:
    """Return the settings of --set KEY=VALUE, with values parsed as YAML."""
    found = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--set {pair}: write it as KEY=VALUE, for example --set epochs=3.")
        source = f"--set {key.strip()}"
        try:
            found[key.strip()] = Value(scalar(text), source)
        except UserError as error:
            raise UserError(f"{source}: {error}") from None
    return found


def _flag(key: str, value: object) -> str:
    named = {"data.path": "data", "objectives": "objective", "name": "study"}
    return "no-" * (value is False) + named.get(key, key).replace("_", "-")


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a closed terminal must not end the run
        print(wrapped(f"[supermax] {text}", sys.stderr), file=sys.stderr, flush=True)


def run_all(searches: list[Resolved], *, verbose: bool = False) -> int:
    """Run one search after the other until one is paused, in the supervised process.

    Returns the exit code of the last one.
    """
    sys.stdout, sys.stderr = Surviving(sys.stdout), Surviving(sys.stderr)
    first, began = supervision.restarts() == 0, time.monotonic() - supervision.spent()
    heartbeat = supervision.follow() if supervision.is_supervised() else lambda: None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    code = supervision.REACHED
    for each in searches:
        spent = time.monotonic() - began
        with started_early(each.settings):
            code = run_one(each, heartbeat, print_plan=first, spent=spent, verbose=verbose)
        if code != supervision.REACHED:
            break
    return code


def run_one(
    each: Resolved,
    heartbeat: Callable[[], None],
    *,
    print_plan: bool,
    spent: float = 0.0,
    verbose: bool = False,
) -> int:
    """Run a search, print its outcome, and return the exit code.

    `heartbeat` is called after every trial. `spent` are the seconds of the command's timeout that
    are used up already.
    """
    with gc_paused():
        # Heavy imports, and wrong settings are reported without them.
        from supermax.search import preview
        from supermax.search.prepare import prepare_search

        prepared = prepare_search(each, tell=_say)  # both import more
        lines = preview.describe_plan(prepared, verbose) if print_plan else []
    if lines:
        lines = printable("\n".join(lines)).split("\n")
        if sys.stdout.isatty():
            lines = preview.folded(lines, shutil.get_terminal_size().columns)
        print("\n".join(lines), flush=True)
    deadline = None
    if (timeout := prepared.options.timeout) is not None:  # wall time of the whole command
        deadline = time.monotonic() + timeout - spent
    tuned = prepared.run(timeout=None, deadline=deadline, callbacks=[lambda *_: heartbeat()])
    print(wrapped("\n".join(outcome(each.settings, tuned)), sys.stdout))
    stopped = tuned.summary.stopped_by
    trials = tuned.summary.trials
    failed = trials["FAIL"] and not trials["COMPLETE"] and not trials["PRUNED"]
    return {"timeout": supervision.PAUSED, "interrupt": supervision.INTERRUPTED}.get(
        stopped or "", supervision.HALTED if failed else supervision.REACHED
    )
