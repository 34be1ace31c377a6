"""Synthetic requests to a help desk: texts that name any number of topics, also none.

Towards difficulty 1, more texts mention a topic that they do not ask about, and some labels are
wrong.
"""

from __future__ import annotations

import random

from supermax.training.data.examples import Corpus, Example
from supermax.training.data.synthetic.arguments import check_arguments

_TOPICS = {
    "account": ("I cannot log in.", "My password is refused.", "The sign-in page fails."),
    "billing": ("The invoice is wrong.", "I was charged twice.", "I want my money back."),
    "delivery": ("The parcel is late.", "Nothing was shipped.", "The courier never came."),
    "quality": ("It broke at once.", "The screen is cracked.", "It makes a loud noise."),
    "praise": ("Your team is kind.", "I love this shop.", "Thank you for the quick help."),
}
_SHARES = {"account": 0.3, "billing": 0.35, "delivery": 0.25, "quality": 0.3, "praise": 0.12}
_ASIDES = {
    "account": "Logging in was easy.",
    "billing": "The invoice was fine.",
    "delivery": "The parcel came in time.",
    "quality": "The screen looks good.",
    "praise": "I never said that your team is kind.",
}
_PLAIN = ("I wrote last week too.", "Please answer soon.", "I am a customer since May.")
_NOISE = 0.06  # share of the labels that are wrong at difficulty 1


def synthetic_requests(
    posts: int = 800, *, difficulty: float = 0.5, seed: int = 0, max_words: int | None = None
) -> Corpus:
    """Return a corpus of sets of labels; the same arguments give the same corpus.

    `max_words` limits the sentences of a text, which has at least one.
    """
    check_arguments(posts, difficulty, max_words)
    rng = random.Random(seed)
    names = tuple(_TOPICS)
    most = len(names) if max_words is None else max(1, min(len(names), max_words // 5))
    examples = []
    for number in range(1, posts + 1):
        asked = [name for name in names if rng.random() < _SHARES[name]]
        asked = rng.sample(asked, min(most, len(asked)))
        said = [rng.choice(_TOPICS[name]) for name in asked]
        others = [name for name in names if name not in asked]
        if others and len(said) < most and rng.random() < difficulty:
            said.append(_ASIDES[rng.choice(others)])
        if not said or (len(said) < most and rng.random() < 0.3):
            said.append(rng.choice(_PLAIN))
        rng.shuffle(said)
        labels = tuple(
            index
            for index, name in enumerate(names)
            if (name in asked) != (rng.random() < _NOISE * difficulty)
        )
        identifier = f"q{number:05d}"
        examples.append(Example(identifier, identifier, " ".join(said), labels=labels))
    return Corpus("synthetic", names, label_sets=tuple(examples))
