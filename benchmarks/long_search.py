"""Search with all four agents on one GPU for an hour, in pieces, and report what became of it.

    python benchmarks/long_search.py run FOLDER --seconds 540    start, or resume, for 540 s
    python benchmarks/long_search.py pack FOLDER FILE            what the next piece needs
    python benchmarks/long_search.py table FOLDER                tables, and dated JSON

`run` calls `supermax tune` with the preset `max`, whose space is searched as it is, for each of
criteria, evidence, share and joint in turn. It pauses each after an equal share of the time, as
Ctrl-C does. The next piece resumes the studies. `--unpack FILE` takes them from the pack of an
earlier piece, `--pack FILE` leaves one behind. A pack has studies, ledgers, logs and measurements
of memory, but no weights and no checkpoints. So on another machine, trials that were running
begin anew; they count as interrupted by the end of a piece, not as failures.

Emulated:

- Data: synthetic posts and questions about them (`supermax.training.data.synthetic`), so scores
  mean nothing. With 400 posts there are 530 pairs. Counted as words and marks, the shortest has
  22 tokens, the median 211, and 17 % have 512 or more, up to 1,152. Encoders read up to
  text.max_length of them, which is searched from 128 to 512; evidence, share and joint read longer
  posts in windows.
- Weights: the seven encoders have their full size, from their configuration, with random weights.
  The vocabulary of the synthetic posts is small, so their tokenizers have few tokens, but the
  embeddings have all rows.
- Memory: `--gpu-memory` limits the budget of the run to 24 GiB on a larger GPU.
- Length: trials have at most two epochs, not 100, so that an hour has many hundreds of trials.
  Longer trials spend a smaller share of their time on their preparation.
- Optimizers whose package is missing, such as bitsandbytes for adamw_8bit, leave the space. The
  output of `supermax tune` in FOLDER names them.

Options of the search are those of the first piece; later pieces have the same.
"""

from __future__ import annotations

import argparse
import sys
from datetime import date
from pathlib import Path

from long_search_pack import pack, unpack
from long_search_run import Options, run
from long_search_table import table

RESULTS = Path(__file__).parent / "results"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    running = parts.add_parser("run", help="start or resume the searches")
    packing = parts.add_parser("pack", help="write what the next piece needs")
    reading = parts.add_parser("table", help="print tables, and write dated JSON")
    for each in (running, packing, reading):
        each.add_argument("folder", type=Path)
    running.add_argument("--seconds", type=float, default=540, help="of the piece, all included")
    running.add_argument("--unpack", type=Path, metavar="FILE", help="pack of an earlier piece")
    running.add_argument("--pack", type=Path, metavar="FILE", help="pack to write at the end")
    running.add_argument("--agents", nargs="+", help="in this piece; default: all four")
    add_options(running)
    packing.add_argument("file", type=Path)
    reading.add_argument("--into", type=Path, help="JSON; default: results/long-search-DATE.json")
    options = parser.parse_args(arguments)
    if options.part == "table":
        return table(options.folder, options.into or _dated())
    if options.part == "pack":
        return pack(options.folder, options.file)
    if options.unpack is not None:
        unpack(options.unpack, options.folder)
    given = {key: getattr(options, key) for key in Options.__dataclass_fields__}
    given = {key: value for key, value in given.items() if value is not None}
    code = run(options.folder, given, options.seconds, options.agents)
    return pack(options.folder, options.pack) or code if options.pack is not None else code


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the search, which the first piece fixes."""
    default = Options()
    of_search = parser.add_argument_group("search, fixed by the first piece")
    of_search.add_argument("--encoders", nargs="+", help="default: the seven, at full size")
    of_search.add_argument("--workers", help=f"default: {default.workers}")
    of_search.add_argument("--mps", action="store_true", default=None, help="share with CUDA MPS")
    of_search.add_argument("--gpu-memory", help=f"default: {default.gpu_memory}")
    of_search.add_argument("--posts", type=int, help=f"default: {default.posts}")
    of_search.add_argument("--epochs", type=int, help=f"default: {default.epochs}")
    of_search.add_argument("--seed", type=int, help=f"default: {default.seed}")


def _dated() -> Path:
    return RESULTS / f"long-search-{date.today().isoformat()}.json"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
