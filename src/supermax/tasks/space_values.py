"""Values of a space's integer parameters."""

from __future__ import annotations

from supermax.space import Categorical, Space, choices


def always_windows(space: Space) -> bool:
    """Return True if every trial splits long texts into windows instead of truncating them."""
    name = "text.long_texts"
    return name in space.parameters and set(choices(space, name)) == {"windows"}


def integers(space: Space, name: str, most: int | None = None) -> list[int]:
    """Return the values of a parameter in ascending order; [] if the space does not have it.

    From a range of more than `most` values only some are taken, the lowest and highest included.
    """
    found: set[int] = set()
    for branch in space.parameters[name].branches if name in space.parameters else ():
        if isinstance(branch, Categorical):
            found |= {int(value) for value in branch.choices if isinstance(value, int | float)}
        else:
            values = range(int(branch.low), int(branch.high) + 1, int(branch.step or 1))
            stride = 1 if most is None else -(-len(values) // most)
            found |= {values[0], *values[::-stride]}
    return sorted(found)
