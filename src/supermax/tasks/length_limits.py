"""Lengths that a space searches although some of its encoders read fewer tokens.

Space, sources ──within_limits()──▶ a space that samples only lengths that an encoder reads
"""

from __future__ import annotations

from collections.abc import Mapping

from supermax.space import Categorical, Space, choices
from supermax.space.domains import Branch
from supermax.space.presets import ENCODERS, LENGTH
from supermax.tasks.space_values import integers
from supermax.training.models.sources import Source
from supermax.training.prepare import max_input_length


def within_limits(space: Space, sources: Mapping[str, Source]) -> tuple[Space, list[str]]:
    """Return the space in which no length is above the limit of its encoder, and a notice for each
    limit. Above it, lengths would differ in name only.

    With two encoders, the one that defines the windows of a text counts.
    """
    key = [key for key in ENCODERS if key in space.parameters][-1]
    longest = max(integers(space, LENGTH), default=0)
    by_limit: dict[int, list[str]] = {}
    for name in map(str, choices(space, key)):
        if (limit := max_input_length(sources[name])) < longest:
            by_limit.setdefault(limit, []).append(name)
    if not by_limit:
        return space, []
    branches = space.parameters[LENGTH].branches
    rest = [n for n in choices(space, key) if all(n not in few for few in by_limit.values())]
    data = [
        _limited(branch, limit, f"{key} in {names!r}")
        for limit, names in by_limit.items()
        for branch in branches
    ]
    data += [branch.data() for branch in branches] if rest else []
    whole = space.data()
    was = {"was": list(space.parameters[LENGTH].was)} if space.parameters[LENGTH].was else {}
    whole["parameters"][LENGTH] = {"branches": data, **was}
    notices = [
        f"{', '.join(names)} {'reads' if len(names) == 1 else 'read'} {limit:,} tokens at most: "
        f"{LENGTH} is not searched above."
        for limit, names in by_limit.items()
    ]
    return Space(**whole), notices


def _limited(branch: Branch, limit: int, condition: str) -> dict[str, object]:
    """Return the branch as data with the lengths up to a limit, or with its shortest."""
    data = branch.data()
    data["when"] = f"({branch.when}) and ({condition})" if branch.when else condition
    if isinstance(branch, Categorical):
        lengths = [int(n) for n in branch.choices if isinstance(n, int | float)]
        remaining: list[int] = [n for n in lengths if n <= limit] or [min(lengths)]
        data["choices"] = remaining
        highest = max(remaining)
    else:
        step = int(branch.step or 1)
        low = int(branch.low)
        highest = low + max(0, min(limit, int(branch.high)) - low) // step * step
        data["high"] = highest
    default = data.get("default")
    if isinstance(default, int) and default > highest:
        data["default"] = highest
    return data
