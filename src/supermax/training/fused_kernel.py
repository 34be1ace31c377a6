"""The kernel of fused.py, in Triton. Addresses are multiples of 16, as `halves.EVEN` says."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def adamw(
    table,
    gradients,
    decays,
    pieces,
    scale,
    corrections,
    roots,
    old,
    new,
    old_squares,
    new_squares,
    eps,
    HALVES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One piece of one tensor: BLOCK numbers of it from a place on, or the rest.

    table: weight, mean, mean of squares, half (or 0), rate, size; pieces: tensor, place.
    gradients: where they are, or 0. old, new: shares of what was and what comes in the means.
    HALVES: those of tensors with a half are halves too.
    """
    piece = pieces + 2 * tl.program_id(0)
    one = tl.load(piece)
    gradient = tl.load(gradients + one)
    if gradient != 0:
        row = table + 6 * one
        begin = tl.multiple_of(tl.load(piece + 1), BLOCK)
        half = tl.load(row + 3)
        size = tl.load(row + 5)
        rate = tl.load(tl.load(row + 4).to(tl.pointer_type(tl.float32)))
        by = tl.load(scale)
        decay = 1 - rate * tl.load(decays + one)
        reach = rate / tl.load(corrections + one)
        root = tl.load(roots + one)
        if begin + BLOCK <= size:
            _move(row, gradient, half, begin, size, by, decay, reach, root, old, new,
                  old_squares, new_squares, eps, HALVES, BLOCK, False)  # fmt: skip
        else:
            _move(row, gradient, half, begin, size, by, decay, reach, root, old, new,
                  old_squares, new_squares, eps, HALVES, BLOCK, True)  # fmt: skip


@triton.jit
def _move(
    row, gradient, half, begin, size, by, decay, reach, root, old, new,
    old_squares, new_squares, eps,
    HALVES: tl.constexpr, BLOCK: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    at = begin + tl.arange(0, BLOCK)
    inside = at < size if RAGGED else None
    weights = tl.multiple_of(tl.load(row).to(tl.pointer_type(tl.float32)), 16) + at
    means = tl.multiple_of(tl.load(row + 1).to(tl.pointer_type(tl.float32)), 16) + at
    squares = tl.multiple_of(tl.load(row + 2).to(tl.pointer_type(tl.float32)), 16) + at
    if HALVES and half != 0:
        place = tl.multiple_of(gradient.to(tl.pointer_type(tl.bfloat16)), 16) + at
        slope = tl.load(place, mask=inside).to(tl.float32)
    else:
        slope = tl.load(
            tl.multiple_of(gradient.to(tl.pointer_type(tl.float32)), 16) + at, mask=inside
        )
    slope = slope / by
    mean = old * tl.load(means, mask=inside) + new * slope
    square = old_squares * tl.load(squares, mask=inside) + new_squares * slope * slope
    weight = tl.load(weights, mask=inside) * decay - reach * mean / (tl.sqrt(square) / root + eps)
    tl.store(weights, weight, mask=inside)
    tl.store(means, mean, mask=inside)
    tl.store(squares, square, mask=inside)
    if half != 0:
        place = tl.multiple_of(half.to(tl.pointer_type(tl.bfloat16)), 16) + at
        tl.store(place, weight.to(tl.bfloat16), mask=inside)
