"""Synthetic ratings of products: texts whose words decide a number from 0 to 10.

The number is the mean of the grades of a text's remarks. Towards difficulty 1, noise is added to
it and more remarks carry no grade.
"""

from __future__ import annotations

import random

from supermax.training.data.examples import Corpus, Example
from supermax.training.data.synthetic.arguments import check_arguments

_GRADES = {
    "The {part} is useless.": 0.0,
    "The {part} is poor.": 2.0,
    "The {part} could be better.": 4.0,
    "The {part} is decent.": 6.0,
    "The {part} is good.": 8.0,
    "The {part} is excellent.": 10.0,
}
_PARTS = ("screen", "battery", "case", "keyboard", "camera", "speaker", "cable", "menu")
_PLAIN = ("I bought it in May.", "It came in a grey box.", "My sister has one too.")
_NOISE = 2.0  # standard deviation at difficulty 1


def synthetic_ratings(
    posts: int = 800, *, difficulty: float = 0.5, seed: int = 0, max_words: int | None = None
) -> Corpus:
    """Return a corpus of numbers; the same arguments give the same corpus.

    `max_words` limits the remarks of a text, which has at least one.
    """
    check_arguments(posts, difficulty, max_words)
    rng = random.Random(seed)
    most = 4 if max_words is None else max(1, min(4, max_words // 4))
    examples = []
    for number in range(1, posts + 1):
        remarks = rng.choices(list(_GRADES), k=rng.randint(1, most))
        grade = sum(_GRADES[remark] for remark in remarks) / len(remarks)
        parts = rng.sample(_PARTS, len(remarks))
        said = [remark.format(part=part) for remark, part in zip(remarks, parts, strict=True)]
        if rng.random() < difficulty:
            said.insert(rng.randint(0, len(said)), rng.choice(_PLAIN))
        value = grade + rng.gauss(0, _NOISE * difficulty)
        name = f"r{number:05d}"
        examples.append(Example(name, name, " ".join(said), value=round(value, 3)))
    return Corpus("synthetic", (), numbers=tuple(examples))
