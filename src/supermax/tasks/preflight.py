"""Checks of a search before its first trial."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supermax._util.text import counted, listed, nearest
from supermax.agents import AGENTS, agent_of
from supermax.errors import Infeasible, UserError
from supermax.space import Categorical, Constraint, Space, load
from supermax.space.adapters import NAME as ADAPTER
from supermax.space.adapters import may_adapt
from supermax.space.feasible import possible
from supermax.space.presets import LENGTH, unsearched
from supermax.tasks.space_values import always_windows, integers
from supermax.training.config import FULL_TRAINING, TextConfig, config_keys, read_limits
from supermax.training.data.examples import Corpus
from supermax.training.data.names import is_name
from supermax.training.data.offsets import without_tokens
from supermax.training.data.splits import Splits
from supermax.training.data.tokens import check_room
from supermax.training.models.sources import Source
from supermax.training.models.tokenizers import tokenizer_for
from supermax.training.prepare import examples_for, max_input_length, texts_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VERSIONS = "metric_versions"
"""Key of an experiment for the versions of its metrics' definitions."""
DECODING = "decoding"
"""Key of an experiment whose decoding settings are chosen in each evaluation, unless the space
searches them. Without it, as in earlier versions, they have fixed values."""
_SHOWN = 10  # rows that a message names
_MOST_SPECIAL_TOKENS = 16  # that a tokenizer adds to a text


def all_of(heading: str, *checks: Callable[[], Any]) -> list[Any]:
    """Return the results of all checks. Raises one UserError with every mistake they find."""
    results, mistakes = [], []
    for check in checks:
        try:
            results.append(check())
        except UserError as error:
            mistakes.append(str(error))
    if mistakes:
        raise UserError(mistakes[0] if len(mistakes) == 1 else listed(heading, mistakes))
    return results


def check_limits(limits: Mapping[str, object], space: Space) -> None:
    """Raise UserError if limits are invalid, or if the space searches them."""
    searched = [key for key in limits if f"train.{key}" in space.parameters]
    read_limits({key: value for key, value in limits.items() if key not in searched})
    if searched:
        raise UserError(
            f"The limits set {', '.join(searched)}, which the space also searches: remove it from "
            f"one of them."
        )


def check_space(agent: str, space: Space) -> None:
    """Raise UserError if a parameter is no key of the configuration, or none of the agent."""
    known = config_keys()
    own = {*load(agent).parameters, *unsearched(agent)}
    others = {n for other in AGENTS for n in (*load(other).parameters, *unsearched(other))} - own
    wrong = [
        f"{name}: there is no such key{nearest(name, known)}"
        for name in space.parameters
        if name not in known
    ]
    wrong += [
        f"{name}: the agent '{agent}' does not use it"
        for name in space.parameters
        if name in others
    ]
    if agent_of(agent).text_level and "text.long_texts" not in space.parameters:
        wrong += [
            f"{name}: the agent '{agent}' does not use it without text.long_texts: windows"
            for name in ("text.doc_stride", "text.window_pooling")
            if name in space.parameters
        ]
    if wrong:
        raise UserError(listed(f"The space '{space.name}' is not for the agent '{agent}':", wrong))
    check_adapter(space)


def check_adapter(space: Space) -> None:
    """Raise UserError if trials with an adapter could have settings that it gives no meaning."""
    if not may_adapt(space):
        return
    wrong = [
        f"{key}: with an adapter, {reason}"
        for key, (neutral, reason) in FULL_TRAINING.items()
        if key in space.parameters and _varies_under_adapter(space, key, neutral)
    ]
    if wrong:
        heading = f"The space '{space.name}' samples settings that have no meaning under LoRA:"
        advice = "Give them the condition  when: adapter.name == 'none'"
        raise UserError(f"{listed(heading, wrong)}\n{advice}")


def _varies_under_adapter(space: Space, key: str, neutral: float) -> bool:
    """Return False if it is certain that the parameter is inactive or neutral under an adapter."""
    conditions = [f"{ADAPTER} != 'none'"]
    for branch in space.parameters[key].branches:
        own = [branch.when] if branch.when else []
        varies = branch.choices if isinstance(branch, Categorical) else (branch.low, branch.high)
        if any(value != neutral for value in varies) and _can_hold(space, [*conditions, *own]):
            return True
        conditions += [f"not ({when})" for when in own]
    return False


def _can_hold(space: Space, conditions: list[str]) -> bool:
    named = enumerate(conditions)
    return possible(space, [Constraint(name=str(i), reason="-", require=c) for i, c in named])


def check_corpus(corpus: object) -> None:
    if not isinstance(corpus, Corpus):
        raise UserError(
            f"The data must be a corpus, as read_table, read_redsm5 and synthetic return it, not "
            f"a {type(corpus).__name__}."
        )


def check_known(agent: str, corpus: Corpus) -> None:
    """Raise UserError if the corpus has no labels, or no answers, that the agent needs."""
    targets = agent_of(agent).targets
    missing = [t.needs for t in targets if not any(e.has(t) for e in corpus.of(t))]
    if missing:
        raise UserError(
            f"The agent '{agent}' learns from {' and '.join(missing)}, but '{corpus.name}' has "
            f"none."
        )


def check_parts(agent: str, splits: Splits) -> None:
    """Raise UserError if the train or validation split lacks rows that the agent needs, or has
    only one number."""
    empty = [
        f"{what}: no row with {target.row}"
        for what, part in (("train", splits.train), ("validation", splits.validation))
        for target in agent_of(agent).targets
        if not part.of(target)
    ]
    if empty:
        raise UserError(
            listed(f"The agent '{agent}' is trained on train and evaluated on validation:", empty)
            + "\nGive these splits such rows, or leave the column of the splits unmapped "
            "(data.columns.split), so that the data is split."
        )
    if not agent_of(agent).numbers:
        return
    for what, part in (("train", splits.train), ("validation", splits.validation)):
        if len({example.value for example in part.numbers}) < 2:
            raise UserError(
                f"All numbers of the {what} split are the same, so there is nothing to "
                f"{'learn' if what == 'train' else 'tell trials apart by'}. Give it rows with "
                f"other numbers, or split the data differently (data.split_seed, or "
                f"data.columns.split unmapped)."
            )


def check_counts(**counts: object) -> None:
    """Raise UserError if a count is neither None nor a positive integer."""
    wrong = [
        f"{name} must be a whole number of at least 1, not {n!r:.40}."
        for name, n in counts.items()
        if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1)
    ]
    if wrong:
        raise UserError("\n".join(wrong))


def check_questions(
    agent: str, splits: Splits, space: Space, sources: Iterable[Source], cache: Path
) -> None:
    """Raise UserError if a question leaves no room for text even at the space's largest length.

    Also if a tokenizer drops all of an answer: its row would be trained as one without an answer.
    """
    defaults, has_spans = TextConfig(), agent_of(agent).spans
    length = max(integers(space, LENGTH), default=defaults.max_length)
    stride = min(integers(space, "text.doc_stride"), default=defaults.doc_stride)
    stride = stride if agent_of(agent).windows or always_windows(space) else 0
    examples = [e for part in (splits.train, splits.validation) for e in examples_for(agent, part)]
    roomy = length > _MOST_SPECIAL_TOKENS + stride
    if not has_spans and roomy and not any(e.question for e in examples):
        return  # without questions there is always room: load no tokenizer
    for source in sources:
        tokenizer = tokenizer_for(source, texts_of(splits.train), cache)
        encoder_limit = max_input_length(source)
        if has_spans:
            _check_answers(splits, source, tokenizer)
        try:
            check_room(examples, tokenizer, min(length, encoder_limit), stride)
        except Infeasible as error:
            limit = (
                f"The encoder '{source.name}' takes {encoder_limit} tokens at most."
                if encoder_limit <= length
                else "This is the largest length of the space: raise text.max_length."
            )
            largest = stride - round(error.by * min(length, encoder_limit))
            advice = _ways_to_make_room(largest, any(e.question for e in examples))
            raise UserError(f"{error}\n{limit} {advice}") from None


def _ways_to_make_room(largest_stride: int, questions: bool) -> str:
    """Return what else helps where windows of the space's largest length cannot advance."""
    shorten = "Shorten these questions, or leave the rows out."
    if largest_stride < 1:
        return shorten
    fewer = max(1, min(64, largest_stride // 4))  # an overlap of a quarter, not the largest
    lower = f"Or let windows overlap less, such as --set text.doc_stride={fewer}."
    return f"{lower} {shorten}" if questions else lower


def _check_answers(splits: Splits, source: Source, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise UserError with the rows whose answer the tokenizer drops."""
    lost = without_tokens([e for part in splits.parts for e in part.spans], tokenizer)
    if not lost:
        return
    file = re.escape(splits.train.name)
    named = [e.id for e in lost if is_name(e.id) or re.fullmatch(rf"{file}\.\w+:\d+", e.id)]
    rows = named[:_SHOWN]
    if len(lost) > len(rows):
        rows.append(f"{counted(len(lost) - len(rows), 'row')} more")
    many = counted(len(lost), "row has", "rows have")
    heading = f"{many} an answer of which the tokenizer of '{source.name}' leaves no token:"
    raise UserError(
        listed(heading, rows)
        + "\nSuch an answer can be neither trained on nor predicted. Correct "
        "these answers, or remove the rows from the file."
    )


def refuse_another(
    name: str, where: str, before: object, now: Mapping[str, Any], joined: int = 0
) -> None:
    """Raise UserError if the study's values come from another experiment.

    `before` and `now` describe the experiments. `joined` counts the groups that are now in one
    split because they share a text.
    """
    before = before if isinstance(before, dict) else {}
    differences = [
        f"{key}: {before[key]} then, {now[key]} now"
        for key in now
        if key != VERSIONS and key in before and before[key] != now[key]
    ]
    differences += _other_definitions(before, now)
    # Studies without `splits` are from versions that did not join groups with equal texts.
    if joined and "data" in before and "splits" not in before:
        differences.append("splits: equal texts could be in different ones then, not now")
    if differences:
        heading = f"The study '{name}' in {where} was searched differently:"
        raise UserError(
            listed(heading, differences)
            + "\nTheir values cannot be compared. Give this search another name or another "
            "storage (--study NAME or --storage PLACE). The study can still be shown and reported."
        )


def has_fixed_decoding(experiment: object, space: Space | None) -> bool:
    """Return True for an experiment of an earlier version whose space lacked decoding settings:
    they had fixed values, which its further trials must have too."""
    if not isinstance(experiment, dict) or DECODING in experiment:
        return False
    searched = set() if space is None else set(space.parameters)
    return not {"no_answer.policy", "decode.n_best", "decode.max_answer"} <= searched


def _other_definitions(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name objectives of both whose metrics have another version; no stored version means 1."""
    objectives, versions = before.get("objectives") or (), before.get(VERSIONS) or {}
    return [
        f"definition of {metric} (docs/agents.md): version {versions.get(metric, 1)} then, "
        f"version {version} now"
        for metric, version in now.get(VERSIONS, {}).items()
        if metric in objectives and versions.get(metric, 1) != version
    ]
