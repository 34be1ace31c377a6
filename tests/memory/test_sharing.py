"""How many trials at a time "auto" comes to."""

from __future__ import annotations

from supermax.memory.sharing import EACH_GPU, cells_that_pay, share_of_each


def test_auto_follows_the_machine_and_a_number_is_taken_as_it_is() -> None:
    assert cells_that_pay(3, gpus=1, cores=2) == 3
    assert cells_that_pay("auto", gpus=1, cores=64) == EACH_GPU
    assert cells_that_pay("auto", gpus=2, cores=64) == 2 * EACH_GPU
    assert cells_that_pay("auto", gpus=1, cores=2) == 2
    assert cells_that_pay("auto", gpus=0, cores=6) == 6
    assert cells_that_pay("auto", gpus=0, cores=1) == 1


def test_each_has_twice_an_equal_part_of_a_gpu() -> None:
    large = 139 << 30
    shares = {cells: share_of_each(cells, large) for cells in (1, 2, 3, 4, 8)}
    assert shares == {1: 100, 2: 100, 3: 67, 4: 50, 8: 25}


def test_where_few_fit_each_has_more() -> None:
    assert share_of_each(8, 24 << 30) == 100
    assert share_of_each(8, 48 << 30) == 50
    assert share_of_each(8, 0) == 100  # it cannot be seen
