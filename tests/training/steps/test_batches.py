"""Statistics of effective batches: lengths have no say in which sequences meet."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from supermax.training.steps.batches import order


def lengths_of(n: int, seed: int = 0) -> np.ndarray:
    """A long tail, as texts have it."""
    return np.random.RandomState(seed).lognormal(3.6, 0.6, n).astype(np.int64) + 3


def pairs_of(batches: list[np.ndarray], n: int) -> np.ndarray:
    """[n, n]: which sequences share a batch."""
    owner = np.zeros(n, dtype=np.int64)
    for number, batch in enumerate(batches):
        owner[batch] = number
    together: np.ndarray = owner[:, None] == owner[None, :]
    np.fill_diagonal(together, False)
    return together


@pytest.mark.parametrize(("n", "size"), [(2058, 48), (2058, 16), (640, 64), (3000, 8)])
def test_pairs_meet_again_no_more_often_than_by_chance(n: int, size: int) -> None:
    lengths = lengths_of(n)
    epochs = [pairs_of(order(lengths, size, seed=3, epoch=e), n) for e in range(6)]
    again = np.mean([(a & b).sum() / a.sum() for a, b in itertools.pairwise(epochs)])
    chance = (size - 1) / (n - 1)
    assert again == pytest.approx(chance, rel=0.25)


def test_sequences_of_like_length_meet_no_more_often_than_others() -> None:
    n, size = 2058, 48
    lengths = lengths_of(n)
    near = np.abs(lengths[:, None] - lengths[None, :]) <= 2
    np.fill_diagonal(near, False)
    met = np.mean(
        [pairs_of(order(lengths, size, 3, epoch), n)[near].mean() for epoch in range(1, 6)]
    )
    assert met == pytest.approx((size - 1) / (n - 1), rel=0.15)


def test_a_class_that_follows_length_is_spread_over_batches() -> None:
    n, size = 2058, 48
    lengths = lengths_of(n)
    label = lengths > np.median(lengths)
    shares = [label[b].mean() for e in range(5) for b in order(lengths, size, 3, e)[:-1]]
    majority = np.mean([max(share, 1 - share) for share in shares])
    # Of 48 fair coins the more frequent side has 55.7 % on average.
    assert majority == pytest.approx(0.557, abs=0.015)


def test_the_order_of_batches_does_not_follow_their_length() -> None:
    lengths = lengths_of(2058)
    places = []
    for seed in range(200):
        batches = order(lengths, 16, seed, epoch=1)
        places.append(int(np.argmax([lengths[b].sum() for b in batches])) / (len(batches) - 1))
    assert np.mean(places) == pytest.approx(0.5, abs=0.08)


def test_the_first_epoch_begins_with_the_most_tokens() -> None:
    lengths = lengths_of(500)
    batches = order(lengths, 16, 0, epoch=0)
    sums = [lengths[b].sum() for b in batches]
    assert sums[0] == max(sums)
