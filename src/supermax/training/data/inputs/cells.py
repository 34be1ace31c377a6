"""Conversion of typed values, such as those of pandas, numpy and Arrow, to values of rows."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

_MISSING = ("NAType", "NaTType")  # types of pandas, which need not be imported for them
_AS_TEXT = (decimal.Decimal, uuid.UUID)


def cell_of(value: Any) -> Any:
    """Return a value as text, a number, a boolean, None, or a list or mapping of these. A value
    of another type is returned as it is, and is a mistake in its row."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)
    if type(value).__name__ in _MISSING or (isinstance(value, decimal.Decimal) and value.is_nan()):
        return None
    if isinstance(value, Mapping):
        return {str(key): cell_of(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [cell_of(each) for each in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, _AS_TEXT):
        return str(value)
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return cell_of(value.tolist()) if type(value.tolist()) is not type(value) else value
    return value


def with_names(value: Any, names: Sequence[str]) -> Any:
    """Return the name of a class that is stored as its number; a list of them with their names.

    -1 is a missing label, as in the hidden test splits of the Hugging Face Hub.
    """
    if isinstance(value, list):
        return [with_names(each, names) for each in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return names[value] if 0 <= value < len(names) else (None if value == -1 else value)
    return value
