"""Entities from the logits of tokens: each word has the class of its first token.

logits of windows ──found_entities()──▶ entities of each example, with their scores
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from supermax.training.data.entities import Entity, chunks, parsed_class
from supermax.training.data.entities.token_tags import first_tokens, words_of
from supermax.training.data.tokenized_split import TokenizedSplit


@dataclass(frozen=True)
class ScoredEntity:
    """Predicted entity."""

    entity: Entity
    score: float
    """Mean probability of the predicted classes of its words."""


def found_entities(
    logits: Sequence[NDArray[np.float32]], data: TokenizedSplit
) -> dict[str, list[ScoredEntity]]:
    """Return the entities of each example, by its id.

    Words of which the tokenizer leaves no token are skipped.
    """
    view = data.views[-1]
    classes: list[dict[int, tuple[int, float]]] = [{} for _ in data.examples]
    for i, row in enumerate(logits):
        words = view.word[view.begin[i] : view.begin[i + 1]]
        places = np.flatnonzero(first_tokens(words))
        likely = torch.from_numpy(row[places]).softmax(-1).max(-1)
        found = zip(likely.indices.tolist(), likely.values.tolist(), strict=True)
        classes[int(view.example[i])].update(zip(words[places].tolist(), found, strict=True))
    result = {}
    for example, of_words in zip(data.examples, classes, strict=True):
        order, spans = sorted(of_words), words_of(example)
        tags = [parsed_class(of_words[word][0]) for word in order]
        result[example.id] = [
            ScoredEntity(
                Entity(spans[order[first]][0], spans[order[end - 1]][1], kind),
                float(np.mean([of_words[word][1] for word in order[first:end]])),
            )
            for first, end, kind in chunks(tags)
        ]
    return result
