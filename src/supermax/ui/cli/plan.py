"""`supermax plan`: memory that a configuration needs, and the share of a space that fits.

options ──▶ --model          ──▶ plan_model: one trial, item by item
        └─▶ --space or TARGET ──▶ plan_space: every encoder of a space

No weights and no GPU are needed: everything follows from the encoder's configuration.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from supermax._util.text import ended, nearest
from supermax.agents import AGENT_NAMES, AGENTS, TASKS, agent_of, stored_name
from supermax.agents.criteria import CRITERIA
from supermax.errors import UserError
from supermax.search.settings.units import size
from supermax.ui.cli.completing import among, preset_names, targets
from supermax.ui.cli.opening import AsJson
from supermax.ui.cli.plan_model import plan_model
from supermax.ui.cli.plan_space import count_truncated, plan_space

if TYPE_CHECKING:
    from supermax.search.settings import Settings
    from supermax.space import Space

DEVICES = ("cuda", "cpu")
OPTIMIZERS = ("adamw", "adamw_8bit", "adafactor", "lion")
_TRIAL_OPTIONS = ("batch", "accum", "length", "optimizer", "frozen")


def plan(
    ctx: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            help="A search to plan, as `tune` takes it: an agent or a YAML file.",
            autocompletion=targets,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name or folder of one encoder to plan.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=100_000, help="Sequences per batch.")] = 16,
    accum: Annotated[
        int, typer.Option(min=1, max=10_000, help="Batches accumulated per optimizer step.")
    ] = 1,
    length: Annotated[int, typer.Option(min=8, help="Tokens of the longest sequence.")] = 256,
    optimizer: Annotated[
        str, typer.Option(help=", ".join(OPTIMIZERS), autocompletion=among(OPTIMIZERS))
    ] = "adamw",
    frozen: Annotated[int, typer.Option(min=0, help="Number of frozen layers.")] = 0,
    agent: Annotated[
        str, typer.Option(help=TASKS, autocompletion=among(AGENT_NAMES))
    ] = CRITERIA.name,
    evidence_model: Annotated[
        str | None, typer.Option(help="Second encoder of the agent joint. Default: --model.")
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option(help="Memory of the device, such as 24GiB. Default: this machine's."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cuda or cpu.", autocompletion=among(DEVICES))
    ] = "cuda",
    space: Annotated[
        str | None,
        typer.Option(
            help="Preset or space file to plan.",
            autocompletion=preset_names,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how much device memory a trial needs, item by item, and how its batch is split.

    The effective batch (batch × accumulation) never changes: a batch that does not fit is split
    into micro-batches whose gradients add up to the same. With TARGET or --space, every encoder
    of the space is planned.

    Exit codes: 0 if the trial, or a part of the space, fits; 1 if nothing fits; 2 if an option
    is wrong.

    \b
    Examples:
      supermax plan notes.yaml --gpu-memory 24GiB
      supermax plan --model bert-large-uncased --batch 48 --accum 4 --length 480 --gpu-memory 24GiB
      supermax plan --space supermax --gpu-memory 24GiB
    """
    if sum(each is not None for each in (target, model, space)) != 1:
        raise UserError(
            "Name one encoder with --model, a preset with --space, or a search as `supermax tune` "
            "takes it: an agent or a YAML file."
        )
    if model is None:
        _refuse_trial_options(ctx, target)
    if space is not None:
        agent = _agent_of(space, agent if _is_given(ctx, "agent") else None)
    for name, value, known in (
        ("agent", agent, AGENT_NAMES),
        ("optimizer", optimizer, OPTIMIZERS),
        ("device", device, DEVICES),
    ):
        if value not in known:
            raise UserError(ended(f"There is no {name} {value!r}{nearest(value, known)}"))
    for name in filter(None, (model, evidence_model)):
        if "," in name and not Path(name).expanduser().exists():
            raise UserError("plan takes one encoder; --space shows several side by side.")
    if evidence_model is not None and (model is None or agent_of(agent).encoders == 1):
        raise UserError("--evidence-model goes with --model and --agent joint.")
    if target is not None:
        _plan_search(_settings_of(target, gpu_memory), device, as_json)
        return
    budget = _budget(_bytes(gpu_memory), device)
    if space is not None:
        plan_space(_load_space(space, agent), agent, budget, device, as_json)
        return
    assert model is not None
    settings = {
        "agent": agent,
        "encoder": {"name": model, "frozen_layers": frozen},
        "evidence_encoder": {"name": evidence_model} if evidence_model else None,
        "text": {"max_length": length},
        "train": {"effective_batch": batch * accum},
        "optim": {"name": optimizer},
    }
    plan_model(settings, budget, device, batch, as_json)


def _refuse_trial_options(ctx: typer.Context, target: str | None) -> None:
    """Raise UserError for options of a single trial: a search or a space has its own values."""
    own = _TRIAL_OPTIONS if target is None else (*_TRIAL_OPTIONS, "agent")
    if given := [f"--{name}" for name in own if _is_given(ctx, name)]:
        what = target or "--space"
        raise UserError(f"{' and '.join(given)} cannot go with {what}, which has its own.")


def _plan_search(settings: Settings, device: str, as_json: bool) -> None:
    from supermax.search.spaces import space_for

    budget, space = _budget(settings.gpu_memory, device), space_for(settings)
    truncated = count_truncated(settings, space)
    plan_space(space, settings.agent, budget, device, as_json, truncated)


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _agent_of(space: str, given: str | None) -> str:
    """Return the agent of a shipped space; for any other, the given one (default: criteria)."""
    from supermax.space import shipped

    own = space.rpartition("/")[2]
    if space not in shipped() or own not in AGENTS:
        return stored_name(given or CRITERIA.name)
    if given is not None and stored_name(given) != own:
        raise UserError(f"--agent cannot go with --space {space}, which is for the agent {own}.")
    return own


def _settings_of(target: str, gpu_memory: str | None) -> Settings:
    from supermax.search.settings.resolving import Value
    from supermax.ui.cli.tune import ALL, resolved

    if target == ALL:
        raise UserError(f"plan takes one search at a time: {', '.join(AGENTS)} or a YAML file.")
    flags = {} if gpu_memory is None else {"gpu_memory": Value(gpu_memory, "--gpu-memory")}
    return resolved(target, flags)[0].settings


def _load_space(name: str, agent: str) -> Space:
    """Return the space of a preset or of a file."""
    from supermax.space import load
    from supermax.space.presets import preset, presets

    try:
        return preset(agent, name).space if name in presets() else load(name)
    except UserError as error:
        raise UserError(f"{error} Presets are {', '.join(presets())}.") from None


def _bytes(given: str | None) -> int | None:
    try:
        return None if given is None else int(size(given))
    except ValueError as error:
        raise UserError(f"--gpu-memory {given}: {error}.") from None


def _budget(given: int | None, device: str) -> int:
    """Return the bytes that were given, or those of this machine's device."""
    from supermax.memory.budgets import GpuBudget, host_budget

    if given is not None:
        return given
    found = GpuBudget().whole if device == "cuda" else host_budget()
    if not found:
        raise UserError(
            "No GPU was found here. Set the memory of one (--gpu-memory 24GiB), or plan for this "
            "machine (--device cpu)."
        )
    return found
