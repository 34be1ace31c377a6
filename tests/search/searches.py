"""Small searches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from supermax.agents import agent_of
from supermax.search.search import Search
from supermax.space import load, narrowed
from tests.training.corpora import corpus

LIMITS = {"epochs": 3, "patience": None}


def small(agent: str = "criteria") -> Any:
    """Return a space with one encoder and few parameters, so that a trial takes a second."""
    fixed: dict[str, Any] = {"text.max_length": 48, "train.effective_batch": 16}
    if agent_of(agent).spans:
        fixed |= {"text.doc_stride": 8}
    return narrowed(load(f"demo/{agent}"), fixed)


def search_in(folder: Path, agent: str = "criteria", **options: Any) -> Search:
    return Search(
        agent,
        corpus(60),
        str(folder / "s.db"),
        folder / "cache",
        space=small(agent),
        limits=LIMITS,
        seed=0,
        tell=lambda _: None,
        **options,
    )
