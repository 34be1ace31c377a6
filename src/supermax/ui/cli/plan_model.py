"""Memory of one trial, item by item, as `supermax plan --model` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from supermax._util.text import size_text
from supermax.agents import agent_of
from supermax.errors import UserError
from supermax.ui.cli.opening import print_json
from supermax.ui.cli.plan_encoders import execution_on, find_encoder
from supermax.ui.cli.printing import console, literal

if TYPE_CHECKING:
    from supermax.memory.estimate import Need
    from supermax.memory.facts import Spec
    from supermax.memory.planner import NoPlan, Plan
    from supermax.training.config import Config
    from supermax.training.models.sources import Source

LABELS = {
    "weights": "weights, fp32",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "half_copies": "half-precision copies of matrices",
    "activations": "activations saved for the backward pass",
    "attention": "attention saved for the backward pass",
    "loss": "heads and loss",
    "workspace": "workspace of the libraries and of one layer",
    "other_moments": "more for the optimizer step or evaluation",
    "saved": "copies of the weights: best epoch, checkpoint",
    "data": "tokenized texts",
    "slack": "allocator slack",
    "context": "process and its CUDA context",
}
"""Row labels of the table, by the item's name in `Need.items()`."""
OVERLAP = "less: not all allocated at once"


def plan_model(
    settings: dict[str, Any], budget: int, device: str, batch: int, as_json: bool
) -> None:
    """Print the memory that a trial with these settings needs, as asked and as planned.

    Exits with 1 where no split of its batch fits into `budget` bytes.
    """
    from supermax.memory.estimate import need
    from supermax.memory.planner import NoPlan, split_into
    from supermax.memory.planner import plan as find_plan
    from supermax.tasks.specs import spec_of
    from supermax.training.config import read_config

    config, sources = read_config(settings), [find_encoder(settings["encoder"]["name"])]
    if agent_of(config.agent).encoders == 2:
        other = config.evidence_encoder
        sources.append(find_encoder(other.name) if other is not None else sources[0])
    _check_limits(config, sources)
    spec = spec_of(config, sources, execution_on(device))
    asked, found = need(spec, split_into(spec, batch)), find_plan(spec, budget)
    names = [source.name for source in sources]
    if as_json:
        head = {"model": names[0], "agent": config.agent}
        second = {"evidence_model": names[1]} if len(names) > 1 else {}
        print_json(head | second | _as_data(spec, asked, found, budget))
    else:
        _print_plan(" and ".join(names), batch, spec, asked, found, budget)
    if isinstance(found, NoPlan):
        raise typer.Exit(1)


def _check_limits(config: Config, sources: Sequence[Source]) -> None:
    """Raise UserError for more tokens or frozen layers than an encoder has."""
    from supermax.training.prepare import max_input_length

    for source in sources:
        if config.text.max_length > max_input_length(source):
            raise UserError(
                f"{source.name} takes at most {max_input_length(source)} tokens: lower --length."
            )
        layers = int(source.config.num_hidden_layers)
        if config.encoder.frozen_layers > layers:
            raise UserError(f"{source.name} has only {layers} layers: lower --frozen.")


def _print_plan(
    name: str, batch: int, spec: Spec, asked: Need, found: Plan | NoPlan, budget: int
) -> None:
    from supermax.memory.planner import Plan

    screen = console()
    columns, needs = [f"{batch} × {spec.length} as asked"], [asked]
    if isinstance(found, Plan):
        columns.append("as planned")
        needs.append(found.need)
    screen.print(literal(f"{name}, an effective batch of {spec.effective_batch}"))
    screen.print(_need_table(columns, needs, budget))
    if any(each.other_moments < 0 for each in needs):
        screen.print(
            "Less: the backward pass frees activations while it allocates gradients, so the two "
            "are never allocated in full at the same time."
        )
    if isinstance(found, Plan):
        screen.print(literal(f"Plan: {found}.{_reason(found, batch)}"))
        if (parallel := _parallel_trials(found, budget)) > 1:
            screen.print(f"{parallel} such trials fit side by side.")
    else:
        screen.print(literal(f"No plan: {found}"))


def _need_table(columns: list[str], needs: list[Need], budget: int) -> Table:
    """Return a row for each item, then the total and what is left of `budget` bytes."""
    table = Table("", *columns)
    for key, label in LABELS.items():
        sizes = [each.items()[key] for each in needs]
        more, less = [max(0, n) for n in sizes], [min(0, n) for n in sizes]
        for row, values in ((label, more), (OVERLAP, less)):
            if any(values):
                table.add_row(row, *map(_signed, values))
    table.add_section()
    table.add_row("total", *(size_text(each.total) for each in needs))
    table.add_row(f"left of {size_text(budget)}", *(_signed(budget - n.total) for n in needs))
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _parallel_trials(found: Plan, budget: int) -> int:
    return budget // found.need.total


def _reason(found: Plan, batch: int) -> str:
    """Return why the plan's micro-batch is not the batch that was asked for, if it is not."""
    if found.split.micro_batch <= batch:
        return f" {found.why[0].upper()}{found.why[1:]}." if found.why else ""
    fits = "The accumulated batches fit" if found.whole else f"More than {batch} fit"
    return f" {fits} at once, which is faster and the same experiment."


def _signed(value: int) -> str:
    """Return bytes with their unit and sign; a dash for none."""
    return f"-{size_text(-value)}" if value < 0 else size_text(value) if value else "–"


def _as_data(spec: Spec, asked: Need, found: Plan | NoPlan, budget: int) -> dict[str, object]:
    from supermax.memory.planner import Plan

    data: dict[str, object] = {
        "optimizer": spec.optimizer,
        "device": spec.device,
        "effective_batch": spec.effective_batch,
        "length": spec.length,
        "budget": budget,
        "asked": asked.items() | {"total": asked.total},
        "side_by_side": _parallel_trials(found, budget) if isinstance(found, Plan) else 0,
    }
    if isinstance(found, Plan):
        return data | {
            "plan": vars(found.split) | {"micro_batches": found.micro_batches},
            "why": found.why,
            "planned": found.need.items() | {"total": found.need.total},
        }
    return data | {"plan": None, "smallest": found.smallest, "why": str(found)}
