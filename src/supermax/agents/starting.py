"""What can be known to be wrong, or weak, before the first trial of a search."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from supermax.errors import Infeasible, UserError
from supermax.naming import AGENTS
from supermax.space import Categorical, Space, load
from supermax.training.config import TextConfig, config_keys, read_limits
from supermax.training.data.examples import Corpus
from supermax.training.data.splits import Splits
from supermax.training.offsets import without_tokens
from supermax.training.prepare import examples_for, longest, texts_of
from supermax.training.sources import Source
from supermax.training.tokenizers import tokenizer_for
from supermax.training.tokens import check_room
from supermax.training.words import is_name
from supermax.words import counted, listed, nearest

VERSIONS = "metric_versions"
"""Key of an experiment: the version of the definition of each objective that is a metric."""
_SHOWN = 10  # rows that a message names
_MOST_SPECIAL_TOKENS = 16  # that a tokenizer adds to a text


def all_of(head: str, *checks: Callable[[], Any]) -> list[Any]:
    """What these give, or one UserError with every mistake that they find."""
    found, mistakes = [], []
    for check in checks:
        try:
            found.append(check())
        except UserError as error:
            mistakes.append(str(error))
    if mistakes:
        raise UserError(mistakes[0] if len(mistakes) == 1 else listed(head, mistakes))
    return found


def check_limits(limits: Mapping[str, Any], space: Space) -> None:
    """What every trial is given beside what is searched."""
    searched = [key for key in limits if f"train.{key}" in space.parameters]
    read_limits({key: value for key, value in limits.items() if key not in searched})
    if searched:
        raise UserError(
            f"The limits give {', '.join(searched)}, which the space searches: take it out of one "
            f"of them."
        )


def check_space(agent: str, space: Space) -> None:
    """Every parameter must be a key of the configuration, and one that the agent heeds."""
    known = config_keys()
    own = set(load(agent).parameters)
    others = {name for other in AGENTS for name in load(other).parameters} - own
    wrong = [
        f"{name}: there is no such key{nearest(name, known)}"
        for name in space.parameters
        if name not in known
    ]
    wrong += [
        f"{name}: the agent '{agent}' has no use for it"
        for name in space.parameters
        if name in others
    ]
    if wrong:
        raise UserError(listed(f"The space '{space.name}' is not for the agent '{agent}':", wrong))


def check_corpus(corpus: object) -> None:
    if not isinstance(corpus, Corpus):
        raise UserError(
            f"The data is a corpus, as read_table, read_redsm5 or synthetic give it, not "
            f"a {type(corpus).__name__}."
        )


def check_known(agent: str, corpus: Corpus) -> None:
    """Rows of which nothing is known can be predicted, and not learnt from."""
    lacks = []
    if agent != "evidence" and not any(e.label is not None for e in corpus.classes):
        lacks.append("labels (map the column of the labels: data.columns.label)")
    if agent != "criteria" and not any(e.spans is not None for e in corpus.spans):
        lacks.append("answers (map the column of the answers: data.columns.answer)")
    if lacks:
        raise UserError(
            f"The agent '{agent}' learns from {' and '.join(lacks)}, and '{corpus.name}' has none."
        )


def check_parts(agent: str, splits: Splits) -> None:
    """Raise UserError where there is nothing to learn from, or to judge trials by."""
    empty = [
        f"{what}: no row with {kind}"
        for what, part in (("train", splits.train), ("validation", splits.validation))
        for kind, rows, unused in (
            ("a label", part.classes, "evidence"),
            ("an answer, or with none marked", part.spans, "criteria"),
        )
        if agent != unused and not rows
    ]
    if empty:
        raise UserError(
            listed(f"The agent '{agent}' learns from train and is judged by validation:", empty)
            + "\nGive these splits such rows, or leave the column of the splits unmapped "
            "(data.columns.split), so that the data is split."
        )


def check_counts(**counts: object) -> None:
    """What is not a number, or not enough."""
    wrong = [
        f"{name} is a number of at least 1, not {n!r:.40}."
        for name, n in counts.items()
        if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1)
    ]
    if wrong:
        raise UserError("\n".join(wrong))


def check_questions(
    agent: str, splits: Splits, space: Space, sources: Iterable[Source], cache: Path
) -> None:
    """Every question must leave room for text in the largest configuration, at least; and of every
    answer some token must be left, or its row would be learnt as one without an answer."""
    length = _end(space, "text.max_length", max)
    stride = _end(space, "text.doc_stride", min) if agent != "criteria" else 0
    examples = [e for part in (splits.train, splits.validation) for e in examples_for(agent, part)]
    if (
        agent == "criteria"
        and length > _MOST_SPECIAL_TOKENS
        and not any(e.question for e in examples)
    ):
        return  # nothing to tokenise, and no tokenizer to load
    for source in sources:
        tokenizer = tokenizer_for(source, texts_of(splits.train), cache)
        most = longest(source)
        if agent != "criteria":
            _check_answers(splits, source, tokenizer)
        try:
            check_room(examples, tokenizer, min(length, most), stride)
        except Infeasible as error:
            limit = (
                f"The encoder '{source.name}' reads no more than {most} tokens."
                if most <= length
                else "The space has no greater length: let text.max_length go higher."
            )
            raise UserError(
                f"{error}\n{limit} Shorten these questions, or leave the rows out."
            ) from None


def _check_answers(splits: Splits, source: Source, tokenizer: Any) -> None:
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
    head = f"{many} an answer of which the tokenizer of '{source.name}' leaves no token:"
    raise UserError(
        listed(head, rows) + "\nSuch an answer can be neither learnt nor found. Correct these "
        "answers, or leave the rows out of the file."
    )


def refuse_another(
    name: str, where: str, before: Any, now: dict[str, Any], joined: int = 0
) -> None:
    """Raise UserError when the study's values come from another experiment. `joined` counts the
    groups that are now kept together for a text they share."""
    before = before if isinstance(before, dict) else {}
    found = [
        f"{what}: {before[what]} then, {now[what]} now"
        for what in now
        if what != VERSIONS and what in before and before[what] != now[what]
    ]
    found += _other_definitions(before, now)
    # Studies that note no splits are from when equal texts of different groups were not joined.
    if joined and "data" in before and "splits" not in before:
        found.append("splits: equal texts were in different ones then, and are kept together now")
    if found:
        head = f"The study '{name}' in {where} was searched differently:"
        raise UserError(
            listed(head, found) + "\nTheir values cannot be compared. Give this search another "
            "name or another storage (--study … or --storage …). The study can still be shown "
            "and reported."
        )


def _other_definitions(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Objectives in common whose metrics have been defined anew; without a note, version 1."""
    objectives, versions = before.get("objectives") or (), before.get(VERSIONS) or {}
    return [
        f"definition of {metric} (docs/agents.md): version {versions.get(metric, 1)} then, "
        f"version {version} now"
        for metric, version in now.get(VERSIONS, {}).items()
        if metric in objectives and versions.get(metric, 1) != version
    ]


def _end(space: Space, name: str, end: Any) -> int:
    found: list[Any] = []
    for branch in space.parameters[name].branches if name in space.parameters else ():
        found += branch.choices if isinstance(branch, Categorical) else (branch.low, branch.high)
    default = TextConfig()
    return int(end(found)) if found else int(getattr(default, name.removeprefix("text.")))
