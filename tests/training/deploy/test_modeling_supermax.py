"""The modelling file of exports repeats the pooling, fusion and heads that were trained.

Every kind has the same parameters and, with the same weights, the same outputs in training mode
and in evaluation.
"""

from __future__ import annotations

import ast
import inspect
import sys
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig

from supermax.training.config import FusionConfig, HeadConfig
from supermax.training.deploy import modeling_supermax as exported
from supermax.training.models import heads
from supermax.training.models.architectures import configuration

BATCH, LENGTH, SIZE = 4, 7, 6
DROPOUT = 0.3


def choices(part: Any, field: str) -> tuple[str, ...]:
    return get_args(part.model_fields[field].annotation)


def states(size: int = SIZE) -> Tensor:
    return torch.randn(BATCH, LENGTH, size, dtype=torch.float64)


def mask() -> Tensor:
    """Return a mask of sequences of different lengths, from one token to all."""
    return (torch.arange(LENGTH) < torch.tensor([[LENGTH], [4], [2], [1]])).long()


def compare(trained: nn.Module, copy: nn.Module, *inputs: Tensor) -> None:
    """Check outputs and gradients of both, with the same weights and the same dropout."""
    trained.double()
    copy.double()
    copy.load_state_dict(trained.state_dict(), strict=True)
    for training in (True, False):
        found = []
        for module in (trained.train(training), copy.train(training)):
            torch.manual_seed(1)
            given = [part.clone().requires_grad_(part.is_floating_point()) for part in inputs]
            output = module(*given)
            output.square().sum().backward()
            found.append([output, *(part.grad for part in given if part.grad is not None)])
        for one, other in zip(*found, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("kind", choices(HeadConfig, "pooling"))
def test_pooling(kind: str) -> None:
    torch.manual_seed(0)
    compare(heads.Pooling(kind, SIZE), exported._Pooling(kind, SIZE), states(), mask())


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("activation", choices(HeadConfig, "activation"))
def test_heads(activation: Any, depth: int) -> None:
    torch.manual_seed(0)
    config = HeadConfig(depth=depth, width=5, activation=activation, dropout=DROPOUT)
    copy = exported._head(config.model_dump(), SIZE, 3)
    compare(heads.head(config, SIZE, 3), copy, states())


@pytest.mark.parametrize("family", ["tiny-bert", "tiny"])
def test_heads_of_tokens(family: str) -> None:
    """Those of ModernBERT have its prediction head before the linear layer."""
    torch.manual_seed(0)
    encoder = configuration(family)
    copy = exported._token_head(DROPOUT, AutoConfig.for_model(**encoder.to_dict()), 3)
    trained = heads.token_head(HeadConfig(dropout=DROPOUT), encoder, 3)
    assert hasattr(trained, "prediction") == (encoder.model_type == "modernbert")
    compare(trained, copy, states(encoder.hidden_size))


@pytest.mark.parametrize("kind", choices(FusionConfig, "name"))
def test_fusion(kind: Any) -> None:
    torch.manual_seed(0)
    queries, width = 5, 8
    trained = heads.Fusion(FusionConfig(name=kind, width=width), queries, SIZE)
    copy = exported._Fusion(kind, width, queries, SIZE)
    pooled = torch.randn(BATCH, SIZE, dtype=torch.float64)
    compare(trained, copy, torch.randn(BATCH, 3, queries).double(), states(), pooled, mask())


def test_the_file_needs_nothing_but_torch_and_transformers() -> None:
    tree = ast.parse(inspect.getsource(exported))
    found = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert found - sys.stdlib_module_names == {"torch", "transformers"}
