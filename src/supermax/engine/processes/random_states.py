"""Random states of Python and NumPy in cells: as a new interpreter would have them.

RandomStates.now() ──the objective's modules are imported──▶ for_cells(before) ──▶ in each cell
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

_WORDS = 624
"""Numbers of 32 bits that the Mersenne Twister draws from one state vector."""
_MOST_VECTORS = 100
"""State vectors within which draws are told from a seed."""
_MERSENNE_TWISTER = "MT19937"
Vector = tuple[int, ...]


class RandomStates(NamedTuple):
    """Random states of a process."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]

    @classmethod
    def now(cls) -> RandomStates:
        """Return those of this process."""
        return cls(random.getstate(), np.random.get_state(legacy=False))


def for_cells(before: RandomStates) -> Callable[[], None]:
    """Return a function that sets a cell's random states: those that the user's modules have set
    by a seed since `before`, otherwise new ones from entropy. Imports that only draw numbers, as
    that of rich does, set no seed."""
    now = RandomStates.now()
    python_seeded = now.python[1][:-1] not in _python_vectors(before.python)
    numpy_seeded = _is_numpy_seeded(before.numpy, now.numpy)

    def restore() -> None:
        random.setstate(now.python) if python_seeded else random.seed()
        np.random.set_state(now.numpy) if numpy_seeded else np.random.seed()

    return restore


def _is_numpy_seeded(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return whether NumPy has a state that no draws lead to. Only the Mersenne Twister, its
    default, can get a new state from entropy: another generator keeps its state."""
    if {before["bit_generator"], now["bit_generator"]} != {_MERSENNE_TWISTER}:
        return True
    return _numpy_vector(now) not in _numpy_vectors(before)


def _python_vectors(state: tuple[Any, ...]) -> Iterator[Vector]:
    """Yield the state vector, and those that draws alone lead to."""
    generator = random.Random()
    generator.setstate(state)
    for _ in range(_MOST_VECTORS):
        yield generator.getstate()[1][:-1]
        generator.getrandbits(32 * _WORDS)


def _numpy_vectors(state: dict[str, Any]) -> Iterator[Vector]:
    """Yield the state vector, and those that draws alone lead to."""
    generator = np.random.RandomState()
    generator.set_state(state)
    for _ in range(_MOST_VECTORS):
        yield _numpy_vector(generator.get_state(legacy=False))
        generator.bytes(4 * _WORDS)


def _numpy_vector(state: dict[str, Any]) -> Vector:
    return tuple(state["state"]["key"].tolist())
