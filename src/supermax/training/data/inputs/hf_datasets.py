"""Rows of Hugging Face datasets: in memory, saved to disk, and on the Hub."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from supermax._util.attributes import HUB
from supermax._util.text import in_short
from supermax.errors import UserError
from supermax.training.data.bad_rows import BadRows
from supermax.training.data.inputs.arrow import class_names, rows_of_arrow
from supermax.training.data.inputs.optional import optional
from supermax.training.data.inputs.parts import joined_parts
from supermax.training.data.rows import Rows

_FORM = "dataset"
_HUB_NAME = re.compile(r"hub:(?P<name>[^:@\s]+)(?::(?P<config>[^@\s]+))?(?:@(?P<revision>\S+))?")
_READ = ("Value", "ClassLabel", "List", "LargeList", "Sequence")
"""Types of features that are read; others are images, audio and the like."""
_SAVED = ("dataset_dict.json", "dataset_info.json", "state.json")


def is_dataset(source: object) -> bool:
    """Return True for an object of the package datasets."""
    return any(kind.__module__.partition(".")[0] == "datasets" for kind in type(source).__mro__)


def is_hub(source: object) -> bool:
    return isinstance(source, str | Path) and str(source).startswith(HUB)


def hub_hint(name: str) -> str:
    """Return a sentence for a name without a file that may be meant as one of the Hub; or ""."""
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) is None:
        return ""
    return f" If it is a dataset of the Hugging Face Hub, write {HUB}{name}."


def hub_stem(name: str) -> str:
    """Return the name of a dataset of the Hub without its owner and revision."""
    return name.removeprefix(HUB).partition("@")[0].rpartition("/")[2].replace(":", "-")


def is_saved(folder: Path) -> bool:
    """Return True for a folder that `save_to_disk` has written."""
    dictionary, *single = (folder / name for name in _SAVED)
    return dictionary.is_file() or all(path.is_file() for path in single)


def read_saved(folder: Path, bad: BadRows) -> Rows:
    datasets = optional("datasets", str(folder))
    try:
        found = datasets.load_from_disk(str(folder))
    except Exception as error:  # datasets raises errors of many libraries
        raise UserError(f"{folder} cannot be read as a dataset: {in_short(error)}.") from None
    return read_dataset(found, bad, folder.resolve().name)


def read_hub(name: str, bad: BadRows) -> Rows:
    """Read a dataset of the Hub, `hub:OWNER/NAME:CONFIGURATION@REVISION`; the package datasets
    downloads it into its cache. Raises UserError if it cannot be loaded."""
    parsed = _HUB_NAME.fullmatch(name)
    if parsed is None:
        raise UserError(
            f"{name!r:.80} is no dataset of the Hub: write hub:OWNER/NAME, and "
            f"hub:OWNER/NAME:CONFIGURATION@REVISION for one configuration or revision of it."
        )
    datasets = optional("datasets", name)
    repo, config, revision = parsed.group("name", "config", "revision")
    log = logging.getLogger("huggingface_hub")  # it warns of every retry
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        found = datasets.load_dataset(repo, config, revision=revision)
    except Exception as error:  # of the network, the Hub, the format of its files
        raise UserError(
            f"{name} cannot be loaded from the Hugging Face Hub: {in_short(error)}. Without a "
            f"network, save the dataset elsewhere with save_to_disk and name its folder."
        ) from None
    finally:
        log.setLevel(level)
    return read_dataset(found, bad, hub_stem(name))


def read_dataset(data: Any, bad: BadRows, name: str | None = None) -> Rows:
    """Return the rows of a Dataset or a DatasetDict. Its splits become a column."""
    kind = type(data).__name__
    if kind.startswith("Iterable"):
        raise UserError("The dataset is streamed: load it without streaming=True.")
    if kind == "Dataset":
        return _rows(data, name or _name_of(data), bad)
    if not isinstance(data, dict) or not data:
        raise UserError(f"This is a {kind}: give a Dataset, or a DatasetDict that is not empty.")
    file = name or _name_of(next(iter(data.values())))
    return joined_parts(file, {k: _rows(each, f"{file} ({k})", bad) for k, each in data.items()})


def _name_of(data: Any) -> str:
    named = getattr(data.info, "dataset_name", None)
    return named if isinstance(named, str) and named.isprintable() and named else _FORM


def _rows(data: Any, source: str, bad: BadRows) -> Rows:
    if data.format["type"] == "custom":
        raise UserError(
            f"{source} has a transform (set_transform, with_transform), which is not applied. "
            f"Apply it once: dataset.reset_format(), then dataset.map(FUNCTION, batched=True)."
        )
    features = data.features.to_dict()
    left = [column for column, feature in features.items() if not _is_read(feature)]
    table = data.remove_columns(left).with_format("arrow")[:]  # without decoding images
    found = rows_of_arrow(table, source, _FORM, class_names(features), bad)
    if not left:
        return found
    are = "s" if len(left) > 1 else ""
    remark = (
        f"The column{are} {', '.join(left)} of {source} {'are' if are else 'is'} not read: "
        f"neither text, numbers nor lists of these."
    )
    return replace(found, remarks=(remark,))


def _is_read(feature: Any) -> bool:
    if isinstance(feature, dict) and feature.get("_type") == "Value":
        return feature.get("dtype") not in ("binary", "large_binary")
    if isinstance(feature, dict) and isinstance(feature.get("_type"), str):
        return feature["_type"] in _READ and _is_read(feature.get("feature", _ANY))
    inner = feature.values() if isinstance(feature, dict) else feature
    return isinstance(feature, dict | list) and all(map(_is_read, inner))


_ANY = {"_type": "Value"}
