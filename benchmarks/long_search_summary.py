"""Figures of a long search: ends of trials, shortages of memory, GPU use, trials an hour."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import mean

from long_search_files import AGENTS, Line, LongSearchFolder, lines
from long_search_record import Trial, first_steps, trials_of

BASELINE: Line = {
    "source": "field reports: 85-90 % of trials succeed, 3 workers; throughput of their way to "
    "train, measured on one H200 with 3 processes: fp32, padded to 384, blocking launches, "
    "bert-base, batch 16",
    "success": (0.85, 0.9),
    "workers": 3,
    "samples_per_second": 148,
}
LARGE = 24 * 1024**2 / (12 * 768**2)
"""Parameters in the layers of a large encoder, relative to a base one."""
Window = tuple[float, float]
Samples = Sequence[tuple[float, float]]
"""Unix time and utilisation from 0 to 1."""


def wilson(count: int, number: int) -> tuple[float, float]:
    """Return the 95 % interval of a proportion (Wilson 1927)."""
    if not number:
        return 0.0, 1.0
    z, share = 1.959964, count / number
    centre = share + z * z / (2 * number)
    half = z * math.sqrt(share * (1 - share) / number + z * z / (4 * number * number))
    scale = 1 + z * z / number
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def endings(trials: Sequence[Trial], keys: Callable[[Trial], Sequence[str]]) -> list[Line]:
    """Count by key: finished trials, those that ended by themselves, those that pieces have
    interrupted so far, and shortages. A joint trial counts for each of its encoders."""
    found = []
    for name in sorted({key for trial in trials for key in keys(trial)}):
        own = [trial for trial in trials if name in keys(trial)]
        finished = sum(trial.finished for trial in own)
        alone, short = sum(trial.by_itself for trial in own), shortages(own)
        found.append(
            {
                "name": name,
                "finished": finished,
                "by_themselves": alone,
                "share": alone / finished if finished else None,
                "interval": wilson(alone, finished),
                "interrupted": len(own) - finished,
                "short": short["short"],
                "attempts": short["attempts"],
            }
        )
    return found


def shortages(trials: Sequence[Trial]) -> Line:
    """Count attempts that ended otherwise than with a piece, and those that ran out of memory."""
    attempts = [a for trial in trials for a in trial.attempts if not a.interrupted]
    interrupted = sum(a.interrupted for trial in trials for a in trial.attempts)
    found = [
        {"agent": trial.agent, **a.shortage}
        for trial in trials
        for a in trial.attempts
        if a.shortage is not None
    ]
    again = sum("again" in short["decision"] or "retry" in short["decision"] for short in found)
    return {
        "attempts": len(attempts),
        "interrupted": interrupted,
        "short": len(found),
        "attempted_again": again,
        "share": len(found) / len(attempts) if attempts else None,
        "interval": wilson(len(found), len(attempts)),
        "each": found,
    }


def samples_of(files: LongSearchFolder) -> list[tuple[float, float]]:
    if not files.gpu.exists():
        return []
    cells = [line.split(",") for line in files.gpu.read_text(encoding="utf-8").splitlines()]
    return [(float(at), float(busy) / 100) for at, busy, _ in cells]


def busy_share(samples: Samples, windows: Sequence[Window]) -> float | None:
    """Return the mean utilisation within the windows; None: nothing was sampled there."""
    found = [busy for at, busy in samples if any(a <= at < b for a, b in windows)]
    return mean(found) if found else None


def gpu_use(files: LongSearchFolder, trials: list[Trial]) -> Line:
    """Return the GPU's utilisation in whole pieces, from the first training step of each piece on,
    and from that of each turn on."""
    samples, pieces = samples_of(files), lines(files.pieces)
    steps = first_steps(files, trials)
    turns = [(turn, first) for turn, first in steps if first is not None]
    first_of: dict[int, float] = {}
    for turn, first in turns:
        first_of[turn["piece"]] = min(first, first_of.get(turn["piece"], first))
    in_turns = [(first, turn["ended"]) for turn, first in turns]
    in_pieces = [(first_of[p["piece"]], p["ended"]) for p in pieces if p["piece"] in first_of]
    asked = [(first, turn["asked"] if "asked" in turn else turn["ended"]) for turn, first in turns]
    return {
        "samples": len(samples),
        "pieces": busy_share(samples, [(p["started"], p["ended"]) for p in pieces]),
        "from_first_step_of_piece": busy_share(samples, in_pieces),
        "from_first_step_of_turn": busy_share(samples, in_turns),
        "until_pause_requested": busy_share(samples, asked),
        "start_up_seconds": [round(first - turn["started"], 1) for turn, first in turns],
    }


def rates(files: LongSearchFolder, trials: list[Trial]) -> Line:
    """Return trials an hour: of each agent in its turns, of all in whole pieces, and without the
    start-up of turns; and the bounds of the baseline."""
    alone = [trial for trial in trials if trial.by_itself]
    turns = first_steps(files, trials)
    by_agent = {}
    for agent in AGENTS:
        hours = sum(t["ended"] - t["started"] for t, _ in turns if t["agent"] == agent) / 3600
        count = sum(trial.agent == agent for trial in alone)
        if hours:
            own = [trial for trial in trials if trial.agent == agent]
            by_agent[agent] = {
                "trials": count,
                "per_hour": count / hours,
                "at_once": most_at_once(own),
            }
    seconds = sum(p["ended"] - p["started"] for p in lines(files.pieces))
    started_up = sum(t["ended"] - first for t, first in turns if first is not None)
    return {
        "trials": len(alone),
        "seconds": seconds,
        "per_hour": 3600 * len(alone) / seconds if seconds else None,
        "per_hour_without_start_up": 3600 * len(alone) / started_up if started_up else None,
        "by_agent": by_agent,
        "samples_per_trial": mean(trial.samples for trial in alone) if alone else None,
        "baseline_at_most": baseline_rate(alone, scaled=False),
        "baseline_extrapolated": baseline_rate(alone, scaled=True),
    }


def baseline_rate(trials: Sequence[Trial], *, scaled: bool) -> tuple[float, float] | None:
    """Return the range of trials an hour that the baseline would finish of these; None: unknown.

    Without `scaled` it is an upper bound: every encoder counts as bert-base. With it, the work of
    an encoder grows with the parameters in its layers. Neither counts preparation, evaluation,
    more than one window of a text, or DeBERTa's attention.
    """
    work = sum(t.samples * (sum(map(_cost, t.encoders)) if scaled else 1) for t in trials)
    if not work:
        return None
    rate = 3600 * len(trials) * BASELINE["samples_per_second"] / work
    low, high = BASELINE["success"]
    return low * rate, high * rate


def _cost(encoder: str) -> float:
    return LARGE if "-large" in encoder else 1.0


def most_at_once(trials: Sequence[Trial]) -> int:
    """Return the largest number of attempts that ran at the same time."""
    attempts = [a for trial in trials for a in trial.attempts if a.ended is not None]
    changes = sorted([(a.started, 1) for a in attempts] + [(a.ended or 0.0, -1) for a in attempts])
    return max(accumulate(change for _, change in changes), default=0)


def summary(files: LongSearchFolder) -> Line:
    trials, pieces = trials_of(files), lines(files.pieces)
    reasons = Counter((trial.state, trial.reason) for trial in trials)
    codes = Counter(str(turn["code"]) for turn in lines(files.turns))
    return {
        "machine": pieces[-1]["machine"] if pieces else None,
        "device": pieces[-1]["gpu"] if pieces else None,
        "options": json.loads(files.options.read_text(encoding="utf-8")),
        "pieces": len(pieces),
        "exit_codes_of_turns": dict(codes),
        "by_encoder": endings(trials, lambda trial: trial.encoders),
        "by_agent": endings(trials, lambda trial: [trial.agent]),
        "all": endings(trials, lambda _: ["all"]),
        "by_reason": [
            {"state": state, "reason": reason, "trials": count}
            for (state, reason), count in sorted(reasons.items())
        ],
        "shortages": shortages(trials),
        "gpu": gpu_use(files, trials),
        "rates": rates(files, trials),
        "baseline": BASELINE,
    }
