"""Estimate of the time until a study has its trials, from the work of this run and of others.

Work of this run ───┐
                    ├──remaining_seconds()──▶ seconds, or None while too little is known
Work of other runs ─┘
"""

from __future__ import annotations

from dataclasses import dataclass

PART_KNOWN = 0.25
"""Trials per worker that tell the speed where shares of running trials are known. Whole trials end
at about the same time at first, so each worker must have done one."""
SETTLED = 30.0
"""Seconds after which shares of running trials tell the speed. Before that, the start of a process
and the first steps, which are slower, are a large part of the time."""


@dataclass(frozen=True)
class Work:
    """Trials that some workers have done within a time."""

    done: float
    """Trials, with the shares of running ones as far as these are known."""
    seconds: float
    workers: int | None
    """None: unknown. These are programs other than Supermax."""
    with_shares: bool = False
    """True if shares of running trials are known: some trials note their epochs."""

    @property
    def rate(self) -> float:
        """Trials per second; 0 if there is no time."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def tells_speed(self) -> bool:
        """True if the rate says how fast the workers are: each has done a trial on average, or
        a part of one that is not much of its start."""
        if self.workers is None:
            return self.done > 0
        needed = PART_KNOWN if self.with_shares and self.seconds >= SETTLED else 1.0
        return 0 < max(1, self.workers) * needed <= self.done


def remaining_seconds(left: float, own: Work, others: Work) -> float | None:
    """Return the seconds that `left` trials take; None while neither the speed of this run nor
    that of the others is known. Until it is, workers of the one are taken to be as fast as those
    of the other."""
    known = [work for work in (own, others) if work.workers != 0 and work.tells_speed]
    if own not in known and (others not in known or others.workers is None):
        return None
    rate = sum(work.rate for work in known)
    if len(known) == 1 and known[0].workers:
        unknown = others if known[0] is own else own
        rate *= 1 + (unknown.workers or 0) / known[0].workers
    return max(0.0, left) / rate if rate > 0 else None
