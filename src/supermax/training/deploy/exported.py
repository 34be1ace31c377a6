"""Records about exported models, and checks of where predictions can be written.

This module imports no torch, so that mistakes are reported before torch is loaded.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast

from supermax._util.attributes import TRUST
from supermax._util.text import ended, listed, nearest
from supermax.agents import agent_of
from supermax.errors import EnvironmentFault, UserError

if TYPE_CHECKING:
    from supermax.training.eval.intervals import Estimate

FORMAT = 2
"""Format of exports. Format 1 has no files for transformers but the encoder."""
_READABLE = (1, FORMAT)
FACTS, CARD = "supermax.json", "README.md"
ONNX = "onnx/model.onnx"
"""File in the folder of a model that `supermax export --onnx` writes by default."""


@dataclass(frozen=True)
class Description:
    """Facts about a trained model that its weights do not hold."""

    label_names: Sequence[str]
    threshold: float | None
    """Threshold of the no-answer policy "calibrated"; None with other policies."""
    metrics: Mapping[str, float]
    fingerprint: str
    """Fingerprint of its data."""
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    """Metrics over several seeds."""
    cautions: Sequence[str] = ()
    """Reasons why the metrics are less reliable than they look."""
    epochs: int | None = None
    """Number of trained epochs, if it differs from the configuration."""
    clinical: bool = False
    """True: it was trained to find symptoms, and its card says that it makes no diagnosis."""
    columns: Mapping[str, str | list[str]] = field(default_factory=dict)
    """Columns of the table that it was trained on, by role."""


class Base(TypedDict):
    """Weights that the export of an adapter lacks, and what belongs to them."""

    encoders: list[str]
    """Name or folder of each encoder."""
    digest: str
    """Hash of the weights of all encoders."""
    scaling: list[float] | None
    """Mean and deviation of the numbers; None: the model has no head for numbers."""


class Facts(TypedDict):
    """Content of supermax.json; numbers that are not finite are null there."""

    format: int
    config: dict[str, Any]
    label_names: list[str]
    threshold: float | None
    asks: bool
    """True: it was trained on questions and texts; False: on texts alone."""
    precision: NotRequired[str]
    """Precision in which it was evaluated; earlier versions, which had only fp32, do not store
    it."""
    base: NotRequired[Base]
    """Weights of the encoders, where only an adapter was exported."""
    epochs: int | None
    fingerprint: str
    columns: dict[str, str | list[str]]
    untrained: bool
    """True: an encoder was not pretrained."""
    clinical: bool
    metrics: dict[str, float]
    estimates: dict[str, dict[str, object]]
    versions: dict[str, str]
    encoder_prefix: NotRequired[str | None]
    """Prefix of the encoder's weights in model.safetensors, if they are those of a class of
    transformers; the heads are then also in heads.safetensors. None: all are named as in
    Supermax."""
    files: dict[str, int]
    """Size of every other file in bytes, without that of the card."""


def read_facts(folder: Path) -> Facts:
    """Return the facts about an exported model without loading it.

    Raises UserError if the folder holds no exported model, or one of a newer format.
    """
    path = folder / FACTS
    try:
        facts = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(_no_model(folder)) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}. Make it readable for you, or copy the "
            f"folder of the model to where you may read it."
        ) from None
    except ValueError:
        facts = None
    version = facts.get("format") if isinstance(facts, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise UserError(
            f"{folder} was exported by a newer Supermax (format {version}; this one reads up to "
            f"{FORMAT}). Update Supermax to load it."
        )
    needed = ("config", "label_names", "threshold", "asks", "files")
    if version not in _READABLE or not all(key in facts for key in needed):
        raise UserError(
            f"{path} is damaged, or not written by Supermax. Export the model again with "
            "`supermax refit`."
        )
    return cast(Facts, {"columns": {}, **facts})


def _no_model(folder: Path) -> str:
    """Return the message for a folder without a model, with a similar name of one that has it."""
    what = "there is no such folder" if not folder.exists() else f"it holds no {FACTS}"
    found: list[str] = []
    with contextlib.suppress(OSError):
        found = [str(path.parent) for path in folder.parent.glob(f"*/{FACTS}")]
    what += nearest(str(folder), found)
    return (
        ended(f"{folder} is not a model that Supermax exported: {what}")
        + " Name a folder that `supermax refit` has written."
    )


def names_of_own_code(facts: Facts) -> list[str]:
    """Return the names of encoders with code of their own."""
    parts = (facts["config"].get(key) or {} for key in ("encoder", "evidence_encoder"))
    names = [str(part.get("name")) for part in parts]
    return [name.removeprefix(TRUST) for name in names if name.startswith(TRUST)]


def check_trust(facts: Facts, trust_remote_code: bool) -> None:
    """Raise UserError if an encoder has code of its own, and none may run."""
    names = names_of_own_code(facts)
    if names and not trust_remote_code:
        raise UserError(
            f"The encoder of this model, '{names[0]}', comes with Python code of its own, which "
            f"could do whatever you can do on this machine. If you trust it, run the command "
            f"again with --trust-remote-code (Python: trust_remote_code=True)."
        )


def window_note(facts: Facts) -> str | None:
    """Return the sentence that an ONNX file needs if the model reads several windows of a long
    text; None if it reads one."""
    text = facts["config"].get("text") or {}
    if text.get("long_texts") != "windows" and not agent_of(facts["config"]["agent"]).windows:
        return None
    return (
        f"ONNX Runtime and transformers predict one window of up to {text['max_length']} tokens "
        "at a time; `supermax predict` reads all windows of a longer text."
    )


def read_whole_facts(folder: Path) -> Facts:
    """Return the facts about a model that is exported with all weights.

    Raises UserError also if the folder holds an adapter alone.
    """
    facts = read_facts(folder)
    if "base" in facts:
        raise UserError(
            f"{folder} holds an adapter without the weights of its encoder, which an ONNX file "
            "needs. Export the whole model (`supermax refit` without --adapter), and convert that."
        )
    return facts


def check_files(folder: Path, sizes: Mapping[str, int]) -> None:
    """Raise UserError if a file is missing or has another size."""
    wrong = []
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            wrong.append(f"{name} is missing")
        elif path.stat().st_size != size:
            wrong.append(f"{name} has {path.stat().st_size:,} bytes instead of {size:,}")
    if wrong:
        heading = f"The model in {folder} is incomplete or changed. Copy or export it again:"
        raise UserError(listed(heading, wrong))


def check_free(folder: str | Path) -> None:
    """Raise UserError if the folder exists and is not empty, and EnvironmentFault if it cannot be
    written."""
    folder = Path(folder).expanduser().absolute()
    try:
        taken = folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))
        if not taken:
            existing = next(parent for parent in folder.parents if parent.exists())
            tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise EnvironmentFault(
            f"{folder} cannot be written: {error.strerror}. Name another folder (-o), or make "
            "this one writable for you."
        ) from None
    if taken:
        raise UserError(
            f"{folder} exists and is not empty, and an export overwrites nothing: name another "
            "folder (-o), or remove this one."
        )


def check_output(out: Path, path: Path) -> None:
    """Raise UserError if predictions for `path` cannot be written to `out`."""
    if out.suffix.lower() not in (".csv", ".jsonl"):
        raise UserError(f"{out} is neither CSV nor JSONL by its name; name it .csv or .jsonl.")
    if out.is_dir():
        raise UserError(f"{out} is a folder; name a file in it.")
    if not (parent := out.absolute().parent).is_dir():
        raise UserError(
            f"{out} cannot be written: there is no folder {parent}. Create it, or name a file in "
            "another one."
        )
    if out.exists() and path.exists() and out.samefile(path):
        raise UserError(f"The predictions would overwrite {path}; name another file for them.")
