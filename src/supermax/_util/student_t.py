"""Quantiles of Student's t distribution, without scipy: reports and searches need few of them."""

from __future__ import annotations

import math
from functools import lru_cache

_LARGEST = 1e9  # quantiles are below it for the levels in use


@lru_cache(maxsize=4096)
def t_quantile(tail: float, freedom: int) -> float:
    """Return the value that t with `freedom` degrees of freedom exceeds with probability `tail`.

    `tail` is between 0 and 0.5, both excluded."""
    if not 0 < tail < 0.5 or freedom < 1:
        raise ValueError(f"no quantile for a tail of {tail} and {freedom} degrees of freedom")
    low, high = 0.0, 1.0
    while high < _LARGEST and upper_tail(high, freedom) > tail:
        low, high = high, 2 * high
    for _ in range(80):  # halves the interval each time
        middle = (low + high) / 2
        low, high = (middle, high) if upper_tail(middle, freedom) > tail else (low, middle)
    return (low + high) / 2


def upper_tail(t: float, freedom: int) -> float:
    """Return the probability that t with `freedom` degrees of freedom exceeds `t` >= 0.

    The series is finite for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4).
    """
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= cosine * cosine * k / (k + 1)
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return max(0.0, (1 - inside) / 2)
