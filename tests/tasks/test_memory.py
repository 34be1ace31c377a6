"""Real search under a memory limit: split, planned again after an OOM, same result as without
a limit.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from supermax.errors import UserError
from supermax.memory.budgets import HostBudget
from supermax.memory.estimate import Split, need
from supermax.memory.facts import Spec
from supermax.memory.measurements import Measured, MeasurementLog
from supermax.memory.planner import NoPlan, Plan
from supermax.results.records import read_record
from supermax.search.search import Search
from supermax.space import loads
from supermax.tasks.objective import AgentObjective, configured, local_execution
from supermax.tasks.provisioning import MemoryPlanner
from supermax.training.data.examples import Corpus
from supermax.training.data.splits import split
from supermax.training.data.synthetic import synthetic
from supermax.training.steps.execution import Execution

pytestmark = pytest.mark.usefixtures("quick", "preloaded", "nothing_known")
MIB = 1 << 20
SPACE = """
name: one
parameters:
  encoder.name: {choices: [tiny-bert]}
  encoder.dropout: {choices: [0.0]}
  encoder.attention_dropout: {choices: [0.0]}
  head.dropout: {choices: [0.0]}
  text.max_length: {choices: [512]}
  text.doc_stride: {choices: [32]}
  train.effective_batch: {choices: [128]}
  train.seed: {choices: [1]}
  optim.lr: {choices: [0.001]}
"""


@pytest.fixture
def nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "known"))


def long_posts() -> Corpus:
    """Return posts of several mostly full windows: little can be packed, so that a batch needs the
    memory of as many sequences."""
    few = synthetic(26, difficulty=0.0, seed=3, max_words=200)
    spans = [replace(e, text=f"{e.text} {' '.join([e.text] * 40)}"[:12_000]) for e in few.spans]
    return replace(few, spans=tuple(spans))


def search_in(folder: Path, name: str, memory: int | None = None) -> Search:
    return Search(
        "evidence",
        long_posts(),
        str(folder / "s.db"),
        folder / "cache",
        name=name,
        space=loads(SPACE),
        trials=1,
        limits={"epochs": 1, "patience": None},
        seed=0,
        memory=memory,
        tell=lambda _: None,
    )


def planner(of: Search, memory: int | None) -> MemoryPlanner:
    splits = split(of.corpus)
    objective = AgentObjective(
        of.agent, loads(SPACE), splits.train, splits.validation, of.cache, ["token_f1"],
        of.limits, of.execution, book=of.resources.measurement_log(),
    )  # fmt: skip
    made = of.resources.planner(objective, of.tell)
    assert made is not None
    made.budget = HostBudget(memory)
    return made


def spec_of(made: MemoryPlanner) -> Spec:
    sampled = {
        "encoder": {"name": "tiny-bert", "dropout": 0.0, "attention_dropout": 0.0},
        "head": {"dropout": 0.0},
        "text": {"max_length": 512, "doc_stride": 32},
        "train": {"effective_batch": 128, "seed": 1},
        "optim": {"lr": 0.001},
    }
    return made.spec(configured(made.objective.agent, sampled, made.objective.limits))


def forget(book: MeasurementLog) -> None:
    for page in book.folder.glob("*.jsonl"):
        page.unlink()


@pytest.mark.slow
def test_a_real_oom_is_planned_again_and_changes_nothing(tmp_path: Path) -> None:
    free = search_in(tmp_path, "free").run(progress=False)
    (whole,) = read_record(free.study).trials
    assert whole.state == "COMPLETE", whole.faults
    assert whole.result["micro_batch"] == 128

    tight = search_in(tmp_path, "tight")
    made = planner(tight, None)
    spec = spec_of(made)
    honest = made.planned(spec)
    assert isinstance(honest, Plan)
    forget(made.book)
    # Somebody else's measurements have it that a fourth of the memory does.
    guess = need(spec, Split(128, evaluated=0))
    wrong = guess.allocated - int(0.75 * guess.varying)
    for _ in range(9):
        made.book.note(spec, Measured(128, False, spec.length, 128, wrong, wrong))
    believed = made.planned(spec)
    assert isinstance(believed, Plan)
    assert believed.whole
    assert believed.need.reserved < need(spec, Split(128)).allocated - 50 * MIB
    budget = believed.need.total + 20 * MIB
    limited = search_in(tmp_path, "tight", budget).run(progress=False)

    (trial,) = read_record(limited.study).trials
    assert trial.state == "COMPLETE"
    assert {fault.kind for fault in trial.faults} == {"host out of memory"}
    assert all(fault.decision == "tried again with another memory plan" for fault in trial.faults)
    short = trial.attempts[0].fault
    assert short is not None
    assert short.memory is not None
    assert short.memory.limit is not None
    assert short.memory.needed > short.memory.limit
    assert trial.result["micro_batch"] < 128 or trial.result["checkpointing"]
    assert trial.notes["reserved"]["host"] <= budget
    assert trial.values == pytest.approx(whole.values, abs=1e-3)
    losses = trial.result["train_loss"]
    assert losses == pytest.approx(whole.result["train_loss"], abs=1e-3)
    # And it is known now: the next trial is planned right at once.
    known = made.book.known(spec)
    assert known.correction.worst > 0.5
    again = planner(tight, budget).planned(spec)
    assert isinstance(again, Plan)
    assert not again.whole


def test_a_search_in_which_nothing_fits_does_not_begin(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Nothing of the space fits into 100 MiB: the smallest"):
        search_in(tmp_path, "none", 100 * MIB).run(progress=False)
    assert not read_record(
        optuna.load_study(study_name="none", storage=f"sqlite:///{tmp_path}/s.db")
    ).trials


@pytest.mark.slow
def test_configurations_that_do_not_fit_are_refused_before_they_start(tmp_path: Path) -> None:
    mixed = replace(
        search_in(tmp_path, "some", 292 * MIB), corpus=synthetic(30, seed=3, max_words=None),
        space=loads(SPACE.replace("[512]", "[64, 512]")), sampler="random", trials=4,
    )  # fmt: skip
    trials = read_record(mixed.run(progress=False).study).trials
    long = [trial for trial in trials if trial.params["text.max_length"] == 512]
    assert long
    for trial in long:
        assert trial.state == "PRUNED"
        assert trial.notes["attempts"] == 0
        assert trial.broken["supermax:infeasible"] > 0
        assert "tiny-bert at 512 tokens needs" in trial.faults[0].message
        assert trial.faults[0].decision == "reported to the sampler as infeasible"
    made = planner(search_in(tmp_path, "none"), 100 * MIB)
    assert isinstance(made.planned(spec_of(made)), NoPlan)


def test_the_longest_text_decides_and_not_the_longest_that_is_allowed(tmp_path: Path) -> None:
    short = search_in(tmp_path, "short")
    made = planner(short, None)
    assert spec_of(made).length == 512
    few = synthetic(40, difficulty=0.0, seed=3, max_words=10)
    made = planner(
        Search("evidence", few, tmp_path / "s.db", tmp_path / "cache", limits=short.limits), None
    )
    assert spec_of(made).length < 100


@pytest.mark.slow
def test_cells_and_coordinator_see_the_same_need(tmp_path: Path) -> None:
    """A cell logs its measurements under the spec that the coordinator looks up."""
    tuned = search_in(tmp_path, "same")
    tuned.run(progress=False)
    made = planner(tuned, None)
    known = made.book.known(spec_of(made))
    assert known.measurements == 1
    assert 0.6 < known.correction.worst < 1.6
    assert (
        made.objective.execution.precision
        == local_execution(Execution(device="cpu", precision="auto")).precision
    )
