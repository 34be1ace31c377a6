"""Entities of texts: their tags, and tables that list them.

guessing ─▶ tables ─▶ rows ─▶ tags ─▶ token_tags, which training takes
"""

from __future__ import annotations

from supermax.training.data.entities.tags import (
    OUTSIDE,
    Entity,
    chunks,
    count_unaligned,
    parsed_class,
    parsed_tag,
    tag_names,
    tags_of,
    words_in,
)

__all__ = [
    "OUTSIDE",
    "Entity",
    "chunks",
    "count_unaligned",
    "parsed_class",
    "parsed_tag",
    "tag_names",
    "tags_of",
    "words_in",
]
