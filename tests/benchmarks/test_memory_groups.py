"""Configurations of memory.py, and its summary by group."""

from __future__ import annotations

import collections
import sys

from tests import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import memory  # isort: skip


def line(group: str, predicted: int) -> memory.Line:
    return {
        "group": group, "encoder": "bert-base-uncased", "agent": "criteria",
        "predicted": predicted, "allocated": 100,
    }  # fmt: skip


def test_every_group_has_different_configurations() -> None:
    found = list(memory.configurations())
    keys = {(c.model_dump_json(), *rest) for _, c, *rest in found}
    assert len(keys) == len(found)
    groups = collections.Counter(
        memory.group_of(encoder, c.agent, c.adapter.name) for encoder, c, *_ in found
    )
    assert set(groups) == set(memory.GROUPS)
    assert groups[memory.LORA] == 27
    assert min(groups.values()) >= 8


def test_the_largest_error_with_lora_has_a_threshold() -> None:
    lines = [line(memory.LORA, 91), line(memory.LORA, 108), line(memory.OTHERS, 50)]
    lora, other = memory.by_group(lines)
    assert lora[1] == "8.50 %, at most 9.00 %"
    assert lora[3]
    assert other[3]
    (missed,) = memory.by_group([line(memory.LORA, 111)])
    assert missed[1] == "11.00 %, at most 11.00 %"
    assert not missed[3]


def test_configurations_that_do_not_fit_are_counted() -> None:
    fits, exceeds = ({**line("", 100), "exceeded": value} for value in (False, True))
    assert memory.limits([line("", 100)]) == []
    ((_, found, _, met),) = memory.limits([line("", 100), fits, exceeds])
    assert (found, met) == ("1 of 2", False)
    ((_, found, _, met),) = memory.limits([fits])
    assert (found, met) == ("0 of 1", True)


def test_lines_without_a_group_have_that_of_their_configuration() -> None:
    older = line("", 100)
    del older["group"]
    ((name, *_),) = memory.by_group([older])
    assert name == "error, other: 1 configurations"
