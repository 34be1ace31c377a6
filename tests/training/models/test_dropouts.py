"""Dropouts of any rate in one compiled layer: they drop as they should, attention too, and layers
are given back as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from supermax.training.models.architectures import TINY, configuration
from supermax.training.models.dropouts import TensorRateDropout, constant_rates, use_tensor_rates
from supermax.training.models.encoders import DROPOUTS, layer_list, untrained
from supermax.training.steps import compilation

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own looking
CPU = torch.device("cpu")
FAMILIES = sorted(set(TINY) - {"tiny"})
HIDDEN, ATTENTION = 0.2, 0.3


def encoder(name: str) -> Any:
    config = configuration(name)
    for key in DROPOUTS:
        if hasattr(config, key):
            setattr(config, key, ATTENTION if "attention" in key else HIDDEN)
    return untrained(config)


def parts(model: nn.Module) -> list[tuple[str, int, Any]]:
    """Return the type of every module, and its numbers."""
    numbers = [
        {name: value for name, value in vars(module).items() if isinstance(value, float)}
        for module in model.modules()
    ]
    names = [(name, id(module)) for name, module in model.named_modules()]
    return [(*name, kept) for name, kept in zip(names, numbers, strict=True)]


@settings(deadline=None, max_examples=30)
@given(st.floats(0, 0.9), st.integers(0, 2**32))
def test_the_dropout_rate_and_scaling(rate: float, seed: int) -> None:
    torch.manual_seed(seed)
    states = torch.ones(100_000, requires_grad=True)
    dropped = TensorRateDropout(rate, CPU)(states)
    assert float((dropped == 0).float().mean()) == pytest.approx(rate, abs=0.01)
    assert float(dropped.detach().max()) == pytest.approx(1 / (1 - rate))
    dropped.sum().backward()
    assert states.grad is not None
    assert torch.equal(states.grad, dropped.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_otherwise_it_equals_torch_dropout(dtype: torch.dtype) -> None:
    states = torch.randn(64, 64, dtype=dtype)
    loose, torch_s = TensorRateDropout(0.1, CPU), nn.Dropout(0.1)
    found, expected = loose(states), torch_s(states)
    both = (found != 0) & (expected != 0)
    assert found.dtype == dtype
    torch.testing.assert_close(found[both], expected[both])
    assert torch.equal(loose.eval()(states), states)
    assert torch.equal(TensorRateDropout(0.0, CPU)(states), states)
    assert not TensorRateDropout(1.0, CPU)(states).any()


@pytest.mark.parametrize("name", FAMILIES)
def test_layers_are_restored(name: str) -> None:
    model = encoder(name).train()
    before, saved = parts(model), list(model.state_dict())
    restore = use_tensor_rates(layer_list(model)[1])
    kinds = {type(module) for module in layer_list(model)[1].modules()}
    assert (TensorRateDropout in kinds) == (name != "tiny-eurobert")  # it has no modules, a float
    assert nn.Dropout not in kinds
    assert list(model.state_dict()) == saved  # a checkpoint is as it was
    model.eval()
    restore()
    assert parts(model) == before
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"tiny-deberta"}))
def test_attention_uses_its_rate(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeBERTa's is made of parts, and its dropout one like the others."""
    seen: list[float] = []
    attend = functional.scaled_dot_product_attention

    def watched(*args: Any, dropout_p: float = 0.0, **named: Any) -> Any:
        seen.append(dropout_p)
        return attend(*args, dropout_p=dropout_p, **named)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
    model, other = encoder(name).train(), encoder(name).train()
    restore = use_tensor_rates(layer_list(model)[1])
    ids = torch.ones(2, 7, dtype=torch.int64)
    model(ids)
    assert set(seen) == {ATTENTION}
    other(ids)  # beside it, in the same process
    assert set(seen) == {ATTENTION}
    model.eval()(ids)
    assert set(seen) == {ATTENTION, 0.0}
    restore()
    seen.clear()
    model.train()(ids)
    assert set(seen) == {ATTENTION}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [f if f == "tiny-bert" else pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES],
)
@pytest.mark.usefixtures("same_bf16_everywhere")
@pytest.mark.parametrize("dtype", [None, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_a_compiled_encoder_drops_what_another_drops(
    name: str, dtype: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, where torch's own dropout draws in the same way."""

    def forward(dropout: nn.Dropout, states: torch.Tensor) -> torch.Tensor:
        if not dropout.training:
            return states
        kept = torch.rand_like(states, dtype=torch.float32) >= dropout.p
        return torch.where(kept, states * torch.tensor(1 / (1 - dropout.p)), 0.0)

    monkeypatch.setattr(nn.Dropout, "forward", forward)
    ids = torch.randint(5, 2000, (4, 24), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 10:] = 0

    def trained(model: Any) -> list[torch.Tensor]:
        torch.manual_seed(7)
        model.zero_grad()
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            states = model(ids, attention_mask=mask).last_hidden_state
        (states.float() ** 3).sum().backward()
        return [states.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    torch.compiler.reset()
    compilation._configure(None)
    torch.manual_seed(0)
    model = encoder(name).train()
    expected = trained(model)
    fast = compilation.CompiledLayers(
        {"": [*layer_list(model)[1]]}, lambda graph, _: graph.forward
    )
    assert all(map(torch.equal, trained(model), expected))
    fast.drop()
    assert all(map(torch.equal, trained(model), expected))


@pytest.mark.slow
def test_other_models_are_compiled_as_before() -> None:
    use_tensor_rates(layer_list(encoder("tiny-bert"))[1])
    other = encoder("tiny-bert").train()
    whole = torch.compile(other, fullgraph=True, backend="eager")
    assert whole(torch.ones(2, 7, dtype=torch.int64)).last_hidden_state.shape == (2, 7, 64)


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-modernbert"])
def test_replaced_dropouts_are_not_replaced_again(name: str) -> None:
    model = encoder(name)
    before = parts(model)
    first = use_tensor_rates(layer_list(model)[1])
    again = parts(model)
    use_tensor_rates(layer_list(model)[1])()
    assert parts(model) == again
    first()
    assert parts(model) == before


def test_constant_rates_are_found() -> None:
    layer = layer_list(encoder("tiny-modernbert"))[1][0]
    assert constant_rates(layer) == []
    layer.attn.relu_dropout = 0.3  # type: ignore[union-attr,assignment]
    assert constant_rates(layer) == [0.3]


def test_the_placeholder_is_no_valid_rate() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        functional.dropout(torch.ones(3), p=TensorRateDropout(0.1, CPU).p)


@pytest.mark.slow
def test_tensors_around_attention_are_not_copied() -> None:
    """Compiled code before and after attention uses the memory order of its tensors."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    copied: list[str] = []

    def looks(graph: torch.fx.GraphModule, _: Any) -> Any:
        copied.extend(str(n.target) for n in graph.graph.nodes if "clone" in str(n.target))
        return make_boxed_func(graph.forward)

    torch.compiler.reset()
    model = encoder("tiny-bert").train()
    backend = aot_autograd(fw_compiler=looks, bw_compiler=looks)
    compilation._configure(None)
    made = compilation.CompiledLayers({"layers": list(layer_list(model)[1])}, backend)
    ids = torch.randint(5, 50, (4, 24))
    model(ids, attention_mask=torch.ones_like(ids)).last_hidden_state.sum().backward()
    made.drop()
    torch.compiler.reset()
    assert not copied
