"""Files of the long search's folder, shared by its parts. Imports neither torch nor the engine.

long-search.json     options of the search
pairs.csv        the data; AGENT.yaml: settings of `supermax tune`; AGENT.db: its study
AGENT.log        its output
pieces.jsonl     a line per piece: machine, GPU, begin and end
turns.jsonl      a line per turn of an agent: begin, request to pause, end, exit code
gpu.csv          samples of the GPU: time, utilisation in percent, bytes in use
home/            measurements of memory, which later pieces use
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AGENTS = ("criteria", "evidence", "share", "joint")
Line = dict[str, Any]


@dataclass(frozen=True)
class LongSearchFolder:
    path: Path

    @property
    def options(self) -> Path:
        return self.path / "long-search.json"

    @property
    def pairs(self) -> Path:
        return self.path / "pairs.csv"

    @property
    def pieces(self) -> Path:
        return self.path / "pieces.jsonl"

    @property
    def turns(self) -> Path:
        return self.path / "turns.jsonl"

    @property
    def gpu(self) -> Path:
        return self.path / "gpu.csv"

    @property
    def home(self) -> Path:
        return self.path / "home"

    def settings(self, agent: str) -> Path:
        return self.path / f"{agent}.yaml"

    def study(self, agent: str) -> Path:
        return self.path / f"{agent}.db"

    def log(self, agent: str) -> Path:
        return self.path / f"{agent}.log"


def append(path: Path, line: Line) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def lines(path: Path) -> list[Line]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
