"""Random states of Python and NumPy in cells: as a new interpreter would have them.

RandomStates.now() ──the objective's modules are imported──▶ for_cells(before) ──▶ in each cell
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

_WORDS = 624
"""Numbers of 32 bits that the Mersenne Twister draws from one state vector."""
_MOST_VECTORS = 100
"""State vectors within which draws are told from a seed."""


class RandomStates(NamedTuple):
    """Random states of a process."""

    python: tuple[Any, ...]
    numpy: tuple[Any, ...]

    @classmethod
    def now(cls) -> RandomStates:
        """Return those of this process."""
        return cls(random.getstate(), np.random.get_state(legacy=True))  # type: ignore[arg-type]


def for_cells(before: RandomStates) -> Callable[[], None]:
    """Return a function that sets a cell's random states: those that the user's modules have set
    by a seed since `before`, otherwise new ones from entropy. Imports that only draw numbers, as
    that of rich does, set no seed."""
    now = RandomStates.now()
    python_seeded = not _has_drawn(_python_vectors(before.python), now.python[1][:-1])
    numpy_seeded = before.numpy[0] != now.numpy[0] or not _has_drawn(
        _numpy_vectors(before.numpy), tuple(now.numpy[1].tolist())
    )

    def restore() -> None:
        random.setstate(now.python) if python_seeded else random.seed()
        np.random.set_state(now.numpy) if numpy_seeded else np.random.seed()

    return restore


def _has_drawn(next_vector: Callable[[], tuple[int, ...]], now: tuple[int, ...]) -> bool:
    """Return whether draws alone lead to a state vector."""
    return any(next_vector() == now for _ in range(_MOST_VECTORS))


def _python_vectors(state: tuple[Any, ...]) -> Callable[[], tuple[int, ...]]:
    """Return a function whose calls return the state vector, and those after more draws."""
    generator = random.Random()
    generator.setstate(state)

    def following() -> tuple[int, ...]:
        vector: tuple[int, ...] = generator.getstate()[1][:-1]
        generator.getrandbits(32 * _WORDS)
        return vector

    return following


def _numpy_vectors(state: tuple[Any, ...]) -> Callable[[], tuple[int, ...]]:
    generator = np.random.RandomState()
    generator.set_state(state)

    def following() -> tuple[int, ...]:
        vector: tuple[int, ...] = tuple(generator.get_state(legacy=True)[1].tolist())  # type: ignore[index]
        generator.bytes(4 * _WORDS)
        return vector

    return following
