"""`supermax tune`: search an agent, or what a YAML file says; the same command goes on.

target, flags ──resolve()──▶ Search ──supervisor──▶ run, agent by agent ──▶ what came of it
"""

from __future__ import annotations

import contextlib
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
from supermax.cli.completing import among, preset_names, targets
from supermax.cli.init import begin, place_of
from supermax.cli.stdio import Surviving
from supermax.engine import descriptors
from supermax.errors import UserError
from supermax.naming import AGENTS
from supermax.settings import Resolved, resolve
from supermax.settings.model import Pruner, Sampler, Settings
from supermax.settings.resolving import Value
from supermax.space.presets import presets
from supermax.space.reading import load
from supermax.study import file_of
from supermax.training.data.rows import is_table
from supermax.trees import scalar
from supermax.words import ended, metric_title, nearest, printable

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
        Text, typer.Option(help="demo, max or supermax.", autocompletion=preset_names)
    ] = None,
    trials: Annotated[Text, typer.Option(help="Finished trials in all.")] = None,
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
    track: Annotated[Text, typer.Option(help="To MLflow: a URI, a file, or mlflow.")] = None,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE: any setting, or a parameter to narrow."),
    ] = None,
    supervisor: Annotated[bool, typer.Option(help="Start the run again when it dies.")] = True,
) -> None:
    """Search for the best configuration. The same command goes on where it stopped.

    What can be given here can stand in a YAML file. `supermax init` writes one, and so does this
    command for a CSV or JSONL file. Flags come
    before the environment (HPO_EPOCHS, HPO_PATIENCE, HPO_MIN_DELTA, HPO_MODEL_CHOICES, PAR,
    HPO_OUTDIR, N_TRIALS_CRITERIA and so on), that before the file, that before the preset.

    The first Ctrl-C pauses the run, a second one ends it at once. Exit codes: 0 all trials are
    finished, 2 something was asked that cannot be done, 3 the machine or the storage does not
    allow it, 4 every trial fails in the same way, 5 paused by --timeout, 130 paused by Ctrl-C.

    \b
    Examples:
      supermax tune criteria --trials 2 --set epochs=1 --set data.posts=100
      supermax tune notes.csv --trials 2 --set epochs=1
      supermax tune notes.yaml --workers 2 --timeout 8h
      supermax tune all --trials 1 --set epochs=1 --set data.posts=60 --set optim.lr=1e-3
    """
    given = {
        "preset": preset,
        "trials": trials,
        "workers": workers,
        "gpu_memory": gpu_memory,
        "gpus": gpus,
        "mps": mps,
        "compile": compile_,
        "models": models,
        "data.path": data,
        "storage": storage,
        "timeout": timeout,
        "sampler": sampler,
        "pruner": pruner,
        "objectives": objective or None,
        "track": track,
    }
    flags = {k: Value(v, f"--{_flag(k, v)}") for k, v in given.items() if v is not None}
    searches = resolved(target, flags | assigned(assign or []))
    descriptors.check(workers=1)  # before torch is loaded, which opens many
    if not supervise.is_supervised():
        _say("Starting. What a search needs is loaded first, which takes some seconds.")
    if supervisor and not supervise.is_supervised():
        command = [sys.executable, "-P", "-m", "supermax", *sys.argv[1:]]
        raise typer.Exit(supervise.Supervisor(command, _say).run())
    raise typer.Exit(run_all(searches))


def resolved(target: str, flags: dict[str, Value]) -> list[Resolved]:
    """The settings of each search that is meant."""
    file = None
    agents: list[str | None] = [target]
    if target == ALL:
        agents = list(AGENTS)
        if "name" in flags:
            raise UserError("Four agents cannot share one study: leave out --set name=….")
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


def _file(target: str) -> Path:
    path = Path(target).expanduser()
    with contextlib.suppress(OSError):  # a name that is too long for a file
        if path.is_file():
            return _for_table(path) if is_table(path) else path
    if path.suffix in (".yaml", ".yml", ".json") or os.sep in target:
        raise UserError(f"There is no file {path}. `supermax init` writes one to begin with.")
    raise UserError(ended(f"There is no agent {target!r}{nearest(target, (*AGENTS, ALL))}"))


def _for_table(path: Path) -> Path:
    """The settings of a table: those that `supermax init` writes, and that it wrote before."""
    place = place_of(path)
    if not place.exists():
        for line in begin(path, place):
            _say(line)
        _say(f"Written to {place}: change it there, and give the same command again.")
    elif not _is_about(place, path):
        raise UserError(
            f"{place} is there already, and is not about {path}. Search it with `supermax tune "
            f"{place}`, or write other settings with `supermax init {path} -o OTHER.yaml`."
        )
    elif not supervise.is_supervised():
        _say(f"The settings are those of {place}.")
    return place


def _is_about(place: Path, path: Path) -> bool:
    try:
        about = resolve(None, file=place, presets=presets()).settings.data.path
    except UserError:  # it is said when the search is resolved
        return True
    return about is not None and Path(about).expanduser().absolute() == path.absolute()


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
    named = {"data.path": "data", "objectives": "objective"}
    return "no-" * (value is False) + named.get(key, key).replace("_", "-")


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone, which is no reason to end
        print(f"[supermax] {text}", file=sys.stderr, flush=True)


# In the process that runs it.


def run_all(searches: list[Resolved]) -> int:
    """One search after the other, until one is paused."""
    sys.stdout = Surviving(sys.stdout)
    first, began = supervise.restarts() == 0, time.monotonic() - supervise.spent()
    beat = supervise.follow() if supervise.is_supervised() else lambda: None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    code = supervise.REACHED
    for each in searches:
        code = run_one(each, beat, say_plan=first, spent=time.monotonic() - began)
        if code != supervise.REACHED:
            break
    return code


def run_one(
    each: Resolved, beat: Callable[[], None], *, say_plan: bool, spent: float = 0.0
) -> int:
    from supermax import planning, search  # torch is heavy, and wrong settings are told without it

    prepared = search.prepared(each, tell=_say)
    if say_plan:
        lines = printable("\n".join(planning.plan(prepared))).split("\n")
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
    """What came of it, and what can be done with it now."""
    settings = prepared.settings
    study, where = shlex.quote(settings.study), _where(settings)
    rows = tuned.best(1)
    paused = "Paused: the same command goes on." if tuned.summary.stopped_by else ""
    if not rows:
        why = paused or f"`supermax faults {study}{where}` says why."
        return [f"No trial of '{settings.study}' has come to a value yet. {why}"]
    best = rows[0]
    titles = [metric_title(name, tuned.splits.train.label_names) for name in tuned.objectives]
    values = ", ".join(
        f"{name} {value:.4f}" for name, value in zip(titles, best["values"], strict=True)
    )
    return [
        *([paused] if paused else []),
        f"Best so far: trial {best['trial']} ({best['encoder']}), {values}.",
        *_no_better(tuned.without_reading(best["values"][0])),
        f"Look at it: supermax best {study}{where}   "
        f"Train it for good: supermax refit {study}{where}",
    ]


def _no_better(without_reading: float | None) -> list[str]:
    if without_reading is None:
        return []
    return [
        f"That is no better than answering without reading (the most frequent class, no answer), "
        f"which scores {without_reading:.4f}. Try more epochs, other learning rates or more data."
    ]


def _where(settings: Settings) -> str:
    """The storage, to be pasted; a server's URL may hold a password."""
    from supermax.search import storage_of

    if settings.storage is None and settings.outdir == ".":
        return ""
    where = storage_of(settings)
    return " --storage …" if file_of(where) is None else f" --storage {shlex.quote(where)}"
