"""Synthetic data with the format and the proportions of ReDSM5, generated from templates.

    _plan() ──tasks──▶ generate_sentences() ──evidence, negatives──▶ post_of() ──▶ post

At difficulty 0, sentences show a symptom or its absence in clear words. Towards 1, more sentences
are about someone else, negated, about another symptom or vague, and more labels are wrong.
"""

from __future__ import annotations

import math
import random
from statistics import NormalDist

from supermax.training.data.examples import Corpus
from supermax.training.data.redsm5 import Annotation, assemble
from supermax.training.data.synthetic.arguments import check_arguments
from supermax.training.data.synthetic.sentences import SentenceLabel, generate_sentences, post_of
from supermax.training.data.synthetic.symptom_templates import WORDINGS

_POSTS, _ANNOTATIONS, _PRESENT = 1484, 2058, 427  # numbers in ReDSM5
_LENGTH = NormalDist(5.19, 1.0)  # logarithm of a post's words: mean about 295, longest thousands
_NOISE = 0.12  # share of the labels "present" that are wrong at difficulty 1


def synthetic(
    posts: int = _POSTS, *, difficulty: float = 0.5, seed: int = 0, max_words: int | None = None
) -> Corpus:
    """Return a corpus like that of `read_redsm5`; the same arguments give the same corpus.

    `max_words` limits posts to their annotated sentences and what else fits.
    """
    check_arguments(posts, difficulty, max_words)
    rng = random.Random(seed)
    texts: dict[str, str] = {}
    annotations: list[Annotation] = []
    plan = zip(_plan(posts, difficulty, rng), _lengths(posts, rng), strict=True)
    for number, (tasks, words) in enumerate(plan, 1):
        post = f"p{number:05d}"
        sentences = generate_sentences(tasks, difficulty, rng)
        texts[post], positions = post_of(sentences, min(words, max_words or words), rng)
        for task, sentence in zip(tasks, sentences, strict=False):  # distractors come last
            index, start = positions[sentence]
            span = (start, start + len(sentence))
            annotations.append(
                Annotation(post, f"s{index}", task.symptom, task.status, sentence, span)
            )
    return assemble("synthetic", texts, annotations)


def _plan(posts: int, difficulty: float, rng: random.Random) -> list[list[SentenceLabel]]:
    """Return the annotated sentences of every post, at least one for each."""
    count = max(posts, round(posts * _ANNOTATIONS / _POSTS))
    owners = [*range(posts), *rng.choices(range(posts), k=count - posts)]
    rng.shuffle(owners)
    weights = [wording.weight for wording in WORDINGS.values()]
    symptoms = rng.choices(list(WORDINGS), weights, k=count)
    tasks: list[list[SentenceLabel]] = [[] for _ in range(posts)]
    for owner, symptom, (shown, status) in zip(
        owners, symptoms, _labels(count, difficulty), strict=True
    ):
        tasks[owner].append(SentenceLabel(symptom, shown, status))
    for own in tasks:
        rng.shuffle(own)
    return tasks


def _labels(count: int, difficulty: float) -> list[tuple[bool, int]]:
    """Return truth and label of each sentence.

    As many labels of each class are wrong, so that their proportion stays.
    """
    present = max(1, round(count * _PRESENT / _ANNOTATIONS))
    wrong = min(round(present * _NOISE * difficulty), count - present)
    return [
        (i < present, int(i < present - wrong or present <= i < present + wrong))
        for i in range(count)
    ]


def _lengths(posts: int, rng: random.Random) -> list[int]:
    """Return the words of every post: shuffled quantiles, so that every seed has a long tail."""
    lengths = [round(math.exp(_LENGTH.inv_cdf((i + 0.5) / posts))) for i in range(posts)]
    rng.shuffle(lengths)
    return lengths
