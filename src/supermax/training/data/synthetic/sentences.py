"""Synthetic sentences that show a symptom or its absence, and posts around them."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from supermax.training.data.synthetic import symptom_templates as templates
from supermax.training.data.synthetic.neutral_templates import FILLERS, SLOTS

_VAGUE, _OTHER_SYMPTOM, _HARD, _DISTRACTOR = 0.15, 0.4, 0.9, 0.6
"""Probabilities of such sentences at difficulty 1."""
_PARAGRAPH = 0.15  # probability of a paragraph break


@dataclass(frozen=True)
class SentenceLabel:
    symptom: str
    shown: bool
    """True: the sentence shows the symptom."""
    status: int
    """Label of the sentence, which may be wrong."""


def generate_sentences(
    tasks: Sequence[SentenceLabel], difficulty: float, rng: random.Random
) -> list[str]:
    """Return a sentence for each task, then distractors. None of them contains another."""
    symptoms = {task.symptom for task in tasks}
    sentences: list[str] = []
    for task in tasks:
        sentences.append(_new(sentences, _sentences(task, symptoms, difficulty, rng)))
    for task in tasks:
        if rng.random() < _DISTRACTOR * difficulty:
            sentences.append(_new(sentences, _distractors(task.symptom, rng)))
    return sentences


def post_of(
    sentences: Sequence[str], words: int, rng: random.Random
) -> tuple[str, dict[str, tuple[int, int]]]:
    """Return a post of about `words` words around the sentences, and their positions in it.

    A position is the index among all sentences of the post, and the first character.
    """
    post = []
    left = words - sum(_words(sentence) for sentence in sentences)
    while (left := left - _words(filler := _fill(rng.choice(FILLERS), rng))) >= 0:
        post.append(filler)
    total = len(post) + len(sentences)
    slots = sorted(rng.sample(range(total), len(sentences)))
    for slot, sentence in zip(slots, rng.sample(list(sentences), len(sentences)), strict=True):
        post.insert(slot, sentence)
    return _join(post, set(sentences), rng)


def _join(
    parts: list[str], sentences: Collection[str], rng: random.Random
) -> tuple[str, dict[str, tuple[int, int]]]:
    text, positions = "", dict[str, tuple[int, int]]()
    for index, part in enumerate(parts):
        if text:
            text += "\n\n" if rng.random() < _PARAGRAPH else " "
        if part in sentences:
            positions[part] = (index, len(text))
        text += part
    return text, positions


def _new(sentences: Sequence[str], candidates: Iterator[str]) -> str:
    return next(c for c in candidates if not any(c in other or other in c for other in sentences))


def _sentences(
    task: SentenceLabel, symptoms: Collection[str], difficulty: float, rng: random.Random
) -> Iterator[str]:
    while True:
        if rng.random() < _VAGUE * difficulty:
            yield _fill(rng.choice(templates.VAGUE), rng, task.symptom)
        elif task.shown:
            yield _shown(task.symptom, difficulty, rng)
        else:
            yield _absent(task.symptom, symptoms, difficulty, rng)


def _shown(symptom: str, difficulty: float, rng: random.Random) -> str:
    hard = rng.random() < _HARD * difficulty
    frames = templates.PRESENT_HARD if hard else templates.PRESENT_PLAIN
    return _fill(rng.choice(frames), rng, symptom)


def _absent(symptom: str, symptoms: Collection[str], difficulty: float, rng: random.Random) -> str:
    others = [name for name in templates.WORDINGS if name not in symptoms]
    if others and rng.random() < _OTHER_SYMPTOM * difficulty**2:  # squared, as it is the hardest
        return _shown(rng.choice(others), difficulty, rng)
    hard = rng.random() < _HARD * difficulty
    frames = (templates.ABSENT_HARD,) if hard else (templates.ABSENT_WELL, templates.ABSENT_PLAIN)
    return _fill(rng.choice(rng.choice(frames)), rng, symptom)


def _distractors(symptom: str, rng: random.Random) -> Iterator[str]:
    while True:
        frame = rng.choice((*templates.ABSENT_HARD, *templates.ABSENT_PLAIN))
        yield _fill(frame, rng, symptom)


def _fill(frame: str, rng: random.Random, symptom: str | None = None) -> str:
    """Return the template with a random word in each of its slots."""
    values = {slot: rng.choice(words) for slot, words in SLOTS.items()}
    values["when"], values["other"] = rng.choice(templates.WHENS), rng.choice(templates.OTHERS)
    if symptom is not None:
        wording = templates.WORDINGS[symptom]
        values["past"], values["base"] = rng.choice(wording.shown)
        values["well"], values["vague"] = rng.choice(wording.well), rng.choice(wording.vague)
    capitals = {slot.capitalize(): value[0].upper() + value[1:] for slot, value in values.items()}
    return frame.format(**values, **capitals)


def _words(sentence: str) -> int:
    return len(sentence.split())
