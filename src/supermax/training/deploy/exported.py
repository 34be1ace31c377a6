"""Facts about an exported model, and checks of where predictions can be written.

This module imports no torch, so that mistakes are reported before torch is loaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from supermax.errors import UserError

FORMAT = 1
FACTS = "supermax.json"


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the facts about an exported model without loading it.

    Raises UserError if the folder holds no exported model, or one of a newer format.
    """
    path = folder / FACTS
    if not path.is_file():
        what = "there is no such folder" if not folder.exists() else f"it holds no {FACTS}"
        raise UserError(f"{folder} is not a model that Supermax exported: {what}.")
    try:
        facts = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        facts = None
    version = facts.get("format") if isinstance(facts, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise UserError(
            f"{folder} was exported by a newer Supermax (format {version}; this one reads up to "
            f"{FORMAT}). Update Supermax to load it."
        )
    needed = ("config", "label_names", "threshold", "asks", "files")
    if version != FORMAT or not all(key in facts for key in needed):
        raise UserError(f"{path} is damaged, or not written by Supermax. Export the model again.")
    return {"columns": {}, **facts}


def check_output(out: Path, path: Path) -> None:
    """Raise UserError if predictions for `path` cannot be written to `out`."""
    if out.suffix.lower() not in (".csv", ".jsonl"):
        raise UserError(f"{out} is neither CSV nor JSONL by its name; name it .csv or .jsonl.")
    if not out.absolute().parent.is_dir() or out.is_dir():
        raise UserError(f"{out} cannot be written: its folder is missing, or it is a folder.")
    if out.exists() and path.exists() and out.samefile(path):
        raise UserError(f"The predictions would overwrite {path}; name another file for them.")
