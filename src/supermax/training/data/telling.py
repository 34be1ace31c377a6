"""Sentences that tell of a symptom, or of its absence, and posts around them."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from supermax.training.data import sentences as says
from supermax.training.data.everyday import FILLERS, SLOTS

_VAGUE, _OTHER_SYMPTOM, _HARD, _DISTRACTOR = 0.15, 0.4, 0.9, 0.6
"""Shares of such sentences at difficulty 1."""
_PARAGRAPH = 0.15


@dataclass(frozen=True)
class Task:
    """A sentence to be made: whether it shows the symptom, and what its label says."""

    symptom: str
    shown: bool
    status: int


def tell(tasks: Sequence[Task], difficulty: float, draw: random.Random) -> list[str]:
    """A sentence for each task, then distractors; none of them stands within another."""
    asked = {task.symptom for task in tasks}
    told: list[str] = []
    for task in tasks:
        told.append(_new(told, _sentences(task, asked, difficulty, draw)))
    for task in tasks:
        if draw.random() < _DISTRACTOR * difficulty:
            told.append(_new(told, _distractors(task.symptom, draw)))
    return told


def post_of(
    told: Sequence[str], words: int, draw: random.Random
) -> tuple[str, dict[str, tuple[int, int]]]:
    """A post of about so many words that holds what is told, and the position among the
    sentences and the first character of each of these."""
    fillers = []
    left = words - sum(_words(sentence) for sentence in told)
    while (left := left - _words(filler := _filled(draw.choice(FILLERS), draw))) >= 0:
        fillers.append(filler)
    order = [*fillers, *told]
    slots = sorted(draw.sample(range(len(order)), len(told)))
    for slot, sentence in zip(slots, draw.sample(list(told), len(told)), strict=True):
        fillers.insert(slot, sentence)
    return _joined(fillers, set(told), draw)


def _joined(
    parts: list[str], told: Collection[str], draw: random.Random
) -> tuple[str, dict[str, tuple[int, int]]]:
    text, places = "", dict[str, tuple[int, int]]()
    for index, part in enumerate(parts):
        if text:
            text += "\n\n" if draw.random() < _PARAGRAPH else " "
        if part in told:
            places[part] = (index, len(text))
        text += part
    return text, places


def _new(told: Sequence[str], candidates: Iterator[str]) -> str:
    return next(c for c in candidates if not any(c in other or other in c for other in told))


def _sentences(
    task: Task, asked: Collection[str], difficulty: float, draw: random.Random
) -> Iterator[str]:
    while True:
        if draw.random() < _VAGUE * difficulty:
            yield _filled(draw.choice(says.VAGUE), draw, task.symptom)
        elif task.shown:
            yield _shown(task.symptom, difficulty, draw)
        else:
            yield _absent(task.symptom, asked, difficulty, draw)


def _shown(symptom: str, difficulty: float, draw: random.Random) -> str:
    hard = draw.random() < _HARD * difficulty
    return _filled(draw.choice(says.PRESENT_HARD if hard else says.PRESENT_PLAIN), draw, symptom)


def _absent(symptom: str, asked: Collection[str], difficulty: float, draw: random.Random) -> str:
    others = [name for name in says.WORDINGS if name not in asked]
    if others and draw.random() < _OTHER_SYMPTOM * difficulty**2:  # the hardest, so it comes last
        return _shown(draw.choice(others), difficulty, draw)
    hard = draw.random() < _HARD * difficulty
    frames = (says.ABSENT_HARD,) if hard else (says.ABSENT_WELL, says.ABSENT_PLAIN)
    return _filled(draw.choice(draw.choice(frames)), draw, symptom)


def _distractors(symptom: str, draw: random.Random) -> Iterator[str]:
    while True:
        frame = draw.choice((*says.ABSENT_HARD, *says.ABSENT_PLAIN))
        yield _filled(frame, draw, symptom)


def _filled(frame: str, draw: random.Random, symptom: str | None = None) -> str:
    """A frame with a word in each of its slots."""
    values = {slot: draw.choice(words) for slot, words in SLOTS.items()}
    values["when"], values["other"] = draw.choice(says.WHENS), draw.choice(says.OTHERS)
    if symptom is not None:
        wording = says.WORDINGS[symptom]
        values["past"], values["base"] = draw.choice(wording.shown)
        values["well"], values["vague"] = draw.choice(wording.well), draw.choice(wording.vague)
    capitals = {slot.capitalize(): value[0].upper() + value[1:] for slot, value in values.items()}
    return frame.format(**values, **capitals)


def _words(sentence: str) -> int:
    return len(sentence.split())
