"""The engine's planner for trials of an agent: what each needs, and what fits beside the others.

trial ──▶ Config ──▶ Spec ──plan()──▶ Provision
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from supermax.agents.fits import combinations, fits
from supermax.agents.objective import configured
from supermax.agents.specs import spec_of
from supermax.engine.provision import Occupied, Provision, Refused
from supermax.errors import EnvironmentFault, UserError
from supermax.memory.estimate import CONTEXT, Split
from supermax.memory.facts import Spec
from supermax.memory.learning import Book
from supermax.memory.planner import Failed, NoPlan, Plan, least, plan
from supermax.memory.probes import probes
from supermax.space import Space
from supermax.training.config import Config
from supermax.training.data.examples import Corpus
from supermax.training.lengths import Lengths, lengths_of
from supermax.training.prepare import encoders_of, examples_for, texts_of
from supermax.training.sources import Source
from supermax.training.steps import Execution
from supermax.training.tokenizers import tokenizer_for
from supermax.words import size_text


class Budget(Protocol):
    @property
    def whole(self) -> int: ...

    def available(self, device: str | None, pids: Any, ours: int) -> int: ...


@dataclass
class MemoryPlanner:
    agent: str
    space: Space
    train: Corpus
    validation: Corpus
    cache: Path
    limits: dict[str, Any]
    execution: Execution
    book: Book
    budget: Budget
    _lengths: dict[str, Lengths] = field(default_factory=dict)
    _probed: set[tuple[bool | str, ...]] = field(default_factory=set)
    _free: int | None = None
    """What this run could have when it was last looked."""

    def provide(self, trial: Any, failed: Sequence[dict[str, Any]]) -> Provision | Refused:
        try:
            spec = self.spec(configured(self.agent, self.space.sample(trial), self.limits))
        except EnvironmentFault:
            raise
        except Exception:  # the trial meets it again in its cell, where it is told as its own
            return Provision(0)
        found = self.planned(spec, failed)
        if isinstance(found, NoPlan):
            return Refused(str(found), found.over)
        where = "host" if spec.device == "cpu" else "device"
        how = how_of(found) | self._probes(found, failed)
        return Provision(found.need.total, how, where, found.why)

    def refuse_what_cannot_be(self, sources: Mapping[str, Source]) -> None:
        """A search in which nothing fits ends before its first trial, with a UserError."""
        budget = self.budget.whole
        shares = fits(self.space, sources, self.agent, budget, self.execution)
        if any(share.never < share.all for share in shares.values()):
            return
        smallest = min(
            least(replace(spec, length=min(spec.length, self._found(source).longest)))
            for source in sources.values()
            for spec in combinations(self.space, self.agent, source, self.execution)
        )
        if smallest > budget:
            raise UserError(
                f"Nothing of the space fits into {size_text(budget)}: the smallest needs "
                f"{size_text(smallest)}. Give trials more memory, or leave room for smaller "
                f"encoders in the space."
            )

    def planned(self, spec: Spec, failed: Sequence[dict[str, Any]] = ()) -> Plan | NoPlan:
        """Within what others leave; where that is too little, it waits for the whole device."""
        known = self.book.known(spec)
        found: Plan | NoPlan | None = None
        for budget in dict.fromkeys((self._free or self.budget.whole, self.budget.whole)):
            found = plan(
                spec,
                budget,
                correction=known.correction,
                measured=known.paces,
                failed=[one for how in failed if (one := failed_of(how)) is not None],
            )
            if isinstance(found, Plan):
                break
        assert found is not None
        return found

    def _probes(self, found: Plan, failed: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """For the first trial of an encoder of which too little is known on this device: by one
        trial of a run, and by one more where a batch does not fit as it is."""
        encoders = tuple(encoder.fingerprint for encoder in found.spec.encoders)
        wanted = [] if failed else probes(found, self.book.known(found.spec))
        if not wanted or (found.whole, *encoders) in self._probed:
            return {}
        self._probed.add((found.whole, *encoders))
        length = found.spec.length
        return {
            "probes": [
                {"micro_batch": s.micro_batch, "checkpointing": s.checkpointing, "length": length}
                for s in wanted
            ]
        }

    def room(self, occupied: Occupied) -> int | None:
        context = CONTEXT["cpu" if self.execution.device == "cpu" else "cuda"]
        idle = occupied.idle * context
        ours = occupied.reserved + idle
        self._free = self.budget.available(occupied.device, occupied.pids, ours)
        # A used cell that takes the trial has its context already, which is in the trial's need.
        taken = context if occupied.idle and not occupied.fresh else 0
        return self._free - ours + taken

    def spec(self, config: Config) -> Spec:
        sources = encoders_of(config)
        found = [self._found(source) for source in sources]
        return spec_of(
            config,
            sources,
            self.execution,
            classes=len(self.train.label_names) or 2,
            tokens=max(one.longest for one in found),
            data=sum(one.total for one in found),
        )

    def _found(self, source: Source) -> Lengths:
        """Of the texts that this encoder will see."""
        if source.fingerprint not in self._lengths:
            load = partial(tokenizer_for, source, texts_of(self.train), self.cache)
            corpora = (self.train, self.validation)
            examples = [e for corpus in corpora for e in examples_for(self.agent, corpus)]
            facts = [self.agent, source.fingerprint, *(corpus.fingerprint for corpus in corpora)]
            key = hashlib.sha256(" ".join(facts).encode()).hexdigest()[:24]
            self._lengths[source.fingerprint] = lengths_of(examples, load, self.cache, key)
        return self._lengths[source.fingerprint]


def how_of(found: Plan) -> dict[str, Any]:
    """A plan as it travels to the cell and into the ledger."""
    return {
        "micro_batch": found.split.micro_batch,
        "checkpoint_activations": found.split.checkpointing,
        "evaluated": found.split.evaluated,
        "best_on_host": found.split.best_on_host,
        "memory": found.need.reserved,
    }


def failed_of(how: dict[str, Any]) -> Failed | None:
    """From the ledger; None for what another planner or version wrote there."""
    sizes = [how.get(name) for name in ("micro_batch", "evaluated", "memory")]
    again, on_host = how.get("checkpoint_activations"), how.get("best_on_host") is True
    match sizes:
        case [int(micro_batch), int(evaluated), int(memory)] if isinstance(again, bool):
            return Failed(Split(micro_batch, again, evaluated, best_on_host=on_host), memory)
        case _:
            return None
