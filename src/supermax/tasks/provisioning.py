"""Memory planner of an agent's trials, for the engine.

trial ──▶ Config ──▶ Spec ──plan()──▶ Provision
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from supermax._util.text import size_text
from supermax.engine.run.provision import Occupied, Provision, Refusal
from supermax.errors import EnvironmentFault, UserError
from supermax.memory.estimate import CONTEXT, Split
from supermax.memory.facts import Spec
from supermax.memory.measurements import MeasurementLog
from supermax.memory.planner import Failed, NoPlan, Plan, least, plan
from supermax.memory.probes import probes
from supermax.space import Space
from supermax.tasks.fits import combinations, fits
from supermax.tasks.objective import configured
from supermax.tasks.specs import spec_of
from supermax.training.config import Config
from supermax.training.data.examples import Corpus
from supermax.training.data.lengths import Lengths, lengths_of
from supermax.training.models.sources import Source
from supermax.training.models.tokenizers import tokenizer_for
from supermax.training.prepare import encoders_of, examples_for, texts_of
from supermax.training.steps.base import Execution


class Budget(Protocol):
    """Memory budget of a run on one device."""

    @property
    def whole(self) -> int:
        """Bytes that the run may use if nothing else uses the device."""

    def available(self, device: str | None, pids: Any, ours: int) -> int:
        """Return the bytes for this run that other processes leave free.

        `pids` are the processes of the run, and `ours` the bytes that they use.
        """


@dataclass
class MemoryPlanner:
    """Planner that splits each trial into micro-batches so that it fits the memory budget."""

    agent: str
    space: Space
    train: Corpus
    validation: Corpus
    cache: Path
    limits: dict[str, Any]
    execution: Execution
    book: MeasurementLog
    budget: Budget
    _lengths: dict[str, Lengths] = field(default_factory=dict)
    _probed: set[tuple[bool | str, ...]] = field(default_factory=set)
    _free: int | None = None
    """Bytes that this run could use at the last check; None: not checked yet."""

    def provide(self, trial: Any, failed: Sequence[dict[str, Any]]) -> Provision | Refusal:
        """Return memory and execution of a trial, or why it cannot run.

        `failed` are the executions of its attempts that ran out of memory.
        """
        try:
            spec = self.spec(configured(self.agent, self.space.sample(trial), self.limits))
        except EnvironmentFault:
            raise
        except Exception:  # raised again in the trial's process, and reported as the trial's error
            return Provision(0)
        found = self.planned(spec, failed)
        if isinstance(found, NoPlan):
            return Refusal(str(found), found.over)
        where = "host" if spec.device == "cpu" else "device"
        execution = how_of(found) | self._probes(found, failed)
        return Provision(found.need.total, execution, where, found.why)

    def check_anything_fits(self, sources: Mapping[str, Source]) -> None:
        """Raise UserError if no configuration of the space fits the budget."""
        budget = self.budget.whole
        shares = fits(self.space, sources, self.agent, budget, self.execution)
        if any(share.never < share.all for share in shares.values()):
            return
        smallest = min(
            least(replace(spec, length=min(spec.length, self._text_lengths(source).longest)))
            for source in sources.values()
            for spec in combinations(self.space, self.agent, source, self.execution)
        )
        if smallest > budget:
            raise UserError(
                f"Nothing of the space fits into {size_text(budget)}: the smallest configuration "
                f"needs {size_text(smallest)}. Give trials more memory, or add smaller encoders "
                f"to the space."
            )

    def planned(self, spec: Spec, failed: Sequence[dict[str, Any]] = ()) -> Plan | NoPlan:
        """Plan a trial within the memory that other processes leave free.

        If that is too little, plan for the whole budget: the engine waits until it is free.
        """
        known = self.book.known(spec)
        found: Plan | NoPlan | None = None
        for budget in dict.fromkeys((self._free or self.budget.whole, self.budget.whole)):
            found = plan(
                spec,
                budget,
                correction=known.correction,
                measured=known.speeds,
                failed=[split for how in failed if (split := failed_of(how)) is not None],
            )
            if isinstance(found, Plan):
                break
        assert found is not None
        return found

    def _probes(self, found: Plan, failed: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return probes for an encoder that has too few measurements on this device.

        One trial of a run has them, and one more if the effective batch must be split.
        """
        encoders = tuple(encoder.fingerprint for encoder in found.spec.encoders)
        splits = [] if failed else probes(found, self.book.known(found.spec))
        if not splits or (found.whole, *encoders) in self._probed:
            return {}
        self._probed.add((found.whole, *encoders))
        length = found.spec.length
        return {
            "probes": [
                {"micro_batch": s.micro_batch, "checkpointing": s.checkpointing, "length": length}
                for s in splits
            ]
        }

    def room(self, occupied: Occupied) -> int | None:
        """Return the bytes that are free for one more trial."""
        context = CONTEXT["cpu" if self.execution.device == "cpu" else "cuda"]
        ours = occupied.reserved + occupied.idle * context
        self._free = self.budget.available(occupied.device, occupied.pids, ours)
        # An idle cell has its CUDA context already, which the trial's need includes.
        counted_twice = context if occupied.idle and not occupied.fresh else 0
        return self._free - ours + counted_twice

    def spec(self, config: Config) -> Spec:
        """Return the facts about a configuration that decide its memory."""
        sources = encoders_of(config)
        lengths = [self._text_lengths(source) for source in sources]
        return spec_of(
            config,
            sources,
            self.execution,
            classes=len(self.train.label_names) or 2,
            tokens=max(each.longest for each in lengths),
            data=sum(each.total for each in lengths),
        )

    def _text_lengths(self, source: Source) -> Lengths:
        """Return the token lengths of the train and validation texts with this encoder."""
        if source.fingerprint not in self._lengths:
            load = partial(tokenizer_for, source, texts_of(self.train), self.cache)
            corpora = (self.train, self.validation)
            examples = [e for corpus in corpora for e in examples_for(self.agent, corpus)]
            facts = [self.agent, source.fingerprint, *(corpus.fingerprint for corpus in corpora)]
            key = hashlib.sha256(" ".join(facts).encode()).hexdigest()[:24]
            self._lengths[source.fingerprint] = lengths_of(examples, load, self.cache, key)
        return self._lengths[source.fingerprint]


def how_of(found: Plan) -> dict[str, Any]:
    """Return a plan as JSON, for the trial's process and the ledger."""
    return {
        "micro_batch": found.split.micro_batch,
        "checkpoint_activations": found.split.checkpointing,
        "evaluated": found.split.evaluated,
        "best_on_host": found.split.best_on_host,
        "memory": found.need.reserved,
    }


def failed_of(how: dict[str, Any]) -> Failed | None:
    """Read back an execution from the ledger; None if another planner or version wrote it."""
    sizes = [how.get(name) for name in ("micro_batch", "evaluated", "memory")]
    checkpointing, on_host = how.get("checkpoint_activations"), how.get("best_on_host") is True
    match sizes:
        case [int(micro_batch), int(evaluated), int(memory)] if isinstance(checkpointing, bool):
            split = Split(micro_batch, checkpointing, evaluated, best_on_host=on_host)
            return Failed(split, memory)
        case _:
            return None
