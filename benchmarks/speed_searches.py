"""Run the search of one contender and print its line; started by speed_trials.py."""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import nullcontext
from pathlib import Path

from speed_tasks import TASKS, Line, NotAvailable, Task, cells_of
from speed_trials import BARE, BASELINE, NO_CUDNN

from supermax.training.models.attention import without_cudnn_attention


def _search(contender: str, what: Task, number: int, since: float, folder: Path) -> Line:
    if (cells := cells_of(contender)) is not None:
        from speed_search_ours import our_search

        return our_search(what, cells, number, since, folder)
    from speed_search_others import bare_search, baseline_search, trainer_search

    others = {BARE: bare_search, BASELINE: baseline_search}
    with without_cudnn_attention() if contender == NO_CUDNN else nullcontext():
        search = others.get(contender, trainer_search)
        return search(what, number, since, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the search of one contender.")
    parser.add_argument("contender")
    parser.add_argument("task")
    parser.add_argument("number", type=int)
    parser.add_argument("since", type=float)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        what = TASKS[options.task]
        try:
            line = _search(options.contender, what, options.number, options.since, Path(folder))
        except NotAvailable as error:
            raise SystemExit(str(error)) from None
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
