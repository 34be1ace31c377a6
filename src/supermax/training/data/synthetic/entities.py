"""Synthetic sentences with names of persons, places and organisations.

Some names are both of a person and of an organisation, so that only the words around them tell.
Towards difficulty 1, these and sentences without names are more frequent.
"""

from __future__ import annotations

import random
import re

from supermax.training.data.entities import Entity
from supermax.training.data.examples import Corpus, Example
from supermax.training.data.synthetic.arguments import check_arguments

TYPES = ("LOC", "ORG", "PER")
_NAMES = {
    "LOC": ("Aldmoor", "Brenna", "New Corwick", "Port Essel", "Tarn", "Upper Vale", "Lindau"),
    "ORG": ("Orbis", "Helix Works", "Nordbank", "Pine and Sons", "Quanta", "Union Mills"),
    "PER": ("Ada", "Boris Lenn", "Carla", "Dinah Moss", "Edgar", "Farah Quill", "Gregor"),
}
_BOTH = ("Marlow", "Hanson Grey", "Winter")
"""Names of persons and of organisations."""
_SENTENCES = (
    "{PER} went to {LOC} by train.",
    "{PER} and {PER} live in {LOC}.",
    "Shares of {ORG} rose again.",
    "{ORG} opened an office in {LOC}.",
    "In {LOC}, {PER} met a friend.",
    "The lawyers of {ORG} wrote to {PER}.",
)
_PLAIN = ("It rained all day.", "Nobody answered the phone.", "The shop was closed on Monday.")
_SLOT = re.compile(r"\{(\w+)\}")


def synthetic_entities(
    posts: int = 800, *, difficulty: float = 0.5, seed: int = 0, max_words: int | None = None
) -> Corpus:
    """Return a corpus of entities; the same arguments give the same corpus.

    `max_words` limits the sentences of a text, which has at least one.
    """
    check_arguments(posts, difficulty, max_words)
    rng = random.Random(seed)
    most = 3 if max_words is None else max(1, min(3, max_words // 8))
    examples = []
    for number in range(1, posts + 1):
        text, entities = "", list[Entity]()
        for _ in range(rng.randint(1, most)):
            plain = rng.random() < 0.3 * difficulty
            text += " " * bool(text)
            sentence = rng.choice(_PLAIN if plain else _SENTENCES)
            text = _filled(text, sentence, rng, difficulty, entities)
        name = f"n{number:05d}"
        examples.append(Example(name, name, text, entities=tuple(entities)))
    return Corpus("synthetic", TYPES, entities=tuple(examples))


def _filled(
    text: str, sentence: str, rng: random.Random, difficulty: float, entities: list[Entity]
) -> str:
    """Return the text with the sentence after it; the entities of its names are added."""
    at = 0
    for slot in _SLOT.finditer(sentence):
        kind = slot[1]
        both = kind != "LOC" and rng.random() < 0.5 * difficulty
        name = rng.choice(_BOTH if both else _NAMES[kind])
        text += sentence[at : slot.start()]
        entities.append(Entity(len(text), len(text) + len(name), TYPES.index(kind)))
        text, at = text + name, slot.end()
    return text + sentence[at:]
