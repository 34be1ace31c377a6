"""The same rows in each format, for tests of all of them."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SECRET = "zanzibarquux"  # stands in every text, and in no message
Record = dict[str, Any]
NAMES = ("neg", "pos")
GOOD: list[Record] = [
    {"id": f"r{i}", "text": f"{SECRET} went out on day {i}", "label": NAMES[i % 2]}
    for i in range(12)
]


def write_csv(folder: Path, rows: Sequence[Record], separator: str = ",") -> Path:
    path = folder / "data.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=separator)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_gzip(folder: Path, rows: Sequence[Record]) -> Path:
    path = folder / "data.csv.gz"
    path.write_bytes(gzip.compress(write_csv(folder, rows).read_bytes()))
    return path


def write_jsonl(folder: Path, rows: Sequence[Record]) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def columns_of(rows: Sequence[Record]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def write_parquet(folder: Path, rows: Sequence[Record]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns_of(rows)), folder / "data.parquet")
    return folder / "data.parquet"


def pandas_frame(folder: Path, rows: Sequence[Record]) -> Any:
    return pytest.importorskip("pandas").DataFrame(columns_of(rows))


def polars_frame(folder: Path, rows: Sequence[Record]) -> Any:
    return pytest.importorskip("polars").DataFrame(columns_of(rows))


def dataset(folder: Path, rows: Sequence[Record]) -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict(columns_of(rows))


def saved_dataset(folder: Path, rows: Sequence[Record]) -> Path:
    dataset(folder, rows).save_to_disk(str(folder / "data"))
    return folder / "data"


@dataclass(frozen=True)
class Format:
    name: str
    make: Callable[[Path, Sequence[Record]], Any]
    place: Callable[[int], str]
    """Place of a row in messages, by its position."""
    whole: str
    """Place of a missing column."""


def _line(file: str, first: int) -> Callable[[int], str]:
    return lambda position: f"{file}, line {position + first}"


def _index(source: str) -> Callable[[int], str]:
    return lambda position: f"{source}, row index {position}"


FORMATS = [
    Format("csv", write_csv, _line("data.csv", 2), "data.csv, line 1"),
    Format("gzip", write_gzip, _line("data.csv.gz", 2), "data.csv.gz, line 1"),
    Format("jsonl", write_jsonl, _line("data.jsonl", 1), "data.jsonl, line 1"),
    Format("parquet", write_parquet, _index("data.parquet"), "data.parquet"),
    Format("pandas", pandas_frame, _index("frame"), "frame"),
    Format("polars", polars_frame, _index("frame"), "frame"),
    Format("dataset", dataset, _index("dataset"), "dataset"),
    Format("saved", saved_dataset, _index("data"), "data"),
]
