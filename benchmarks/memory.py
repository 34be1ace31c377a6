"""Measure the accuracy of memory estimates on this GPU, and whether plans fit.

    python benchmarks/memory.py estimates        at least 60 configurations of all families
    python benchmarks/memory.py estimates --groups LoRA,EuroBERT     those of some groups
    python benchmarks/memory.py sweep            220 configurations of the classic space in 24 GiB
    python benchmarks/memory.py concurrency      24 short trials, one to eight at a time
    python benchmarks/memory.py table            summary of the results so far

A part stops after --seconds; the same command continues it. Every measurement is a line in
--results (default: benchmarks/results/memory-DATE.jsonl). `table` prints a summary and writes it
as dated JSON beside them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import torch
from common import machine
from rich.console import Console
from rich.table import Table

from supermax._util.attributes import UNTRAINED
from supermax.memory.estimate import Split, need
from supermax.memory.measurements import Measured, MeasurementLog
from supermax.memory.planner import Failed, Plan, plan
from supermax.space import load
from supermax.tasks.fits import combinations
from supermax.tasks.specs import spec_of
from supermax.training.config import Config, read_config
from supermax.training.memory_probe import Peak, probe_memory
from supermax.training.models.architectures import FULL
from supermax.training.models.sources import find
from supermax.training.steps.execution import Execution
from supermax.training.steps.memory_limits import limit_memory

BUDGET = 24 << 30
BF16 = Execution(device="cuda", precision="bf16")
FAMILIES = list(FULL)
ADAPTED = [
    "bert-base-uncased",
    "bert-large-uncased",
    "roberta-base",
    "xlm-roberta-base",
    "microsoft/deberta-v3-base",
    "sentence-transformers/all-MiniLM-L6-v2",
    "answerdotai/ModernBERT-base",
    "EuroBERT/EuroBERT-210m",
    "EuroBERT/EuroBERT-610m",
]
"""Encoders that are measured with LoRA."""
HEADS = ["token-classification", "multilabel", "regression"]
"""Agents that are measured with encoders of four families."""
WITH_HEADS = ["bert-base-uncased", "roberta-large", "answerdotai/ModernBERT-base", ADAPTED[-2]]
LORA, EURO_BERT, OTHERS = "LoRA", "EuroBERT", "other"
GROUPS = [LORA, EURO_BERT, *HEADS, OTHERS]
LORA_ERROR = 10
"""Largest error of an estimate with LoRA, in percent."""
Line = dict[str, Any]
Keep = Callable[[Line], None]
Todo = Callable[[str], bool]
"""Predicate by key: True if a configuration is still to be measured."""
# Fixed rules that the planner replaced: for large encoders a batch of at most 16 and at most 288
# tokens, which are 108 of the 546 combinations.
LARGE = ("bert-large-uncased", "roberta-large", "microsoft/deberta-v3-large")


def wanted(encoder: str, batch: int, length: int, details: Line, **more: object) -> Config:
    return read_config(
        {
            "encoder": {"name": f"{UNTRAINED}{encoder}", **details},
            "text": {"max_length": length},
            "train": {"effective_batch": batch},
            **more,
        }
    )


# Estimates.


Estimated = tuple[str, Config, int, bool, int]
"""Encoder, configuration, micro-batch, checkpointing, micro-batches per update."""


def configurations() -> Iterator[Estimated]:
    yield from _all_encoders()
    yield from _adapters()
    yield from _heads()


def group_of(encoder: str, agent: str, adapter: str) -> str:
    """Return the group of a configuration in the table."""
    if adapter != "none":
        return LORA
    if agent in HEADS:
        return agent
    return EURO_BERT if EURO_BERT in encoder else OTHERS


def _adapters() -> Iterator[Estimated]:
    shapes = [(16, 128, False), (32, 384, False), (16, 512, True)]
    agents = ["criteria", *HEADS]
    for i, encoder in enumerate(ADAPTED):
        for j, (batch, length, checkpointing) in enumerate(shapes):
            times = 1 + (i + j) % 2
            adapter = {
                "name": "lora",
                "rank": (4, 16, 64)[(i + j) % 3],
                "dropout": (0.0, 0.05)[i % 2],
                "target_modules": ("all-linear", "attention")[(i + j) % 2],
            }
            more = {"agent": agents[(i + j) % 4], "adapter": adapter}
            config = wanted(encoder, batch * times, length, details={}, **more)
            yield encoder, config, batch, checkpointing, times


def _heads() -> Iterator[Estimated]:
    for i, encoder in enumerate(WITH_HEADS):
        for j, agent in enumerate(HEADS):
            for batch, length, times in ((16, 128, 1), (32, 384, 1 + (i + j) % 2)):
                config = wanted(encoder, batch * times, length, details={}, agent=agent)
                yield encoder, config, batch, False, times


def _all_encoders() -> Iterator[Estimated]:
    for i, encoder in enumerate(FAMILIES):
        large = "large" in encoder
        shapes = [
            (8, 128, False),
            (16, 256, False),
            (24 if large else 48, 384, False),
            (16, 512, True),
            (48, 256, True),
        ]
        for j, (batch, length, checkpointing) in enumerate(shapes):
            times = 1 + (i + j) % 3
            optimizer = ("adamw", "lion", "adafactor")[(i + j) % 3] if j == 0 else "adamw"
            frozen = 4 if j == 1 and i % 2 else 0
            drop = 0.0 if j == 2 and i % 2 else 0.1
            more = {"dropout": drop, "attention_dropout": drop, "frozen_layers": frozen}
            agent = (
                ("criteria", "evidence", "share", "joint")[(i + j) % 4] if not large else "share"
            )
            config = wanted(
                encoder,
                batch * times,
                length,
                details=more,
                agent=agent,
                optim={"name": optimizer},
            )
            yield encoder, config, batch, checkpointing, times


def estimates(todo: Todo, keep: Keep, groups: Sequence[str] = GROUPS) -> None:
    for encoder, config, batch, checkpointing, times in configurations():
        key = f"estimate {config.model_dump_json()} {batch} {checkpointing} {times}"
        group = group_of(encoder, config.agent, config.adapter.name)
        if group not in groups or not todo(key):
            continue
        execution = replace(BF16, micro_batch=batch, checkpoint_activations=checkpointing)
        sources = [find(config.encoder.name)] * (2 if config.agent == "joint" else 1)
        spec = spec_of(config, sources, execution)
        found = need(spec, Split(batch, checkpointing, evaluated=0))
        whole = need(spec, Split(batch, checkpointing, evaluated=spec.length))
        reserve = whole.reserved - whole.saved  # the probe keeps no copy of the best weights
        peak = _probed(config, replace(execution, memory=reserve), spec.length, times)
        exceeded = peak is None
        peak = peak or probe_memory(config, execution, spec.length, micros=times, updates=3)
        keep(
            {
                "key": key, "part": "estimates", "encoder": encoder, "agent": config.agent,
                "group": group, "adapter": config.adapter.model_dump(),
                "micro_batch": batch, "length": spec.length, "checkpointing": checkpointing,
                "micro_batches": times, "optimizer": spec.optimizer, "frozen": spec.frozen,
                "predicted": found.allocated - found.saved, "reserve": reserve,
                "exceeded": exceeded,
                "allocated": peak.allocated, "reserved": peak.reserved,
                "seconds": peak.seconds,
            }
        )  # fmt: skip


def _probed(config: Config, execution: Execution, length: int, micros: int) -> Peak | None:
    """Return the peak within the limit `execution.memory`; None: it does not fit."""
    limit_memory(execution)
    try:
        return probe_memory(config, execution, length, micros=micros, updates=3)
    except torch.OutOfMemoryError:
        gc.collect()
        torch.cuda.empty_cache()
        return None
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


# The sweep.


def drawn(count: int) -> list[tuple[str, Config, int, int]]:
    """Return encoder, configuration, batch and accumulation, drawn from the classic space."""
    rng = random.Random(0)
    space = load("classic/criteria")
    lengths = range(128, 513, 32)
    encoders = [str(c) for c in space.parameters["encoder.name"].branches[0].choices]  # type: ignore[union-attr]
    found = []
    for _ in range(count):
        encoder = rng.choice(encoders)
        batch, times = rng.choice([8, 12, 16, 24, 32, 48, 64]), rng.choice([1, 2, 3, 4, 6, 8])
        more = {
            "dropout": rng.uniform(0, 0.3),
            "attention_dropout": rng.uniform(0, 0.3),
            "frozen_layers": rng.randint(0, 6),
        }
        config = wanted(
            encoder,
            batch * times,
            rng.choice(lengths),
            details=more,
            optim={"name": rng.choice(["adamw", "adafactor", "lion"])},
            head={"pooling": rng.choice(["cls", "mean", "max", "attention"])},
        )
        found.append((encoder, config, batch, times))
    return found


def sweep(todo: Todo, keep: Keep) -> None:
    log = MeasurementLog(Path(tempfile.mkdtemp()), "sweep", "now")
    for i, (encoder, config, batch, times) in enumerate(drawn(220)):
        key = f"sweep {i}"
        if not todo(key):
            continue
        keep(
            {
                "key": key,
                "part": "sweep",
                "encoder": encoder,
                "batch": batch,
                "times": times,
                "length": config.text.max_length,
                **_swept(config, log, batch),
            }
        )


def _swept(config: Config, log: MeasurementLog, batch: int) -> Line:
    spec = spec_of(config, [find(config.encoder.name)], BF16)
    failed: list[Failed] = []
    while True:
        known = log.known(spec)
        found = plan(
            spec, BUDGET, correction=known.correction, measured=known.speeds, failed=failed
        )
        facts = {"replans": len(failed), "as_asked": need(spec, Split(batch)).total}
        if not isinstance(found, Plan):
            return facts | {"lost": True}
        execution = replace(
            BF16,
            micro_batch=found.split.micro_batch,
            checkpoint_activations=found.split.checkpointing,
            memory=found.need.reserved,
        )
        limit_memory(execution)
        try:
            peak = probe_memory(
                config, execution, spec.length, micros=min(2, found.micro_batches), updates=2
            )
        except torch.OutOfMemoryError:
            gc.collect()
            torch.cuda.empty_cache()
            failed.append(Failed(found.split, found.need.reserved))
            continue
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        micro = found.split.micro_batch
        log.note(
            spec,
            Measured(
                micro,
                found.split.checkpointing,
                spec.length,
                spec.effective_batch,
                peak.allocated,
                peak.reserved,
                peak.seconds,
                micro * spec.length,
                probe=True,
            ),
        )
        return facts | {
            "lost": False,
            "micro_batch": micro,
            "checkpointing": found.split.checkpointing,
            "reserve": found.need.reserved,
            "reserved": peak.reserved,
            "allocated": peak.allocated,
            "predicted": found.need.allocated - found.need.saved,
        }


# Concurrent trials.


def concurrency(_: Todo, keep: Keep) -> None:
    from memory_concurrency import measured  # its own module: cells import what they run

    for workers in (4, 1, 8, 2):
        key = f"concurrency {workers} {time.time()}"
        keep({"key": key, "part": "concurrency", "workers": workers, **measured(workers)})


# Summary.


def plannable() -> dict[str, dict[str, int]]:
    """Count, for each encoder of the classic space, what becomes of its 546 combinations of batch,
    accumulation and length: plannable, allowed by the fixed rules, and errors of these rules."""
    space = load("classic/criteria")
    found = {}
    for encoder in [str(c) for c in space.parameters["encoder.name"].branches[0].choices]:  # type: ignore[union-attr]
        base = combinations(space, "criteria", find(f"{UNTRAINED}{encoder}"), BF16)[0]
        tally = {
            "combinations": 0,
            "plannable": 0,
            "rules_allow": 0,
            "rules_forbid_feasible": 0,
            "rules_allow_too_large": 0,
        }
        for batch in (8, 12, 16, 24, 32, 48, 64):
            for times in (1, 2, 3, 4, 6, 8):
                for length in range(128, 513, 32):
                    spec = replace(base, effective_batch=batch * times, length=length)
                    allowed = encoder not in LARGE or (batch <= 16 and length <= 288)
                    # As with the fixed rules: eager steps, the best weights in a file.
                    eager = replace(spec, captured=False), Split(batch, best_on_host=True)
                    fits = need(*eager).total <= BUDGET
                    planned = isinstance(plan(spec, BUDGET), Plan)
                    tally["combinations"] += 1
                    tally["plannable"] += planned
                    tally["rules_allow"] += allowed
                    tally["rules_forbid_feasible"] += planned and not allowed
                    tally["rules_allow_too_large"] += allowed and not fits
        found[encoder] = tally
    return found


def by_group(lines: list[Line]) -> list[tuple[str, str, str, bool]]:
    """Return a row of the summary for each group of configurations."""
    rows = []
    for group in GROUPS:
        # Lines of earlier versions have no group, and none of them has an adapter.
        some = [
            x for x in lines if x.get("group", group_of(x["encoder"], x["agent"], "none")) == group
        ]
        if not some:
            continue
        errors = [abs(x["predicted"] / x["allocated"] - 1) * 100 for x in some]
        found = f"{statistics.median(errors):.2f} %, at most {max(errors):.2f} %"
        limit = f"at most {LORA_ERROR} %" if group == LORA else ""
        name = f"error, {group}: {len(some)} configurations"
        rows.append((name, found, limit, group != LORA or max(errors) <= LORA_ERROR))
    return rows


def limits(lines: list[Line]) -> list[tuple[str, str, str, bool]]:
    """Return the row of the configurations that ran with a limit; earlier lines have none."""
    exceeded = [line["exceeded"] for line in lines if "exceeded" in line]
    if not exceeded:
        return []
    found = f"{sum(exceeded)} of {len(exceeded)}"
    return [("did not fit within their reservation", found, "0", not any(exceeded))]


def table(lines: list[Line], path: Path) -> int:
    rows: list[tuple[str, str, str, bool]] = []
    some = [line for line in lines if line["part"] == "estimates"]
    if some:
        errors = sorted(abs(r["predicted"] / r["allocated"] - 1) * 100 for r in some)
        middle, high = statistics.median(errors), errors[int(0.95 * len(errors))]
        rows += [
            ("configurations measured", str(len(some)), ">= 60", len(some) >= 60),
            ("median error of the estimate", f"{middle:.2f} %", "<= 5 %", middle <= 5),
            ("95th percentile", f"{high:.2f} %", "<= 12 %", high <= 12),
        ]
        rows += limits(some)
        rows += by_group(some)
    swept = [line for line in lines if line["part"] == "sweep"]
    if swept:
        lost = sum(r["lost"] for r in swept)
        share = sum(r["replans"] > 0 for r in swept) / len(swept)
        whole = sum(r["as_asked"] <= BUDGET for r in swept)
        rows += [
            ("configurations swept in 24 GiB", str(len(swept)), ">= 200", len(swept) >= 200),
            ("of them fit whole", str(whole), "", True),
            ("lost to memory", str(lost), "0", lost == 0),
            ("needed a second plan", f"{share:.1%}", "<= 2 %", share <= 0.02),
        ]
    for line in (line for line in lines if line["part"] == "concurrency"):
        found = f"{line['per_hour']:.0f} an hour, {line['highest'] / 2**30:.1f} GiB"
        rows.append((f"24 trials, {line['workers']} at a time", found, "", True))
    rules = plannable()
    planned = all(t["plannable"] == t["combinations"] for t in rules.values())
    name = "of 546 combinations plannable, each encoder"
    rows.append((name, "all" if planned else "not all", "all", planned))
    shown = Table("what", "measured", "threshold", "")
    for name, measured, threshold, met in rows:
        shown.add_row(name, measured, threshold, "met" if met else "MISSED")
    Console(width=120).print(shown)
    kept = {
        "machine": machine(("optuna", "torch", "transformers")),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "rows": rows,
        "older_rules": rules,
    }
    path.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n")
    return 0 if all(met for *_, met in rows) else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["estimates", "sweep", "concurrency", "table"])
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument(
        "--groups",
        type=lambda names: names.split(","),
        default=GROUPS,
        help=f"estimates: some of {', '.join(GROUPS)}",
    )
    name = f"memory-{date.today().isoformat()}.jsonl"
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / name)
    options = parser.parse_args()
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(
            f"there is no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}"
        )
    path, until = options.results, time.monotonic() + options.seconds
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    done = {line["key"] for line in lines}

    class TimeIsUp(Exception):
        pass

    def keep(line: Line) -> None:
        lines.append(line)
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        if time.monotonic() > until:
            raise TimeIsUp

    if options.part != "table":
        try:
            if options.part == "estimates":
                estimates(lambda key: key not in done, keep, options.groups)
            else:
                part = {"sweep": sweep, "concurrency": concurrency}[options.part]
                part(lambda key: key not in done, keep)
        except TimeIsUp:
            print("Time is up; the same command continues.", file=sys.stderr)
    return table(lines, path)


if __name__ == "__main__":
    raise SystemExit(main())
