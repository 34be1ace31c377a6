"""Compiled layers: when they pay, that they train the same, and what happens where they fail.
A backend that runs what it was given stands in for the compiler."""

from __future__ import annotations

import gc
import os
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from supermax.training.loop import Result, train
from supermax.training.models.architectures import TINY, configuration
from supermax.training.models.encoders import layer_list, untrained
from supermax.training.prepare import Prepared
from supermax.training.steps import compilation
from supermax.training.steps.compilation import Compiler, pays
from supermax.training.steps.cuda_graphs import CudaGraphExecutor
from supermax.training.steps.executors import EagerExecutor
from supermax.training.steps.graph_capture import Work
from tests.training.corpora import Quiet, config, ready
from tests.training.eager_backend import EagerBackend
from tests.training.steps.test_cuda_graphs import SILENT, many_widths

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own looking
FAMILIES = sorted(set(TINY) - {"tiny", "tiny-roberta", "tiny-xlmr", "tiny-electra"})
"""The others have BERT's layers."""
QUIET_BERT = {**SILENT, "encoder": {**SILENT["encoder"], "name": "tiny-bert"}}
COST, CACHED_COST, GAIN = compilation._COST, compilation._CACHED_COST, compilation._GAIN


class Backend:
    """Backend that counts compilations and compiles nothing."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Any:
        self.graphs += 1
        return graph.forward


@pytest.fixture(autouse=True)
def afresh() -> Any:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(prepared: Prepared, compiler: Compiler, asked: bool | None) -> Prepared:
    prepared.step.execution = replace(prepared.step.execution, compiled=asked)
    eager = EagerExecutor(prepared.step, prepared.train, prepared.pads)
    return replace(prepared, executor=CudaGraphExecutor(eager, EagerBackend(), compiler))


def losses(result: Result) -> list[float]:
    return [row["train_loss"] for row in result.curve]


@pytest.mark.slow
def test_compiled_layers_train_the_same_and_serve_later_trials(
    tmp_path: Path,
) -> None:
    wanted = config("share", **QUIET_BERT, train={"epochs": 2})
    as_it_is = train(ready(tmp_path, wanted), Quiet())
    backend = Backend()
    compiler = Compiler(backend)
    graphs = 0
    for _ in range(2):
        prepared = compiled(ready(tmp_path, wanted), compiler, asked=True)
        result = train(prepared, Quiet())
        assert prepared.executor.how == "compiled, CUDA graphs"
        assert losses(result) == pytest.approx(losses(as_it_is), rel=1e-4)
        layer = weakref.ref(layer_list(prepared.model.encoders[0].model)[1][0])  # type: ignore[arg-type]
        del prepared
        gc.collect()
        assert layer() is None  # what was compiled does not hold it
        graphs = graphs or backend.graphs
        assert backend.graphs == graphs == 2  # for all layers, shapes and trials: around attention


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [f if f == "tiny-bert" else pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES],
)
def test_other_dropout_rates_need_no_recompilation(tmp_path: Path, family: str) -> None:
    """Layers compiled for a trial with dropout train one without correctly."""
    backend, seen, keys = Backend(), [], set()
    compiler = Compiler(backend)
    for dropout in (0.1, 0.25, 0.4, 1e-9):
        rates = {"attention_dropout": dropout / 2}
        if family != "tiny-eurobert":  # it has no other
            rates["dropout"] = dropout
        wanted = config(
            encoder={"name": family, **rates}, head={"dropout": 0.0}, train={"epochs": 1}
        )
        prepared = compiled(ready(tmp_path, wanted), compiler, asked=True)
        encoder = prepared.model.encoders[0].model
        keys.add(compilation._key(encoder, prepared.step.execution))
        result = train(prepared, Quiet())
        assert prepared.executor.how == "compiled, CUDA graphs"
        seen.append(backend.graphs)
    assert len(set(seen)) == len(keys) == 1
    nearly_none = config(**_without(family), train={"epochs": 1})
    assert losses(result) == pytest.approx(
        losses(train(ready(tmp_path, nearly_none), Quiet())), rel=1e-4
    )


def test_key_of_compiled_layers(tmp_path: Path) -> None:
    prepared = ready(tmp_path, config(encoder={"name": "tiny-bert"}, train={"epochs": 1}))
    encoder, execution = prepared.model.encoders[0].model, prepared.step.execution
    first, second = layer_list(encoder)[1]  # type: ignore[arg-type]
    whole = compilation._key(encoder, execution)
    first.requires_grad_(False)
    one_frozen = compilation._key(encoder, execution)
    first.requires_grad_(True)
    second.requires_grad_(False)
    assert compilation._key(encoder, execution) == one_frozen != whole
    first.requires_grad_(False)
    assert compilation._key(encoder, execution) not in (one_frozen, whole)
    second.requires_grad_(True)
    first.requires_grad_(True)
    assert compilation._key(encoder, replace(execution, precision="bf16")) != whole
    assert compilation._key(encoder, replace(execution, micro_batch=1)) != whole
    encoder.config.hidden_dropout_prob = 0.37  # type: ignore[union-attr]
    assert compilation._key(encoder, execution) == whole
    first.attention.some_dropout = 0.2  # type: ignore[union-attr,assignment]
    assert compilation._key(encoder, execution) != whole
    del first.attention.some_dropout  # type: ignore[union-attr]
    encoder.config.hidden_act = "relu"  # type: ignore[union-attr]
    assert compilation._key(encoder, execution) != whole


def test_encoders_of_a_trial_are_compiled_independently(tmp_path: Path) -> None:
    """The encoders of a joint trial are decided separately."""
    compiler = Compiler(Backend())
    wanted = config("joint", **QUIET_BERT, train={"epochs": 1})
    prepared = ready(tmp_path, wanted)
    model, asked = prepared.model, replace(prepared.step.execution, compiled=True)
    model.encoders[1].model.config.hidden_act = "another"  # type: ignore[union-attr]
    offered = compiler.offer(model, asked, 1.0)
    assert offered is not None
    assert len(set(offered.keys)) == 2
    offered.drop()
    compiler.failed(offered.keys[1:], RuntimeError("it is unknown"))
    assert compiler.broken(model, asked) == "it is unknown"
    again = compiler.offer(model, asked, 1.0)
    assert again is not None
    assert again.keys == offered.keys[:1]
    again.drop()


@pytest.mark.slow
def test_a_failing_encoder_does_not_stop_compilation_of_the_other(tmp_path: Path) -> None:
    class Picky(Backend):
        def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
            if any(
                "distilbert" in str(node.meta.get("stack_trace")) for node in graph.graph.nodes
            ):
                raise RuntimeError("this one cannot")
            return super().__call__(graph, inputs)

    compiler = Compiler(Picky())
    other = {"evidence_encoder": {"name": "tiny-distilbert"}, "train": {"epochs": 1}}
    joint = config("joint", **QUIET_BERT, **other)
    prepared = compiled(ready(tmp_path, joint), compiler, asked=True)
    train(prepared, Quiet())
    assert prepared.executor.how.startswith("CUDA graphs, not compiled")
    alone = config(**QUIET_BERT, train={"epochs": 1})
    prepared = compiled(ready(tmp_path, alone), compiler, asked=True)
    train(prepared, Quiet())
    assert prepared.executor.how == "compiled, CUDA graphs"


def test_a_compiler_that_cannot_be_configured_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: Any) -> None:
        raise AttributeError("there is no such setting")

    monkeypatch.setattr(compilation, "_configure", none)
    prepared = ready(tmp_path, config(**QUIET_BERT, train={"epochs": 1}))
    prepared = compiled(prepared, Compiler(Backend()), asked=True)
    train(prepared, Quiet())
    assert prepared.executor.how == "CUDA graphs, not compiled: there is no such setting"


@pytest.mark.slow
def test_equal_batch_size_and_length_are_not_specialised() -> None:
    model, backend = untrained(configuration("tiny-bert")).train(), Backend()
    compilation._configure(None)
    compilation.CompiledLayers({"": [*layer_list(model)[1]]}, backend)
    graphs = []
    for size, length in ((12, 12), (12, 20), (16, 12), (3, 9)):
        mask = torch.ones(size, length, dtype=torch.int64)
        mask[0, 5:] = 0
        model(torch.ones_like(mask), attention_mask=mask).last_hidden_state.sum().backward()
        graphs.append(backend.graphs)
    assert graphs == [2] * 4  # before attention, and after it


def _without(family: str) -> dict[str, Any]:
    encoder = {"name": family, "dropout": 0.0, "attention_dropout": 0.0}
    return {"encoder": encoder, "head": {"dropout": 0.0}}


@pytest.mark.slow
def test_layers_that_cannot_be_compiled_are_still_captured(
    tmp_path: Path,
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no C compiler was found")

    wanted = config(**SILENT, train={"epochs": 2})
    as_it_is = train(ready(tmp_path, wanted), Quiet())
    compiler = Compiler(fails)
    for _ in range(2):
        prepared = compiled(ready(tmp_path, wanted), compiler, asked=True)
        result = train(prepared, Quiet())
        assert prepared.executor.how.startswith("CUDA graphs, not compiled: ")
        assert "no C compiler" in prepared.executor.how
        assert losses(result) == pytest.approx(losses(as_it_is), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [pytest.param(None, marks=pytest.mark.slow), 3])
def test_a_failed_capture_leaves_no_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, micro_batch: int | None
) -> None:
    """The next graph would accumulate into them in every replay."""
    clean: list[bool] = []

    class Fails(EagerBackend):
        """Fail in the backward pass of the second capture."""

        def capture(self, run: Work, warm_up: Work, kind: str) -> Work:
            clean.extend(p.grad is None or not p.grad.any() for p in prepared.model.parameters())
            if kind == "step" and prepared.executor.how.startswith("compiled"):
                self.steps += 1
                if self.steps == 2:
                    for parameter in prepared.model.parameters():
                        parameter.grad = torch.ones_like(parameter)
                    raise RuntimeError("what was compiled does not run")
            return super().capture(run, warm_up, kind)

        steps = 0

    many_widths(monkeypatch)
    wanted = config("evidence", **SILENT, train={"epochs": 2, "effective_batch": 4})
    expected = train(ready(tmp_path, wanted, micro_batch=micro_batch), Quiet())
    prepared = ready(tmp_path, wanted, micro_batch=micro_batch)
    prepared = compiled(prepared, Compiler(Backend()), asked=True)
    prepared.executor._backend = Fails()  # type: ignore[attr-defined]
    found = train(prepared, Quiet())
    assert prepared.executor.how == "CUDA graphs, not compiled: what was compiled does not run"
    assert all(clean)
    assert losses(found) == pytest.approx(losses(expected), rel=1e-4)


def test_short_trials_are_compiled_once_there_are_enough_of_them(
    tmp_path: Path,
) -> None:
    compiler = Compiler(Backend())
    wanted = config(train={"epochs": 1})
    prepared = compiled(ready(tmp_path, wanted), compiler, asked=None)
    seconds = 0.4 * COST / GAIN
    found = []
    for _ in range(4):
        offered = compiler.offer(prepared.model, prepared.step.execution, seconds)
        found.append(offered is not None)
        if offered is not None:
            offered.drop()
    assert found == [False, False, True, True]
    asked_not_to = replace(prepared.step.execution, compiled=False)
    assert compiler.offer(prepared.model, asked_not_to, seconds) is None


def test_a_model_type_with_more_gain_is_compiled_sooner(tmp_path: Path) -> None:
    found = []
    for name in ("tiny", "tiny-deberta"):
        compiler = Compiler(Backend())
        wanted = config(encoder={"name": name}, train={"epochs": 1})
        prepared = compiled(ready(tmp_path / name, wanted), compiler, asked=None)
        offered = compiler.offer(prepared.model, prepared.step.execution, 0.5 * COST / GAIN)
        found.append(offered is not None)
    assert found == [False, True]


def test_cached_compilations_pay_sooner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp/torch-s-own")
    monkeypatch.setattr(compilation, "_CACHE_SET_BY_USER", False)
    seconds, found = 1.1 * CACHED_COST / GAIN, []
    assert seconds < COST / GAIN
    for asked in (None, True, None):
        compiler = Compiler(Backend())
        compiler.folder = tmp_path / "compiled"
        wanted = config(train={"epochs": 1})
        prepared = compiled(ready(tmp_path, wanted), compiler, asked=asked)
        offered = compiler.offer(prepared.model, prepared.step.execution, seconds)
        found.append(offered is not None)
        if offered is not None:
            compiler.worked(offered.keys)
            assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(compiler.folder)
    assert found == [False, True, True]


@given(st.lists(st.floats(0, 200), max_size=60))
def test_no_more_is_lost_than_compiling_costs(trials: list[float]) -> None:
    taken, before, cost = 0.0, 0.0, COST
    for seconds in trials:
        if pays(GAIN * seconds, GAIN * before, cost):
            taken += cost + (1 - GAIN) * seconds
            cost = 0.0
        else:
            taken += seconds
            before += seconds
    best = min(sum(trials), COST + (1 - GAIN) * sum(trials))
    assert taken <= best + COST + 1e-6
