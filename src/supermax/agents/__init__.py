"""Agents of the package, one file for each.

A new agent is a file here and a space in `space/catalog`.
"""

from __future__ import annotations

from supermax._util.text import ended, nearest
from supermax.agents.agent import Agent
from supermax.agents.criteria import CRITERIA
from supermax.agents.evidence import EVIDENCE
from supermax.agents.joint import JOINT
from supermax.agents.multilabel import MULTILABEL
from supermax.agents.regression import REGRESSION
from supermax.agents.share import SHARE
from supermax.agents.token_classification import TOKEN_CLASSIFICATION
from supermax.errors import UserError

_ALL = (
    CRITERIA,
    EVIDENCE,
    SHARE,
    JOINT,
    REGRESSION,
    MULTILABEL,
    TOKEN_CLASSIFICATION,
)
_BY_NAME = {name: agent for agent in _ALL for name in (agent.name, *agent.aliases)}
AGENTS = tuple(agent.name for agent in _ALL)
"""Names under which agents are stored."""
AGENT_NAMES = tuple(_BY_NAME)
"""All names that a user may give."""
TASKS = ", ".join(
    f"{agent.name} (or {', '.join(agent.aliases)})" if agent.aliases else agent.name
    for agent in _ALL
)
"""Names of all agents for a help text."""


def agent_of(name: str) -> Agent:
    """Return the agent of a name or alias. Raises UserError if there is none."""
    if name not in _BY_NAME:
        raise UserError(ended(f"There is no agent {name!r}{nearest(name, AGENT_NAMES)}"))
    return _BY_NAME[name]


def stored_name(name: str) -> str:
    """Return the name under which an agent is stored; an unknown name as it is."""
    return _BY_NAME[name].name if name in _BY_NAME else name
