"""Files of ReDSM5 with the content of a corpus."""

from __future__ import annotations

import csv
from pathlib import Path

from supermax.training.data.examples import Corpus
from supermax.training.data.redsm5 import ANNOTATION_COLUMNS, ANNOTATIONS, POST_COLUMNS, POSTS


def write_redsm5(folder: Path, corpus: Corpus) -> Path:
    folder.mkdir(parents=True)
    with (folder / POSTS).open("w", encoding="utf-8", newline="") as file:
        posts = {e.group: e.text for e in corpus.spans}
        csv.writer(file).writerows([POST_COLUMNS, *posts.items()])
    with (folder / ANNOTATIONS).open("w", encoding="utf-8", newline="") as file:
        names = [e.id.split("/") for e in corpus.classes]
        rows = [
            (post, sentence, e.text, symptom, e.label, "an explanation")
            for (post, sentence, symptom), e in zip(names, corpus.classes, strict=True)
        ]
        csv.writer(file).writerows([(*ANNOTATION_COLUMNS, "explanation"), *rows])
    return folder
