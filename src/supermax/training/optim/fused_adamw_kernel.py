"""Triton kernel of fused_adamw.py.

It relies on all tensors being aligned to `bf16_weights.ALIGNMENT` bytes: `tl.multiple_of` promises
that to the compiler, which then uses vectorised loads and stores.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def adamw(
    table,
    gradients,
    decays,
    blocks,
    scale,
    corrections,
    roots,
    beta1,
    beta1_rest,
    beta2,
    beta2_rest,
    eps,
    BF16_GRADIENTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Update BLOCK elements of one tensor, or the rest of it.

    table: a row for each tensor, with the addresses of weight, exp_avg, exp_avg_sq, bf16 copy (0:
    none) and learning rate, and its number of elements.
    gradients: address of the gradient for each tensor; 0: none, and nothing changes.
    blocks: tensor and first element for each program. scale: divisor of all gradients (clipping).
    corrections, roots: bias corrections 1 - beta1^t and sqrt(1 - beta2^t) for each tensor.
    beta1_rest, beta2_rest: 1 - beta1 and 1 - beta2, computed in double precision.
    BF16_GRADIENTS: gradients of tensors with a bf16 copy are bf16; all others are fp32.
    """
    block = blocks + 2 * tl.program_id(0)
    tensor = tl.load(block)
    gradient = tl.load(gradients + tensor)
    if gradient != 0:
        row = table + 6 * tensor
        start = tl.multiple_of(tl.load(block + 1), BLOCK)
        copy = tl.load(row + 3)
        size = tl.load(row + 5)
        rate = tl.load(tl.load(row + 4).to(tl.pointer_type(tl.float32)))
        divisor = tl.load(scale)
        decay = 1 - rate * tl.load(decays + tensor)
        step_size = rate / tl.load(corrections + tensor)
        root = tl.load(roots + tensor)
        # Two variants, since only the last block of a tensor needs masked loads and stores.
        if start + BLOCK <= size:
            _update(row, gradient, copy, start, size, divisor, decay, step_size, root,
                    beta1, beta1_rest, beta2, beta2_rest, eps,
                    BF16_GRADIENTS, BLOCK, False)  # fmt: skip
        else:
            _update(row, gradient, copy, start, size, divisor, decay, step_size, root,
                    beta1, beta1_rest, beta2, beta2_rest, eps,
                    BF16_GRADIENTS, BLOCK, True)  # fmt: skip


@triton.jit
def _update(
    row, gradient, copy, start, size, divisor, decay, step_size, root, beta1, beta1_rest,
    beta2, beta2_rest, eps,
    BF16_GRADIENTS: tl.constexpr, BLOCK: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    offsets = start + tl.arange(0, BLOCK)
    mask = offsets < size if PARTIAL else None
    weight_pointers = tl.multiple_of(tl.load(row).to(tl.pointer_type(tl.float32)), 16) + offsets
    mean_pointers = tl.multiple_of(tl.load(row + 1).to(tl.pointer_type(tl.float32)), 16) + offsets
    square_pointers = (
        tl.multiple_of(tl.load(row + 2).to(tl.pointer_type(tl.float32)), 16) + offsets
    )
    if BF16_GRADIENTS and copy != 0:
        pointer = tl.multiple_of(gradient.to(tl.pointer_type(tl.bfloat16)), 16) + offsets
        grad = tl.load(pointer, mask=mask).to(tl.float32)
    else:
        grad = tl.load(
            tl.multiple_of(gradient.to(tl.pointer_type(tl.float32)), 16) + offsets, mask=mask
        )
    grad = grad / divisor
    mean = beta1 * tl.load(mean_pointers, mask=mask) + beta1_rest * grad
    square = beta2 * tl.load(square_pointers, mask=mask) + beta2_rest * grad * grad
    weight = tl.load(weight_pointers, mask=mask) * decay - step_size * mean / (
        tl.sqrt(square) / root + eps
    )
    tl.store(weight_pointers, weight, mask=mask)
    tl.store(mean_pointers, mean, mask=mask)
    tl.store(square_pointers, square, mask=mask)
    if copy != 0:
        pointer = tl.multiple_of(copy.to(tl.pointer_type(tl.bfloat16)), 16) + offsets
        tl.store(pointer, weight.to(tl.bfloat16), mask=mask)
