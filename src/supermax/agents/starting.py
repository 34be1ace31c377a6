"""What can be known to be wrong, or weak, before the first trial of a search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from supermax.errors import Infeasible, UserError
from supermax.space import Categorical, Space
from supermax.training.config import TextConfig, read_limits
from supermax.training.data.examples import Corpus
from supermax.training.data.splits import Splits
from supermax.training.prepare import examples_for, texts_of
from supermax.training.sources import Source
from supermax.training.tokenizers import tokenizer_for
from supermax.training.tokens import check_room
from supermax.words import listed

_FEW = 20  # rows to judge by


def raise_all(head: str, *checks: Callable[[], object]) -> None:
    """Raise one UserError with every mistake that these find."""
    mistakes = []
    for check in checks:
        try:
            check()
        except UserError as error:
            mistakes.append(str(error))
    if mistakes:
        raise UserError(mistakes[0] if len(mistakes) == 1 else listed(head, mistakes))


def check_limits(limits: Mapping[str, Any], space: Space) -> None:
    """What every trial is given beside what is searched."""
    searched = [key for key in limits if f"train.{key}" in space.parameters]
    if searched:
        raise UserError(
            f"The limits give {', '.join(searched)}, which the space searches: take it out of one "
            f"of them."
        )
    read_limits(limits)


def check_arguments(corpus: object, **counts: object) -> None:
    """What is not a number, or not enough; and a corpus that was not read."""
    wrong = []
    if not isinstance(corpus, Corpus):
        wrong.append(
            f"The data is a corpus, as read_table, read_redsm5 or synthetic give it, not "
            f"a {type(corpus).__name__}."
        )
    for name, n in counts.items():
        if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
            wrong.append(f"{name} is a number of at least 1, not {n!r:.40}.")
    if wrong:
        raise UserError("\n".join(wrong))


def check_questions(
    agent: str, splits: Splits, space: Space, sources: Iterable[Source], cache: Path
) -> None:
    """Every question must leave room for text in the largest configuration, at least."""
    length = _end(space, "text.max_length", max)
    stride = _end(space, "text.doc_stride", min) if agent != "criteria" else 0
    examples = [e for part in (splits.train, splits.validation) for e in examples_for(agent, part)]
    for source in sources:
        tokenizer = tokenizer_for(source, texts_of(splits.train), cache)
        try:
            check_room(examples, tokenizer, length, stride)
        except Infeasible as error:
            raise UserError(
                f"{error}\nThe space has no greater length. Shorten these questions, leave the "
                f"rows out, or let text.max_length go higher."
            ) from None


def weaknesses(splits: Splits) -> list[str]:
    """What makes the values of a search say little."""
    notices = []
    names = splits.train.label_names
    for what, part in (("validation", splits.validation), ("test", splits.test)):
        if not part.classes:
            continue
        counts = Counter(example.label for example in part.classes)
        missing = [name for i, name in enumerate(names) if not counts[i]]
        if missing:
            notices.append(f"The {what} split has no row of {', '.join(missing)}.")
        if len(part.classes) < _FEW:
            notices.append(f"The {what} split has {len(part.classes)} rows: chance decides much.")
    return notices


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """In what two searches differ whose values cannot be compared."""
    return [
        f"{name}: {before[name]} then, {now[name]} now"
        for name in now
        if name in before and before[name] != now[name]
    ]


def refuse_another(name: str, where: str, before: Any, now: dict[str, Any]) -> None:
    """Raise UserError when the study's values come from another experiment."""
    if isinstance(before, dict) and (found := differences(before, now)):
        head = f"The study '{name}' in {where} was searched differently:"
        raise UserError(
            listed(head, found) + "\nTheir values cannot be compared. Give this search another "
            "name or another storage."
        )


def _end(space: Space, name: str, end: Any) -> int:
    found: list[Any] = []
    for branch in space.parameters[name].branches if name in space.parameters else ():
        found += branch.choices if isinstance(branch, Categorical) else (branch.low, branch.high)
    default = TextConfig()
    return int(end(found)) if found else int(getattr(default, name.removeprefix("text.")))
