"""Training on a real GPU: every family and optimizer, half precision, states that move."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from supermax.tasks.objective import local_execution
from supermax.training.loop import train
from supermax.training.models import architectures
from supermax.training.optim.optimizers import unavailable
from supermax.training.prepare import prepare
from supermax.training.steps.execution import Execution, best_precision
from supermax.training.steps.memory_limits import limit_memory
from tests.training.corpora import Quiet, Stopped, config, corpus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
GPU = Execution(device="cuda", precision="bf16")
FAMILIES = sorted(set(architectures.TINY) - {"tiny"})


def dropouts(family: str, hidden: float, attention: float) -> dict[str, float]:
    """Return settings of dropout. EuroBERT has dropout in its attention only."""
    rates = {"dropout": hidden, "attention_dropout": attention}
    return {"attention_dropout": attention} if family == "tiny-eurobert" else rates


@pytest.mark.parametrize("agent", ["criteria", "evidence", "share", "joint"])
def test_every_agent_trains_in_bf16(tmp_path: Path, agent: str) -> None:
    wanted = config(agent, train={"epochs": 15, "effective_batch": 8}, optim={"lr": 3e-3})
    few = corpus(24, 1)
    result = train(prepare(wanted, few, few, cache=tmp_path, execution=GPU), Quiet())
    assert result.curve[-1]["train_loss"] < 0.8 * result.curve[0]["train_loss"]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_trains_with_and_without_activation_checkpointing(
    tmp_path: Path, family: str
) -> None:
    for saving in (False, True):
        execution = replace(GPU, checkpoint_activations=saving, micro_batch=5)
        wanted = config(encoder={"name": family}, train={"epochs": 1})
        prepared = prepare(
            wanted, corpus(30, 1), corpus(15, 2), cache=tmp_path, execution=execution
        )
        assert train(prepared, Quiet()).curve[0]["train_loss"] < 2


@pytest.mark.parametrize("family", FAMILIES)
def test_activation_checkpointing_repeats_dropout_masks(tmp_path: Path, family: str) -> None:
    losses = []
    for saving in (False, True):
        execution = replace(GPU, checkpoint_activations=saving, captured=False)
        wanted = config(
            encoder={"name": family, **dropouts(family, 0.2, 0.3)},
            train={"epochs": 2},
        )
        prepared = prepare(
            wanted, corpus(30, 1), corpus(15, 2), cache=tmp_path, execution=execution
        )
        losses.append([row["train_loss"] for row in train(prepared, Quiet()).curve])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "attention"])
def test_every_pooling_trains_in_bf16(tmp_path: Path, pooling: str) -> None:
    wanted = config(head={"pooling": pooling}, train={"epochs": 1})
    prepared = prepare(wanted, corpus(30, 1), corpus(15, 2), cache=tmp_path, execution=GPU)
    assert train(prepared, Quiet()).curve[0]["train_loss"] < 2


@pytest.mark.parametrize("name", ["adamw", "adamw_8bit", "adafactor", "lion"])
def test_every_optimizer_steps(tmp_path: Path, name: str) -> None:
    if name in unavailable("cuda"):
        pytest.skip(unavailable("cuda")[name])
    wanted = config(optim={"name": name})
    prepared = prepare(wanted, corpus(30, 1), corpus(15, 2), cache=tmp_path, execution=GPU)
    result = train(prepared, Quiet())
    assert result.curve[-1]["train_loss"] < result.curve[0]["train_loss"] + 0.05


def test_gradients_of_micro_batches_add_up_in_fp32(tmp_path: Path) -> None:
    losses = []
    for micro in (None, 5):
        execution = Execution(device="cuda", precision="fp32", micro_batch=micro)
        prepared = prepare(
            config("share"), corpus(30, 1), corpus(15, 2), cache=tmp_path, execution=execution
        )
        losses.append([row["train_loss"] for row in train(prepared, Quiet()).curve])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_a_state_moves_from_the_gpu_to_the_cpu_and_back(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()

    def ready(execution: Execution) -> object:
        wanted = config(train={"epochs": 4})
        return prepare(wanted, corpus(30, 1), corpus(15, 2), cache=tmp_path, execution=execution)

    with pytest.raises(Stopped):
        train(ready(GPU), Quiet(4), folder)  # type: ignore[arg-type]
    with pytest.raises(Stopped):
        train(ready(Execution()), Quiet(4), folder)  # type: ignore[arg-type]
    result = train(ready(GPU), Quiet(), folder)  # type: ignore[arg-type]
    assert result.epochs == 4
    assert all(tensor.device.type == "cpu" for tensor in result.weights.values())


@pytest.mark.parametrize(
    "name",
    ["bert-base-uncased", "roberta-large", "microsoft/deberta-v3-base", "xlm-roberta-base",
     "google/electra-base-discriminator", "answerdotai/ModernBERT-base"],
)  # fmt: skip
def test_full_size_encoders_train(tmp_path: Path, name: str) -> None:
    wanted = config(
        encoder={"name": f"untrained/{name}", "dropout": 0.1},
        train={"epochs": 1, "effective_batch": 16},
        optim={"lr": 2e-5},
    )
    prepared = prepare(wanted, corpus(40, 1), corpus(10, 2), cache=tmp_path, execution=GPU)
    result = train(prepared, Quiet())
    assert result.curve[0]["train_loss"] < 3


def test_the_device_is_found() -> None:
    found = local_execution(Execution(device="auto", precision="auto"))
    assert found.device == "cuda"
    assert found.precision == best_precision("cuda") == "bf16"


def test_a_budget_of_memory_is_kept_and_lifted() -> None:
    """Allocations beyond the budget fail, as on a smaller GPU."""
    budget = 1 << 30
    limit_memory(replace(GPU, memory=budget))
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2 * budget, dtype=torch.uint8, device="cuda")
        assert torch.empty(budget // 4, dtype=torch.uint8, device="cuda").numel() == budget // 4
    finally:
        torch.cuda.empty_cache()
        limit_memory(GPU)
    assert torch.empty(2 * budget, dtype=torch.uint8, device="cuda").numel() == 2 * budget
