"""CUDA graphs on a real GPU compared with eager steps: model types, agents, optimizers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from supermax.training.loop import Result, train
from supermax.training.prepare import Prepared, prepare
from supermax.training.steps.execution import Execution
from tests.gpu.test_training import FAMILIES, dropouts
from tests.training.corpora import Quiet, Stopped, config, corpus_for
from tests.training.draws import drawn
from tests.training.steps.test_cuda_graphs import AGENTS, OPTIMIZERS, SILENT, many_widths

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
COMPILES = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
"""Ignores warnings of torch's own code."""
HALF = Execution(device="cuda", precision="bf16")


def both(cache: Path, wanted: Any, execution: Execution = HALF) -> list[Result]:
    """Return the results of eager and captured training."""
    found = []
    for captured in (False, True):
        prepared = made(cache, wanted, replace(execution, captured=captured))
        found.append(train(prepared, Quiet()))
        assert (prepared.executor.why_eager is None) == captured, prepared.executor.why_eager
    return found


def made(cache: Path, wanted: Any, execution: Execution = HALF) -> Prepared:
    train_part, held_out = (corpus_for(wanted.agent, n, n) for n in (40, 20))
    return prepare(wanted, train_part, held_out, cache=cache, execution=execution)


def losses(result: Result) -> list[float]:
    return [row["train_loss"] for row in result.curve]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_every_family_trains_the_same(
    tmp_path: Path, family: str, micro_batch: int | None
) -> None:
    wanted = config(
        encoder={"name": family, "dropout": 0.0, "attention_dropout": 0.0},
        head={"dropout": 0.0}, train={"epochs": 3}, optim={"lr": 1e-3},
    )  # fmt: skip
    eager, captured = both(tmp_path, wanted, replace(HALF, micro_batch=micro_batch))
    assert losses(captured) == pytest.approx(losses(eager), rel=0.02)


@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_trains_the_same_in_fp32(tmp_path: Path, agent: str) -> None:
    wanted = config(agent, **SILENT, train={"epochs": 3})
    single = Execution(device="cuda", precision="fp32")
    eager, captured = both(tmp_path, wanted, single)
    assert losses(captured) == pytest.approx(losses(eager), rel=1e-3)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_every_optimizer_trains_the_same(
    tmp_path: Path, optimizer: str, micro_batch: int | None
) -> None:
    wanted = config(**SILENT, optim={"name": optimizer}, train={"epochs": 3})
    eager, captured = both(tmp_path, wanted, replace(HALF, micro_batch=micro_batch))
    assert losses(captured) == pytest.approx(losses(eager), rel=0.02)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("seed", range(8))
def test_sampled_configurations_train_the_same_when_captured(
    tmp_path: Path, agent: str, seed: int
) -> None:
    """Heads, losses, schedules, poolings, fusions, layers that are frozen or learn more slowly."""
    execution = replace(HALF, micro_batch=(None, 3)[seed % 2])
    eager, captured = both(tmp_path, drawn(agent, seed), execution)
    assert losses(captured) == pytest.approx(losses(eager), rel=0.03)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_shape_is_captured_correctly(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first has a warm-up."""
    many_widths(monkeypatch)
    wanted = config(
        "evidence", encoder={"name": family, "dropout": 0.0, "attention_dropout": 0.0},
        head={"dropout": 0.0}, train={"epochs": 3, "effective_batch": 6}, optim={"lr": 1e-3},
    )  # fmt: skip
    eager, captured = both(tmp_path, wanted)
    assert losses(captured) == pytest.approx(losses(eager), rel=0.02)
    assert captured.metrics == pytest.approx(eager.metrics, abs=0.1)


@pytest.mark.parametrize("at", [1, 3])
def test_training_continues_after_a_failed_capture(
    tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A synchronisation invalidates the capture; dropout must still work afterwards."""
    many_widths(monkeypatch)
    wanted = config(
        "evidence", encoder={"dropout": 0.1, "attention_dropout": 0.1},
        train={"epochs": 2, "effective_batch": 6},
    )  # fmt: skip
    prepared = made(tmp_path, wanted)
    micro, seen = prepared.step.micro, []

    def asks(batch: Any, share: Any) -> torch.Tensor:
        loss = micro(batch, share)
        if torch.cuda.is_current_stream_capturing():
            seen.append(1)
            if len(seen) >= at:
                loss.item()
        return loss

    prepared.step.micro = asks  # type: ignore[method-assign]
    result = train(prepared, Quiet())
    assert prepared.executor.how.startswith("eager: CUDA graph capture failed")
    assert losses(result)[-1] < losses(result)[0]


def test_every_replay_draws_new_dropout_masks(tmp_path: Path) -> None:
    """With a rate of 0 nothing but dropout can make the losses of the same batches differ."""
    still: dict[str, Any] = {"optim": {"lr": 1e-12}, "train": {"epochs": 3}}
    noisy = config(encoder={"dropout": 0.3, "attention_dropout": 0.3}, **still)
    found = losses(train(made(tmp_path, noisy), Quiet()))
    assert len(set(found)) == 3
    again = losses(train(made(tmp_path, noisy), Quiet()))
    assert again == pytest.approx(found, rel=1e-3)  # and the same in every run


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_state_moves_between_executors_and_devices(tmp_path: Path, optimizer: str) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    wanted = config(**SILENT, optim={"name": optimizer}, train={"epochs": 4})
    whole = losses(train(made(tmp_path, wanted), Quiet()))
    executors = [HALF, replace(HALF, captured=False), Execution(), HALF]
    for execution in executors[:-1]:
        with pytest.raises(Stopped):
            train(made(tmp_path, wanted, execution), Quiet(4), folder)
    rest = losses(train(made(tmp_path, wanted, executors[-1]), Quiet(), folder))
    assert rest == pytest.approx(whole, rel=0.05)


@COMPILES
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_trains_the_same_compiled(tmp_path: Path, family: str) -> None:
    wanted = config(
        encoder={"name": family, "dropout": 0.0, "attention_dropout": 0.0},
        head={"dropout": 0.0}, train={"epochs": 3}, optim={"lr": 1e-3},
    )  # fmt: skip
    found = []
    for compiled in (False, True):
        prepared = made(tmp_path, wanted, replace(HALF, compiled=compiled))
        found.append(losses(train(prepared, Quiet())))
        assert prepared.executor.how == ("compiled, CUDA graphs" if compiled else "CUDA graphs")
    assert found[1] == pytest.approx(found[0], rel=0.02)


@COMPILES
def test_every_replay_draws_new_dropout_masks_when_compiled(tmp_path: Path) -> None:
    still: dict[str, Any] = {"optim": {"lr": 1e-12}, "train": {"epochs": 3}}
    noisy = config(encoder={"dropout": 0.3, "attention_dropout": 0.3}, **still)
    prepared = made(tmp_path, noisy, replace(HALF, compiled=True))
    found = losses(train(prepared, Quiet()))
    assert prepared.executor.how == "compiled, CUDA graphs"
    assert len(set(found)) == 3


@COMPILES
@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_layers_serve_other_dropout_rates(tmp_path: Path, family: str) -> None:
    """And they train correctly, also without dropout."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    graphs = []

    def trained(dropout: float, how: str) -> list[float]:
        wanted = config(
            encoder={"name": family, **dropouts(family, dropout, dropout / 2)},
            head={"dropout": 0.0}, train={"epochs": 3}, optim={"lr": 1e-3},
        )  # fmt: skip
        compiled = how.startswith("compiled")
        prepared = made(tmp_path, wanted, replace(HALF, compiled=compiled))
        result = train(prepared, Quiet())
        assert prepared.executor.how == how
        graphs.append(counters["stats"]["unique_graphs"])
        return losses(result)

    found = [trained(dropout, "compiled, CUDA graphs") for dropout in (0.1, 0.25, 1e-9)]
    assert 0 < graphs[0] == graphs[-1]
    assert found[-1] == pytest.approx(trained(0.0, "CUDA graphs"), rel=0.02)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_cudnn_attention_is_not_used(tmp_path: Path, dropout: float) -> None:
    prepared = made(tmp_path, config(encoder={"attention_dropout": dropout}))
    device = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=device, acc_events=True) as seen:
        train(prepared, Quiet())
    names = [event.key for event in seen.key_averages()]
    assert any("fmha" in name or "flash" in name for name in names), names
    assert not [name for name in names if "cudnn" in name]


def test_graphs_are_freed(tmp_path: Path) -> None:
    wanted = config(train={"epochs": 1})
    used = []
    for _ in range(4):
        train(made(tmp_path, wanted), Quiet())
        torch.cuda.empty_cache()
        used.append(torch.cuda.memory_reserved())
    assert used[-1] <= used[1]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_adapters_train_the_same(tmp_path: Path, family: str, micro_batch: int | None) -> None:
    wanted = config(
        encoder={"name": family, "dropout": 0.0, "attention_dropout": 0.0},
        adapter={"name": "lora", "rank": 4}, head={"dropout": 0.0}, train={"epochs": 3},
        optim={"lr": 1e-2},
    )  # fmt: skip
    eager, captured = both(tmp_path, wanted, replace(HALF, micro_batch=micro_batch))
    assert losses(captured) == pytest.approx(losses(eager), rel=0.02)


@COMPILES
@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_train_the_same_compiled(tmp_path: Path, family: str) -> None:
    wanted = config(
        encoder={"name": family, "dropout": 0.0, "attention_dropout": 0.0},
        adapter={"name": "lora", "rank": 4}, head={"dropout": 0.0}, train={"epochs": 3},
        optim={"lr": 1e-2},
    )  # fmt: skip
    eager = train(made(tmp_path, wanted, replace(HALF, captured=False)), Quiet())
    prepared = made(tmp_path, wanted, replace(HALF, compiled=True))
    compiled = train(prepared, Quiet())
    assert prepared.executor.how.startswith("compiled, CUDA graphs")
    assert losses(compiled) == pytest.approx(losses(eager), rel=0.02)
