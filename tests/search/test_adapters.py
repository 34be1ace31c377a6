"""A search over LoRA and full fine-tuning in real cells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from supermax._util.attributes import RESULT, WEIGHTS, plain_params
from supermax.space import enqueue, narrowed, with_lora
from tests.search.searches import search_in, small

pytestmark = pytest.mark.usefixtures("quick", "preloaded")


@pytest.mark.slow
def test_one_search_has_trials_with_and_without_an_adapter(tmp_path: Path) -> None:
    space = with_lora(narrowed(small(), {"head.depth": 1, "optim.name": "adamw"}))
    search = replace(search_in(tmp_path, trials=2, top=9), space=space)
    first = search.run(progress=False)
    assert first.study.trials[0].params["adapter.name"] == "none"
    for rank in (4, 64):
        enqueue(first.study, space, {"adapter.name": "lora", "adapter.rank": rank})
    tuned = replace(search, trials=4).run(progress=False, workers=2)
    assert tuned.summary.trials["COMPLETE"] == 4
    assert not tuned.summary.faults
    sizes: dict[str, list[int]] = {"none": [], "lora": []}
    for trial in tuned.study.trials:
        name = plain_params(trial)["adapter.name"]
        folder = tuned.summary.run_dir / "trials" / f"{trial.number:05}"
        sizes[str(name)].append((folder / WEIGHTS).stat().st_size)
    assert max(sizes["lora"]) < 0.7 * min(sizes["none"])
    assert len({trial.user_attrs[RESULT]["parameters"] for trial in tuned.study.trials}) == 1
    lora = [t.number for t in tuned.study.trials if plain_params(t)["adapter.name"] == "lora"]
    assert {tuned.config(number).adapter.rank for number in lora} >= {4, 64}
    assert all(tuned.config(number).optim.lr >= 3e-3 for number in lora)
