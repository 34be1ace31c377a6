"""Number of parallel trials for "auto", and the share of a GPU for each."""

from __future__ import annotations

from supermax.memory.sharing import CELLS_PER_GPU, resolve_workers, share_of_each


def test_auto_follows_the_machine_and_a_number_is_unchanged() -> None:
    assert resolve_workers(3, gpus=1, cores=2) == 3
    assert resolve_workers("auto", gpus=1, cores=64) == CELLS_PER_GPU
    assert resolve_workers("auto", gpus=2, cores=64) == 2 * CELLS_PER_GPU
    assert resolve_workers("auto", gpus=1, cores=2) == 2
    assert resolve_workers("auto", gpus=0, cores=6) == 6
    assert resolve_workers("auto", gpus=0, cores=1) == 1


def test_each_cell_has_about_twice_an_equal_share_of_a_gpu() -> None:
    shares = [share_of_each(cells, 139 << 30) for cells in range(1, 10)]
    assert shares == [100, 100, 50, 50, 50, 25, 25, 25, 25]


def test_shares_grow_where_few_cells_fit() -> None:
    assert share_of_each(8, 24 << 30) == 100
    assert share_of_each(8, 48 << 30) == 50
    assert share_of_each(8, 0) == 100  # it cannot be seen
    assert share_of_each(14, 200 << 30) == 25
