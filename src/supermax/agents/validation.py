"""Type of a pydantic field that holds the name of an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator

from supermax.agents import AGENTS, stored_name


def _stored(name: Any) -> Any:
    return stored_name(name) if isinstance(name, str) else name


if TYPE_CHECKING:
    AgentName = str
else:
    AgentName = Annotated[Literal[AGENTS], BeforeValidator(_stored)]
    """Stored name of an agent; its other names are converted."""
