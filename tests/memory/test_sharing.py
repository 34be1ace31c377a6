"""How many trials at a time "auto" comes to."""

from __future__ import annotations

from supermax.memory.sharing import EACH_GPU, cells_that_pay


def test_auto_follows_the_machine_and_a_number_is_taken_as_it_is() -> None:
    assert cells_that_pay(3, gpus=1, cores=2) == 3
    assert cells_that_pay("auto", gpus=1, cores=64) == EACH_GPU
    assert cells_that_pay("auto", gpus=2, cores=64) == 2 * EACH_GPU
    assert cells_that_pay("auto", gpus=1, cores=2) == 2
    assert cells_that_pay("auto", gpus=0, cores=6) == 6
    assert cells_that_pay("auto", gpus=0, cores=1) == 1
