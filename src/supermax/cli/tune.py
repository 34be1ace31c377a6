"""`supermax tune`: search an agent, or what a YAML file says; the same command goes on.

target, flags ──resolve()──▶ Search ──supervisor──▶ run, agent by agent ──▶ what came of it
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import optuna
import typer

from supermax import supervise
from supermax.cli.completing import among, preset_names, studies, targets
from supermax.cli.early import started_early
from supermax.cli.init import encoders_here, settings_path, write_settings
from supermax.cli.opening import STUDY
from supermax.cli.stdio import Surviving
from supermax.engine import descriptors, kernel
from supermax.errors import UserError
from supermax.importing import gc_paused
from supermax.naming import AGENTS, COSTS
from supermax.settings import Resolved, resolve
from supermax.settings.model import Pruner, Sampler, Settings
from supermax.settings.resolving import Value
from supermax.space.presets import presets
from supermax.space.reading import load
from supermax.spaces import space_of
from supermax.study import file_of
from supermax.training.data.guessing import guess_file
from supermax.training.data.rows import is_table
from supermax.training.metrics import check_metric
from supermax.trees import scalar
from supermax.words import ended, nearest, printable, took

if TYPE_CHECKING:
    from supermax.search import Search
    from supermax.tuning import Tuned

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
        Text, typer.Option(help="demo, standard, max or supermax.", autocompletion=preset_names)
    ] = None,
    trials: Annotated[Text, typer.Option(help="Finished trials in all.")] = None,
    epochs: Annotated[Text, typer.Option(help="Of a trial, at most.")] = None,
    patience: Annotated[
        Text, typer.Option(help="Epochs without a better value that end a trial.")
    ] = None,
    workers: Annotated[Text, typer.Option(help="Trials at a time, or auto.")] = None,
    gpu_memory: Annotated[
        Text, typer.Option(help="Budget of a device, to emulate a smaller one: 24GiB.")
    ] = None,
    gpus: Annotated[Text, typer.Option(help="GPUs to use: 0,1.")] = None,
    mps: Annotated[
        bool | None,
        typer.Option(help="Trials share a GPU instead of taking turns on it (CUDA's MPS)."),
    ] = None,
    compile_: Annotated[
        Text,
        typer.Option(
            "--compile",
            help="Compile layers on a GPU: auto, true or false.",
            autocompletion=among(("auto", "true", "false")),
        ),
    ] = None,
    models: Annotated[Text, typer.Option(help="Encoders, with commas.")] = None,
    data: Annotated[
        Text, typer.Option(help="A CSV or JSONL file, a folder of ReDSM5, or synthetic.")
    ] = None,
    study: Annotated[
        Text,
        typer.Option(
            metavar=STUDY, help="The study's name; default: the agent's.", autocompletion=studies
        ),
    ] = None,
    storage: Annotated[Text, typer.Option(help="A file or an Optuna URL.")] = None,
    timeout: Annotated[Text, typer.Option(help="When to pause: 8h.")] = None,
    sampler: Annotated[
        Text,
        typer.Option(
            help="tpe, random, gp, cmaes, qmc, nsgaii.", autocompletion=among(get_args(Sampler))
        ),
    ] = None,
    pruner: Annotated[
        Text,
        typer.Option(
            help="median, hyperband, halving, none.", autocompletion=among(get_args(Pruner))
        ),
    ] = None,
    objective: Annotated[
        list[str] | None, typer.Option(help="A metric; repeat it to weigh several.")
    ] = None,
    seed: Annotated[Text, typer.Option(help="Of the sampler.")] = None,
    track: Annotated[Text, typer.Option(help="To MLflow: a URI, a file, or mlflow.")] = None,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE: any setting, or a parameter to narrow."),
    ] = None,
    supervisor: Annotated[bool, typer.Option(help="Start the run again when it dies.")] = True,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show each setting and where it comes from.")
    ] = False,
) -> None:
    """Search for the best configuration. The same command goes on where it stopped.

    What can be given here can stand in a YAML file. `supermax init` writes one, and so does this
    command for a CSV or JSONL file. Flags come before the environment (HPO_EPOCHS, HPO_PATIENCE,
    HPO_MIN_DELTA, HPO_MODEL_CHOICES, PAR, HPO_OUTDIR, N_TRIALS_CRITERIA and so on), that before
    the file, that before the preset.

    The first Ctrl-C pauses the run, a second one ends it at once. Exit codes: 0 all trials are
    finished, 2 something was asked that cannot be done, 3 the machine or the storage does not
    allow it, 4 every trial fails in the same way, 5 paused by --timeout, 130 paused by Ctrl-C.

    \b
    Examples:
      supermax tune criteria --trials 2 --epochs 1 --set data.posts=100
      supermax tune notes.csv --trials 2 --epochs 1
      supermax tune notes.yaml --workers 2 --timeout 8h
      supermax tune all --trials 1 --epochs 1 --set data.posts=60 --set optim.lr=1e-3
    """
    given = {
        "preset": preset,
        "trials": trials,
        "epochs": epochs,
        "patience": patience,
        "seed": seed,
        "workers": workers,
        "gpu_memory": gpu_memory,
        "gpus": gpus,
        "mps": mps,
        "compile": compile_,
        "models": models,
        "data.path": data,
        "name": study,
        "storage": storage,
        "timeout": timeout,
        "sampler": sampler,
        "pruner": pruner,
        "objectives": objective or None,
        "track": track,
    }
    flags = {k: Value(v, f"--{_flag(k, v)}") for k, v in given.items() if v is not None}
    if _is_file_of_rows(target):
        target = str(_settings_of(Path(target).expanduser(), flags.get("models")))
    searches = resolved(target, flags | assigned(assign or []))
    for each in searches:  # before torch is loaded, which takes seconds
        check_names(each.settings)
    descriptors.check(workers=1)  # torch opens many
    if not supervise.is_supervised():
        _say("Starting. What a search needs is loaded first, which takes some seconds.")
    if supervisor and not supervise.is_supervised():
        run = functools.partial(run_all, searches, verbose=verbose)
        raise typer.Exit(supervise.Supervisor(run if kernel.LINUX else _start_anew, _say).run())
    raise typer.Exit(run_all(searches, verbose=verbose))


def _start_anew() -> int:
    """Replace the forked child by a new interpreter: libraries of macOS do not survive a fork."""
    os.set_inheritable(int(os.environ[supervise.BEAT]), True)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "supermax", *sys.argv[1:]])


def resolved(target: str, flags: dict[str, Value]) -> list[Resolved]:
    """Return the settings of each search that is meant; for a table, those that `supermax init`
    would write."""
    file = None
    agents: list[str | None] = [target]
    if target == ALL:
        agents = list(AGENTS)
        if "name" in flags:
            given = flags["name"].source
            raise UserError(f"Four agents cannot share one study: leave out {given}.")
    elif _is_file_of_rows(target):
        agents = [guess_file(Path(target).expanduser()).agent]
        guessed = {"data.path": target, "models": ",".join(encoders_here()) or None}
        flags = {k: Value(v, "as init has it") for k, v in guessed.items() if v} | flags
    elif target not in AGENTS:
        file, agents = _file(target), [None]
    return [
        resolve(
            agent,
            file=file,
            environment=os.environ,
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
    space_of(settings)


def _is_file_of_rows(target: str) -> bool:
    path = Path(target).expanduser()
    return is_table(path) and _is_file(path)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long for a file
        return False


def _file(target: str) -> Path:
    path = Path(target).expanduser()
    if _is_file(path):
        return path
    if is_table(path):
        raise UserError(f"There is no file {path}.")
    if path.suffix in (".yaml", ".yml", ".json") or os.sep in target:
        raise UserError(f"There is no file {path}. `supermax init` writes one to begin with.")
    raise UserError(ended(f"There is no agent {target!r}{nearest(target, (*AGENTS, ALL))}"))


def _settings_of(path: Path, models: Value | None) -> Path:
    """Return the file with the settings of a table; write it as `supermax init` does where it is
    missing."""
    place = settings_path(path)
    if not place.exists():
        named = str(models.value).split(",") if models is not None else encoders_here()
        for line in write_settings(path, place, named):
            _say(line)
        _say(f"Written to {place}: change it there, and give the same command again.")
    elif not _describes(place, path):
        mine, table = shlex.quote(str(place)), shlex.quote(str(path))
        raise UserError(
            f"{place} is there already, and is not about {path}. Search it with `supermax tune "
            f"{mine}`, or write other settings with `supermax init {table} -o OTHER.yaml`."
        )
    elif not supervise.is_supervised():
        _say(f"The settings are those of {place}.")
    return place


def _describes(place: Path, path: Path) -> bool:
    try:
        about = resolve(None, file=place, presets=presets()).settings.data.path
    except UserError:  # it is said when the search is resolved
        return True
    return about is not None and Path(about).expanduser().resolve() == path.resolve()


def _parameters(agent: str | None) -> dict[str, Any]:
    """Names that --set may narrow: of the full space, or of any agent's."""
    if agent is not None:
        return dict(load(agent).parameters)
    return {name: p for each in AGENTS for name, p in load(each).parameters.items()}


def assigned(pairs: list[str]) -> dict[str, Value]:
    """--set KEY=VALUE, the value as a file would have it."""
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
    with contextlib.suppress(OSError):  # the terminal is gone, which is no reason to end
        print(f"[supermax] {text}", file=sys.stderr, flush=True)


# In the process that runs it.


def run_all(searches: list[Resolved], *, verbose: bool = False) -> int:
    """One search after the other, until one is paused."""
    sys.stdout, sys.stderr = Surviving(sys.stdout), Surviving(sys.stderr)
    first, began = supervise.restarts() == 0, time.monotonic() - supervise.spent()
    beat = supervise.follow() if supervise.is_supervised() else lambda: None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    code = supervise.REACHED
    for each in searches:
        spent = time.monotonic() - began
        with started_early(each.settings):
            code = run_one(each, beat, say_plan=first, spent=spent, verbose=verbose)
        if code != supervise.REACHED:
            break
    return code


def run_one(
    each: Resolved,
    beat: Callable[[], None],
    *,
    say_plan: bool,
    spent: float = 0.0,
    verbose: bool = False,
) -> int:
    with gc_paused():
        from supermax import planning, search  # heavy, and wrong settings are told without it

        prepared = search.prepared(each, tell=_say)  # both import more
        lines = planning.plan(prepared, verbose) if say_plan else []
    if lines:
        lines = printable("\n".join(lines)).split("\n")
        if sys.stdout.isatty():
            lines = planning.folded(lines, shutil.get_terminal_size().columns)
        print("\n".join(lines), flush=True)
    options = dict(prepared.options)
    if (timeout := options.pop("timeout")) is not None:  # wall time of the whole command
        options["deadline"] = time.monotonic() + timeout - spent
    tuned = prepared.tuning.run(callbacks=[lambda *_: beat()], **options)
    print("\n".join(outcome(prepared, tuned)))
    stopped = tuned.summary.stopped_by
    trials = tuned.summary.trials
    failed = trials["FAIL"] and not trials["COMPLETE"] and not trials["PRUNED"]
    return {"timeout": supervise.PAUSED, "interrupt": supervise.INTERRUPTED}.get(
        stopped or "", supervise.HALTED if failed else supervise.REACHED
    )


def outcome(prepared: Search, tuned: Tuned) -> list[str]:
    """Return the best trial and what can be done with it now."""
    from supermax.tuning import titles_of

    settings = prepared.settings
    study, where = shlex.quote(settings.study), _where(settings)
    rows = tuned.best(1)
    running = tuned.summary.trials.get("RUNNING")
    from_there = ", running trials from their last checkpoint" if running else ""
    paused = f"Paused: the same command goes on{from_there}." if tuned.summary.stopped_by else ""
    if not rows:
        why = paused or f"`supermax faults {study}{where}` says why."
        if tuned.summary.stopped_by == "timeout":
            why = (
                f"The timeout of {took(settings.timeout)} counts from the command on, loading "
                f"included, and was over before. The same command goes on; give it more time."
            )
        return [f"No trial of '{settings.study}' has come to a value yet. {why}"]
    best = rows[0]
    titles = titles_of(tuned.objectives, tuned.splits.train.label_names)
    values = ", ".join(
        f"{name} {value:.4f}" for name, value in zip(titles, best["values"], strict=True)
    )
    return [
        *([paused] if paused else []),
        f"Best so far: trial {best['trial']} ({best['encoder']}), {values} "
        f"(validation, n={tuned.splits.validation.count(tuned.agent)}).",
        *_no_better(titles[0], tuned.trivial_baseline(best["values"][0])),
        f"Look at it: supermax best {study}{where}   "
        f"Train it for good: supermax refit {study}{where}",
    ]


def _no_better(metric: str, baseline: float | None) -> list[str]:
    if baseline is None:
        return []
    return [
        f"That is no better than the trivial baseline (majority class, no answer), which has "
        f"{metric} {baseline:.4f}. Try more epochs, other learning rates or more data."
    ]


def _where(settings: Settings) -> str:
    """The storage, to be pasted; a server's URL may hold a password."""
    from supermax.search import storage_of

    if settings.storage is None and settings.outdir == ".":
        return ""
    where = storage_of(settings)
    return " --storage …" if file_of(where) is None else f" --storage {shlex.quote(where)}"
