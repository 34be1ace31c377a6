"""Choice of the checkpoint of a Trainer from which an attempt continues."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from supermax.trainer.checkpoints import last_metrics, newest_checkpoint
from supermax.trainer.plans import BatchSplit, batch_split_of, note_evaluation_oom


def checkpoint(folder: Path, step: int, state: str | None = None) -> Path:
    path = folder / "run-0" / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "optimizer.pt").touch()
    (path / "trainer_state.json").write_text(state or json.dumps({"global_step": step}))
    return path


def test_newest_complete_checkpoint(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    checkpoint(tmp_path, 9)
    newest = checkpoint(tmp_path, 10)
    checkpoint(tmp_path, 11, '{"global_st')
    (checkpoint(tmp_path, 12) / "trainer_state.json").unlink()
    (checkpoint(tmp_path, 13) / "optimizer.pt").unlink()
    assert newest_checkpoint(tmp_path) == newest


def test_metrics_of_the_last_step_are_those_that_evaluate_returned() -> None:
    log = [
        {"eval_loss": 3.0, "step": 4},
        {"loss": 2.0, "step": 8},
        {"eval_loss": 1.0, "epoch": 2.0, "step": 8},
    ]
    state = SimpleNamespace(log_history=log, global_step=8)
    assert last_metrics(state) == {"eval_loss": 1.0, "epoch": 2.0}
    assert last_metrics(SimpleNamespace(log_history=log, global_step=9)) is None


def test_splits_of_training_and_evaluation(tmp_path: Path) -> None:
    assert batch_split_of(None, tmp_path) == BatchSplit(1, 1)
    assert batch_split_of({"out_of_memory": 2}, tmp_path) == BatchSplit(4, 1)
    note_evaluation_oom(tmp_path)
    assert batch_split_of({"out_of_memory": 3}, tmp_path) == BatchSplit(4, 2)
