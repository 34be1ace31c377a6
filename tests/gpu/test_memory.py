"""Memory on a real GPU: foreseen, kept to, planned again, and given back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

import supermax
from supermax.results.records import read_record
from tests.gpu.test_cuda_faults import device_assert, out_of_memory, train

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("quick", "cuda")]
GIB = 1 << 30
BEST = 4 * 109_000_000  # bytes of bert-base's best weights, which a probe does not keep


def fragmented() -> None:
    """Memory that is free in small pieces of every segment, and a wish for one large piece."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(4 * GIB / total)
    pieces = [torch.empty(5 << 20, dtype=torch.uint8, device="cuda") for _ in range(760)]
    kept = pieces[::4]
    del pieces
    torch.empty(GIB, dtype=torch.uint8, device="cuda")
    assert kept


def test_fragmentation_is_recognised_and_cured_by_a_new_cell(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:False"
        if trial.attempt == 1:
            fragmented()
        return train(trial)

    supermax.optimize(study, objective, n_trials=1, retries=1, progress=False)
    (trial,) = read_record(study).trials
    assert trial.state == "COMPLETE"
    (fault,) = trial.faults
    assert (fault.kind, fault.culprit) == ("fragmented device memory", "machine")


def test_other_trials_train_on_beside_memory_faults(study: optuna.Study) -> None:
    crimes = {0: device_assert, 1: out_of_memory, 2: fragmented}

    def objective(trial: Any) -> float:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:False"
        if trial.number in crimes:
            train(trial, steps=5)
            crimes[trial.number]()
        return train(trial)

    summary = supermax.optimize(
        study, objective, n_trials=12, workers=4, retries=1, reuse_cells=True, progress=False
    )
    good = [trial for trial in study.trials if trial.number not in crimes]
    assert {trial.state for trial in good} == {TrialState.COMPLETE}
    assert len({tuple(trial.intermediate_values.values()) for trial in good}) == 1
    assert set(summary.faults) >= {"device-side assert", "device out of memory"}
    assert "fragmented device memory" in summary.faults


def test_a_leak_of_device_memory_replaces_the_cell(study: optuna.Study) -> None:
    def objective(trial: Any) -> float:
        import torch

        if trial.number == 1:
            sys.modules["hoard"] = torch.empty(GIB, dtype=torch.uint8, device="cuda")  # type: ignore[assignment]
        return train(trial, steps=5)

    summary = supermax.optimize(study, objective, n_trials=4, reuse_cells=True, progress=False)
    assert summary.cells == 2
    left = [line for line in read_record(study).trials[1].folder.records() if "unclean" in line]
    assert left[0]["unclean"].startswith("1,0")
    assert "MiB of device memory" in left[0]["unclean"]


SEARCH = """
import sys
from pathlib import Path
from supermax.results.records import read_record
from supermax.space import loads
from supermax.training.data.synthetic import synthetic
from supermax.search.search import Search

SPACE = '''
name: one
parameters:
  encoder.name: {choices: [untrained/bert-base-uncased]}
  encoder.dropout: {choices: [0.0]}
  encoder.attention_dropout: {choices: [0.0]}
  head.dropout: {choices: [0.0]}
  text.max_length: {choices: [256]}
  text.doc_stride: {choices: [32]}
  train.effective_batch: {choices: [64]}
  optim.lr: {type: float, low: 1.0e-5, high: 1.1e-5}
'''

def main(memory):
    search = Search("evidence", synthetic(60, seed=1, max_words=None), "s.db", Path("cache"),
                    name=f"m{memory}", space=loads(SPACE), trials=6, limits={"epochs": 1},
                    memory=memory or None, seed=1, tell=lambda _: None)
    tuned = search.run(workers=3, progress=False)
    print("cells", tuned.summary.cells)
    for trial in tuned.study.trials:
        kept = trial.user_attrs["supermax"]
        result = trial.user_attrs.get("result", {})
        whole = result.get("micro_batch") == 64 and not result.get("checkpointing")
        print(trial.state.name, int(whole), kept["attempts"], kept.get("device_reserved"),
              *kept["reserved"].values())
    for trial in read_record(tuned.study).trials:
        print(trial.number, trial.result.get("steps"), trial.result.get("micro_batch"))
        print(*trial.faults, sep="\\n")

if __name__ == "__main__":
    main(int(sys.argv[1]))
"""


@pytest.mark.parametrize("gib", [0, 4])
def test_trials_keep_to_what_was_planned(tmp_path: Path, gib: int) -> None:
    script = tmp_path / "search.py"
    script.write_text(SEARCH)
    done = subprocess.run(
        [sys.executable, str(script), str(gib * GIB)],
        cwd=tmp_path,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("COMPLETE")]
    assert len(rows) == 6, done.stdout
    assert gib or "cells 3\n" in done.stdout  # nothing was left that only a new cell is rid of
    for _, whole, attempts, reserved, kept in rows:
        assert int(attempts) == 1
        assert int(reserved) <= int(kept)
        assert bool(int(whole)) == (gib == 0), done.stdout
        assert not gib or int(kept) <= gib * GIB
    (page,) = (tmp_path / "supermax" / "memory").glob("*.jsonl")
    lines = [json.loads(line) for line in page.read_text().splitlines()]
    probes = [line for line in lines if line["probe"]]
    trials = [line for line in lines if not line["probe"]]
    assert probes
    assert len(trials) == 6
    assert all(line["allocated"] > GIB for line in lines)
    assert all(line["seconds"] > 0 for line in probes)
    foreseen = probes[0]["allocated"] + BEST
    assert max(line["allocated"] for line in trials) <= 1.1 * foreseen
