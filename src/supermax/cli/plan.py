"""`supermax plan`: what a configuration needs of a device, and how much of a space fits it.

No weights and no GPU are needed: everything follows from the encoder's configuration.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from supermax.cli.completing import among, preset_names, targets
from supermax.cli.opening import AsJson, print_json
from supermax.cli.printing import console, literal
from supermax.errors import UserError
from supermax.naming import AGENTS
from supermax.settings.units import size
from supermax.words import ended, in_short, nearest, size_text

if TYPE_CHECKING:
    from supermax.agents.fits import Share
    from supermax.agents.truncation import Cut
    from supermax.memory.estimate import Need
    from supermax.memory.facts import Spec
    from supermax.memory.planner import NoPlan, Plan
    from supermax.settings import Settings
    from supermax.space import Space

ITEMS = {
    "weights": "weights, fp32",
    "gradients": "gradients",
    "optimizer": "the optimizer's state",
    "half_copies": "copies of matrices in half precision",
    "activations": "activations kept for the backward pass",
    "attention": "attention kept for the backward pass",
    "loss": "heads and loss",
    "workspace": "workspace of the libraries and of one layer",
    "other_moments": "more for the optimizer's step or evaluation",
    "saved": "copies of the weights: best epoch, state",
    "data": "the texts, as tokens",
    "slack": "the allocator's slack",
    "context": "the process itself",
}
NOT_AT_ONCE = "less, as not all of this is there at once"
OF_ONE_TRIAL = ("batch", "accum", "length", "optimizer", "frozen")
OPTIMIZERS = ("adamw", "adamw_8bit", "adafactor", "lion")


def plan(
    ctx: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            help="A search as `tune` takes it, an agent or a YAML file: each of its encoders.",
            autocompletion=targets,
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="An encoder: its name, or a folder.")] = None,
    batch: Annotated[int, typer.Option(min=1, max=100_000, help="Sequences of a batch.")] = 16,
    accum: Annotated[int, typer.Option(min=1, max=10_000, help="Batches of an update.")] = 1,
    length: Annotated[int, typer.Option(min=8, help="Tokens of the longest sequence.")] = 256,
    optimizer: Annotated[
        str, typer.Option(help=", ".join(OPTIMIZERS), autocompletion=among(OPTIMIZERS))
    ] = "adamw",
    frozen: Annotated[int, typer.Option(min=0, help="Layers that are not trained.")] = 0,
    agent: Annotated[
        str, typer.Option(help=", ".join(AGENTS), autocompletion=among(AGENTS))
    ] = "criteria",
    evidence_model: Annotated[
        str | None, typer.Option(help="Of the agent joint: its second encoder. Default: --model.")
    ] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(help="The device's memory: 24GiB. Default: this machine's.")
    ] = None,
    device: Annotated[
        str, typer.Option(help="cuda or cpu.", autocompletion=among(("cuda", "cpu")))
    ] = "cuda",
    space: Annotated[
        str | None,
        typer.Option(
            help="A preset, or a space's file: each of its encoders.",
            autocompletion=preset_names,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a trial needs of a device's memory, item by item, and how it would be split.

    The effective batch (batch × accumulation) is never changed: what does not fit is taken in
    smaller micro-batches whose gradients add up to the same.

    Exit codes: 0 when there is a plan, or something of the space fits; 1 when nothing fits; 2 when
    the options make no sense.

    \b
    Examples:
      supermax plan notes.yaml --gpu-memory 24GiB
      supermax plan --model bert-large-uncased --batch 48 --accum 4 --length 480 --gpu-memory 24GiB
      supermax plan --space supermax --gpu-memory 24GiB
    """
    if sum(one is not None for one in (target, model, space)) != 1:
        raise UserError(
            "Name one encoder with --model, a preset with --space, or a search as `supermax tune` "
            "takes it: an agent or a YAML file."
        )
    if model is None:
        own = OF_ONE_TRIAL if target is None else (*OF_ONE_TRIAL, "agent")
        if given := [f"--{name}" for name in own if _is_given(ctx, name)]:
            what = target or "--space"
            raise UserError(f"{' and '.join(given)} cannot go with {what}, which has its own.")
    if space is not None:
        agent = _agent_of(space, agent if _is_given(ctx, "agent") else None)
    for name, value, known in (
        ("agent", agent, AGENTS),
        ("optimizer", optimizer, OPTIMIZERS),
        ("device", device, ("cuda", "cpu")),
    ):
        if value not in known:
            raise UserError(ended(f"There is no {name} {value!r}{nearest(value, known)}"))
    for name in filter(None, (model, evidence_model)):
        if "," in name and not Path(name).expanduser().exists():
            raise UserError("plan takes one encoder; --space shows several side by side.")
    if evidence_model is not None and (model is None or agent != "joint"):
        raise UserError("--evidence-model goes with --model and --agent joint.")
    if target is not None:
        from supermax.spaces import space_of

        search = _search(target, gpu_memory)
        budget, searched = _budget(search.gpu_memory, device), space_of(search)
        truncated = _truncated(search, searched)
        _of_space(searched, search.agent, budget, device, as_json, truncated)
        return
    budget = _budget(_bytes(gpu_memory), device)
    if space is not None:
        _of_space(_named(space, agent), agent, budget, device, as_json)
        return
    assert model is not None
    _of_model(
        {
            "agent": agent,
            "encoder": {"name": model, "frozen_layers": frozen},
            "evidence_encoder": {"name": evidence_model} if evidence_model else None,
            "text": {"max_length": length},
            "train": {"effective_batch": batch * accum},
            "optim": {"name": optimizer},
        },
        budget,
        device,
        batch,
        as_json,
    )


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _agent_of(space: str, given: str | None) -> str:
    """A space of the package is an agent's own; any other is for the agent that is named."""
    from supermax.space import shipped

    own = space.rpartition("/")[2]
    if space not in shipped() or own not in AGENTS:
        return given or "criteria"
    if given not in (None, own):
        raise UserError(f"--agent cannot go with --space {space}, which is for the agent {own}.")
    return own


def _search(target: str, gpu_memory: str | None) -> Settings:
    from supermax.cli.tune import ALL, resolved
    from supermax.settings.resolving import Value

    if target == ALL:
        raise UserError(f"plan takes one search at a time: {', '.join(AGENTS)} or a YAML file.")
    flags = {} if gpu_memory is None else {"gpu_memory": Value(gpu_memory, "--gpu-memory")}
    return resolved(target, flags)[0].settings


def _named(name: str, agent: str) -> Space:
    """A preset's, or that of a file."""
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
    """What was given, or what this machine has."""
    from supermax.memory.budgets import GpuBudget, host_budget

    if given is not None:
        return given
    found = GpuBudget().whole if device == "cuda" else host_budget()
    if not found:
        raise UserError("No GPU is to be seen here: say its memory, --gpu-memory 24GiB.")
    return found


def _of_model(wanted: dict[str, Any], budget: int, device: str, batch: int, as_json: bool) -> None:
    from supermax.agents.specs import spec_of
    from supermax.memory.estimate import need
    from supermax.memory.planner import NoPlan, split_into
    from supermax.memory.planner import plan as planned
    from supermax.training.config import read_config
    from supermax.training.prepare import longest

    config, sources = read_config(wanted), [_source(wanted["encoder"]["name"])]
    if config.agent == "joint":
        other = config.evidence_encoder
        sources.append(_source(other.name) if other is not None else sources[0])
    for source in sources:
        if config.text.max_length > longest(source):
            raise UserError(f"{source.name} takes {longest(source)} tokens at most.")
        layers = int(source.config.num_hidden_layers)
        if config.encoder.frozen_layers > layers:
            raise UserError(f"{source.name} has {layers} layers: so many can be frozen at most.")
    spec = spec_of(config, sources, _execution(device))
    asked, found = need(spec, split_into(spec, batch)), planned(spec, budget)
    names = [source.name for source in sources]
    if as_json:
        named = {"model": names[0], "agent": config.agent}
        second = {"evidence_model": names[1]} if len(names) > 1 else {}
        print_json(named | second | _as_data(spec, asked, found, budget))
    else:
        _print_need(" and ".join(names), batch, spec, asked, found, budget)
    if isinstance(found, NoPlan):
        raise typer.Exit(1)


def _print_need(
    name: str, batch: int, spec: Spec, asked: Need, found: Plan | NoPlan, budget: int
) -> None:
    from supermax.memory.planner import Plan

    screen = console()
    columns = [f"{batch} × {spec.length} as asked"]
    needs = [asked]
    if isinstance(found, Plan):
        columns.append("as planned")
        needs.append(found.need)
    table = Table("", *columns)
    for key, words in ITEMS.items():
        sizes = [each.items()[key] for each in needs]
        more, less = [max(0, n) for n in sizes], [min(0, n) for n in sizes]
        for label, values in ((words, more), (NOT_AT_ONCE, less)):
            if any(values):
                table.add_row(label, *map(_shown, values))
    table.add_section()
    table.add_row("in all", *(size_text(each.total) for each in needs))
    table.add_row(f"left of {size_text(budget)}", *(_shown(budget - n.total) for n in needs))
    for column in table.columns[1:]:
        column.justify = "right"
    screen.print(literal(f"{name}, an effective batch of {spec.effective_batch}"))
    screen.print(table)
    if any(each.other_moments < 0 for each in needs):
        screen.print(
            "Less: gradients take the place of activations as the backward pass goes, so the two "
            "are never there in full together."
        )
    if isinstance(found, Plan):
        screen.print(literal(f"Plan: {found}.{_reason(found, batch)}"))
        if (beside := _side_by_side(found, budget)) > 1:
            screen.print(f"{beside} such trials fit side by side.")
    else:
        screen.print(literal(f"No plan: {found}"))


def _side_by_side(found: Plan, budget: int) -> int:
    return budget // found.need.total


def _reason(found: Plan, batch: int) -> str:
    """Where it is not taken as it was asked for."""
    if found.split.micro_batch <= batch:
        return f" {found.why[0].upper()}{found.why[1:]}." if found.why else ""
    fits = "The accumulated batches fit" if found.whole else f"More than {batch} fit"
    return f" {fits} at once, which is faster and the same experiment."


def _shown(value: int) -> str:
    return f"-{size_text(-value)}" if value < 0 else size_text(value) if value else "–"


def _as_data(spec: Spec, asked: Need, found: Plan | NoPlan, budget: int) -> dict[str, Any]:
    from supermax.memory.planner import Plan

    data: dict[str, Any] = {
        "optimizer": spec.optimizer,
        "device": spec.device,
        "effective_batch": spec.effective_batch,
        "length": spec.length,
        "budget": budget,
        "asked": asked.items() | {"total": asked.total},
        "side_by_side": _side_by_side(found, budget) if isinstance(found, Plan) else 0,
    }
    if isinstance(found, Plan):
        return data | {
            "plan": vars(found.split) | {"micro_batches": found.micro_batches},
            "why": found.why,
            "planned": found.need.items() | {"total": found.need.total},
        }
    return data | {"plan": None, "smallest": found.smallest, "why": str(found)}


def _truncated(search: Settings, space: Space) -> tuple[list[Cut], list[str]]:
    """Texts of the search's data that its encoders cut, and what could not be counted. Nothing is
    written where the search would have its cache."""
    from supermax.agents.fitting import encoder_names
    from supermax.agents.truncation import truncation
    from supermax.search import data_of
    from supermax.training.sources import find

    try:
        splits = data_of(search)
    except UserError as error:
        return [], [f"Texts that are cut are not counted: {in_short(error)}."]
    cuts: list[Cut] = []
    missing, names = [], encoder_names(space)
    with TemporaryDirectory(prefix="supermax-") as cache:
        for name in names:
            try:
                source, beside = find(name, weights=False), len(names) - 1
                cuts += truncation(search.agent, splits, space, [source], Path(cache), beside)
            except UserError:
                missing.append(name)
    if not missing:
        return cuts, []
    return cuts, [f"Texts that are cut are not counted for {', '.join(missing)}: not here."]


def _of_space(
    space: Space,
    agent: str,
    budget: int,
    device: str,
    as_json: bool,
    truncated: tuple[list[Cut], list[str]] = ([], []),
) -> None:
    from supermax.agents.fits import fits
    from supermax.agents.fitting import encoder_names
    from supermax.agents.truncation import told

    sources = {encoder: _source(encoder) for encoder in encoder_names(space)}
    shares = fits(space, sources, agent, budget, _execution(device))
    if as_json:
        named = {"space": space.name, "agent": agent, "device": device, "budget": budget}
        by_encoder = {
            encoder: {"combinations": share.all} | vars(share) for encoder, share in shares.items()
        }
        cuts = [vars(cut) for cut in truncated[0]]
        print_json(named | {"encoders": by_encoder, "truncation": cuts})
    else:
        _print_shares(space.name, shares, budget)
        for line in (*told(truncated[0]), *truncated[1]):
            console().print(literal(line))
    if all(share.never == share.all for share in shares.values()):
        raise typer.Exit(1)


def _print_shares(name: str, shares: dict[str, Share], budget: int) -> None:
    table = Table("encoder", "as is", "split", "never", "the largest", "all fit from")
    table.columns[0].no_wrap = True
    for encoder, share in shares.items():
        parts = (share.whole, share.split, share.never)
        table.add_row(
            literal(encoder),
            *(f"{part / share.all:.0%}" for part in parts),
            size_text(share.largest),
            size_text(share.smallest),
        )
    for column in table.columns[1:]:
        column.justify = "right"
    screen = console()
    combined = next(iter(shares.values())).all
    screen.print(
        literal(
            f"{combined:,} combinations of batch, length and optimizer of '{name}', on a "
            f"device with {size_text(budget)}"
        )
    )
    screen.print(table)
    screen.print(
        "The largest: what the largest combination needs as it is. All fit from: the memory that "
        "takes all of them, split as far as need be."
    )
    if all(share.never == share.all for share in shares.values()):
        screen.print(literal(f"Nothing of it fits into {size_text(budget)}, however it is split."))


def _source(name: str) -> Any:
    """By its configuration alone: weights make no difference. It goes by the name that was asked
    for."""
    from supermax.agents.shapes import encoder_of, why_unusable
    from supermax.naming import UNTRAINED
    from supermax.training.architectures import FULL
    from supermax.training.sources import find

    known = f"{UNTRAINED}{name}" if name in FULL else name
    source = replace(find(known, weights=False), name=name)
    if (reason := why_unusable(source)) is not None:
        raise UserError(reason)
    try:
        encoder_of(source)
    except Exception as error:  # the libraries raise whatever strange sizes provoke
        raise UserError(
            f"The sizes in the configuration of '{name}' make no encoder: {in_short(error)}."
        ) from None
    return source


def _execution(device: str) -> Any:
    from supermax.training.steps import Execution

    return Execution(device=device, precision="bf16" if device == "cuda" else "fp32")
