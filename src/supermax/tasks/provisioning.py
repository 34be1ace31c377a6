"""Memory planner of an agent's trials, for the engine.

trial ──▶ Config ──▶ Spec ──plan()──▶ Provision
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from optuna.trial import BaseTrial

from supermax._util.text import size_text
from supermax.engine.jobs.provision import DeviceUsage, Provision, Refusal
from supermax.errors import EnvironmentFault, UserError
from supermax.memory.estimate import CONTEXT
from supermax.memory.facts import Spec
from supermax.memory.measurements import MeasurementLog
from supermax.memory.planner import Failed, NoPlan, Plan, plan, smallest_budget
from supermax.memory.probes import probes
from supermax.tasks.fits import combinations, fits
from supermax.tasks.objective import AgentObjective
from supermax.tasks.specs import spec_of
from supermax.tasks.trial_plan import ProbePlan, failed_of, trial_plan
from supermax.training.config import Config
from supermax.training.data.lengths import Lengths, lengths_of
from supermax.training.models.sources import Source
from supermax.training.models.tokenizers import tokenizer_for
from supermax.training.prepare import encoders_of, examples_for, texts_of


class Budget(Protocol):
    """Memory budget of a run on one device."""

    @property
    def whole(self) -> int:
        """Bytes that the run may use if nothing else uses the device."""

    def available(self, device: str | None, pids: Collection[int], ours: int) -> int:
        """Return the bytes for this run that other processes leave free.

        `pids` are the processes of the run, and `ours` the bytes that they use.
        """


@dataclass
class MemoryPlanner:
    """Planner that splits each trial into micro-batches so that it fits the memory budget."""

    objective: AgentObjective
    """Objective of the trials, with the device and precision that their processes will use."""
    book: MeasurementLog
    budget: Budget
    _lengths: dict[str, Lengths] = field(default_factory=dict)
    _probed: set[tuple[bool, tuple[str, ...]]] = field(default_factory=set)
    _free: int | None = None
    """Bytes that this run could use at the last check; None: not checked yet."""

    def provide(
        self, trial: BaseTrial, failed: Sequence[Mapping[str, object]]
    ) -> Provision | Refusal:
        """Return memory and execution of a trial, or why it cannot run.

        `failed` are the executions of its attempts that ran out of memory.
        """
        try:
            spec = self.spec(self.objective.sampled(trial))
        except EnvironmentFault:
            raise
        except Exception:  # raised again in the trial's process, and reported as the trial's error
            return Provision(0)
        found = self.planned(spec, failed)
        if isinstance(found, NoPlan):
            return Refusal(str(found), found.over)
        where = "host" if spec.device == "cpu" else "device"
        how = trial_plan(found)
        if not failed and (wanted := self._probes(found)):
            how["probes"] = wanted
        return Provision(found.need.total, {**how}, where, found.why)

    def check_anything_fits(self, sources: Mapping[str, Source]) -> None:
        """Raise UserError if no configuration of the space fits the budget."""
        budget = self.budget.whole
        searched = self.objective
        space, agent, execution = searched.space, searched.agent, searched.execution
        shares = fits(space, sources, agent, budget, execution)
        if any(share.never < share.all for share in shares.values()):
            return
        smallest = min(
            smallest_budget(
                replace(spec, length=min(spec.length, self._text_lengths(source).longest))
            )
            for source in sources.values()
            for spec in combinations(space, agent, source, execution)
        )
        if smallest > budget:
            raise UserError(
                f"Nothing of the space fits into {size_text(budget)}: the smallest configuration "
                f"needs {size_text(smallest)}. Give trials more memory, or add smaller encoders "
                f"to the space."
            )

    def planned(self, spec: Spec, failed: Sequence[Mapping[str, object]] = ()) -> Plan | NoPlan:
        """Plan a trial within the memory that other processes leave free.

        If that is too little, plan for the whole budget: the engine waits until it is free.
        """
        splits = [split for how in failed if (split := failed_of(how)) is not None]
        if self._free and isinstance(found := self.plan_within(self._free, spec, splits), Plan):
            return found
        return self.plan_within(self.budget.whole, spec, splits)

    def plan_within(self, budget: int, spec: Spec, failed: Sequence[Failed]) -> Plan | NoPlan:
        """Plan a trial within `budget` bytes, by all measurements so far."""
        known = self.book.known(spec)
        correction, speeds = known.correction, known.speeds
        return plan(spec, budget, correction=correction, measured=speeds, failed=failed)

    def _probes(self, found: Plan) -> list[ProbePlan]:
        """Return probes of an encoder that has too few measurements on this device.

        One trial of a run has them, and one more if the effective batch must be split.
        """
        key = found.whole, tuple(encoder.fingerprint for encoder in found.spec.encoders)
        splits = probes(found, self.book.known(found.spec))
        if not splits or key in self._probed:
            return []
        self._probed.add(key)
        length = found.spec.length
        return [
            {"micro_batch": s.micro_batch, "checkpointing": s.checkpointing, "length": length}
            for s in splits
        ]

    def room(self, occupied: DeviceUsage) -> int | None:
        """Return the bytes that are free for one more trial."""
        context = CONTEXT["cpu" if self.objective.execution.device == "cpu" else "cuda"]
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
            self.objective.execution,
            classes=len(self.objective.train.label_names) or 2,
            tokens=max(each.longest for each in lengths),
            data=self.objective.label_values + sum(each.total for each in lengths),
        )

    def _text_lengths(self, source: Source) -> Lengths:
        """Return the token lengths of the train and validation texts with this encoder."""
        if source.fingerprint not in self._lengths:
            agent, cache = self.objective.agent, self.objective.cache
            corpora = (self.objective.train, self.objective.validation)
            load = partial(tokenizer_for, source, texts_of(corpora[0]), cache)
            examples = [e for corpus in corpora for e in examples_for(agent, corpus)]
            facts = [agent, source.fingerprint, *(corpus.fingerprint for corpus in corpora)]
            key = hashlib.sha256(" ".join(facts).encode()).hexdigest()[:24]
            self._lengths[source.fingerprint] = lengths_of(examples, load, cache, key)
        return self._lengths[source.fingerprint]
