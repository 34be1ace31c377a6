"""Programs of a model card, run as a reader would."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TEXTS = (("text", "question"), ("so tired", "Is it sleep?"))


def run_programs(folder: Path, texts: Sequence[Sequence[str]] = TEXTS) -> list[dict[str, Any]]:
    """Run each program of the card of an exported model; return the names that each defines.

    `texts` is the table that a program predicts, to predictions.csv beside the folder.
    """
    with (folder.parent / "texts.csv").open("w", newline="") as file:
        csv.writer(file).writerows(texts)
    found = []
    for part in (folder / "README.md").read_text().split("```python\n")[1:]:
        program = part.partition("```")[0].replace("path/to/this/folder", str(folder))
        for name in ("texts.csv", "predictions.csv"):
            program = program.replace(f'"{name}"', f'"{folder.parent / name}"')
        names: dict[str, Any] = {}
        exec(program, names)
        found.append(names)
    return found
