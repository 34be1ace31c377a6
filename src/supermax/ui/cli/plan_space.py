"""Share of a search space that fits a device, as `supermax plan --space` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.table import Table

from supermax._util.scratch import scratch_folder
from supermax._util.text import in_short, size_text
from supermax.errors import UserError
from supermax.ui.cli.opening import print_json
from supermax.ui.cli.plan_encoders import execution_on, find_encoder
from supermax.ui.cli.printing import console, literal

if TYPE_CHECKING:
    from supermax.search.settings import Settings
    from supermax.space import Space
    from supermax.tasks.fits import Share
    from supermax.tasks.truncation import Cut


def plan_space(
    space: Space,
    agent: str,
    budget: int,
    device: str,
    as_json: bool,
    truncated: tuple[list[Cut], list[str]] = ([], []),
) -> None:
    """Print how much of the space fits into `budget` bytes, encoder by encoder.

    Exits with 1 where nothing fits. `truncated` is what `count_truncated` returned.
    """
    from supermax.tasks.fits import fits
    from supermax.tasks.space_fitting import encoder_names
    from supermax.tasks.truncation import truncation_notices

    sources = {encoder: find_encoder(encoder) for encoder in encoder_names(space)}
    shares = fits(space, sources, agent, budget, execution_on(device))
    cuts, warnings = truncated
    if as_json:
        head = {"space": space.name, "agent": agent, "device": device, "budget": budget}
        by_encoder = {
            encoder: {"combinations": share.all} | vars(share) for encoder, share in shares.items()
        }
        print_json(head | {"encoders": by_encoder, "truncation": [vars(cut) for cut in cuts]})
    else:
        _print_shares(space.name, shares, budget)
        for line in (*truncation_notices(cuts), *warnings):
            console().print(literal(line))
    if _nothing_fits(shares):
        raise typer.Exit(1)


def count_truncated(settings: Settings, space: Space) -> tuple[list[Cut], list[str]]:
    """Return the texts of the search's data that its encoders truncate, and a warning for each
    reason why some could not be counted. Writes nothing to the cache of the search."""
    from supermax.search.data import data_of
    from supermax.tasks.space_fitting import encoder_names
    from supermax.tasks.truncation import truncation
    from supermax.training.models.sources import find

    try:
        splits = data_of(settings)
    except UserError as error:
        return [], [f"Truncated texts are not counted: {in_short(error)}."]
    cuts: list[Cut] = []
    missing, names = [], encoder_names(space)
    with scratch_folder("plan") as cache:
        for name in names:
            try:
                source, others = find(name, weights=False), len(names) - 1
                cuts += truncation(settings.agent, splits, space, [source], cache, others)
            except UserError:
                missing.append(name)
    if not missing:
        return cuts, []
    return cuts, [f"Truncated texts are not counted for {', '.join(missing)}: not found here."]


def _nothing_fits(shares: dict[str, Share]) -> bool:
    return all(share.never == share.all for share in shares.values())


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
    combinations = next(iter(shares.values())).all
    screen.print(
        literal(
            f"{combinations:,} combinations of batch, length and optimizer of '{name}', on a "
            f"device with {size_text(budget)}"
        )
    )
    screen.print(table)
    screen.print(
        "As is: the whole batch at once. Split: in micro-batches. The largest: memory of the "
        "largest combination as is. All fit from: memory with which every combination fits, "
        "split as far as needed."
    )
    if _nothing_fits(shares):
        screen.print(literal(f"No combination fits into {size_text(budget)}, however split."))
