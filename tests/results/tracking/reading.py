"""Readers of what trackers have written: W&B's transaction log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_BLOCK, _HEADER, _FILE_HEADER = 32768, 7, 7


@dataclass
class WandbRun:
    """Content of an offline run."""

    id: str = ""
    group: str = ""
    project: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    exit_code: int | None = None


def read_wandb_run(folder: Path) -> WandbRun:
    """Return the run in an offline folder of W&B."""
    from wandb.proto.wandb_internal_pb2 import Record

    (log,) = folder.glob("run-*.wandb")
    found = WandbRun()
    for data in _log_records(log.read_bytes()):
        record = Record.FromString(data)
        if record.HasField("run"):
            found.id, found.group = record.run.run_id, record.run.run_group
            found.project = record.run.project
            _update(found.config, record.run.config.update)
        elif record.HasField("config"):
            _update(found.config, record.config.update)
        elif record.HasField("summary"):
            _update(found.summary, record.summary.update)
        elif record.HasField("history"):
            row: dict[str, Any] = {}
            _update(row, record.history.item)
            found.rows.append(row)
        elif record.HasField("exit"):
            found.exit_code = record.exit.exit_code
    return found


def _update(target: dict[str, Any], items: Any) -> None:
    for item in items:
        target[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)


def _log_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format: fragments in blocks of 32 KiB."""
    at, whole = _FILE_HEADER, b""
    while at + _HEADER <= len(data):
        if _BLOCK - at % _BLOCK < _HEADER:
            at += _BLOCK - at % _BLOCK
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + _HEADER : at + _HEADER + size]
        at += _HEADER + size
        if kind in (1, 4):  # full, last
            yield whole
            whole = b""
