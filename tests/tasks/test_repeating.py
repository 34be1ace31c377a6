"""Refit and replay within the memory of their trial, under a real limit of the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import supermax
from supermax._util import system
from supermax.errors import EnvironmentFault
from supermax.memory.estimate import need
from supermax.search import refit
from supermax.tasks.repeating import Repetition, split_of
from supermax.training.deploy.refit import refit_splits
from supermax.training.steps.execution import Execution
from tests.preloading import Template, forked_from
from tests.tasks.test_memory import SPACE, long_posts

pytestmark = pytest.mark.skipif(not system.LINUX, reason="the limit of data is Linux's")
MIB = 1 << 20
BUDGET = 500 * MIB
"""A whole batch takes more than twice as much."""
LIMITED = """
import json, resource, sys
from pathlib import Path

import optuna
from supermax._util import system
from supermax.memory.estimate import Split, need
from supermax.memory.measurements import Measured
from supermax._util.attributes import SETTINGS
from supermax.results.records import read_record
from supermax.search import refit
from supermax.search.replay import replay_trial
from supermax.training.steps.memory_limits import unused

MIB = 1 << 20
folder, what, budget = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
(name,) = optuna.get_all_study_names(f"sqlite:///{folder}/supermax.db")
record = read_record(optuna.load_study(study_name=name, storage=f"sqlite:///{folder}/supermax.db"))
settings = refit.stored_settings(record.study.user_attrs[SETTINGS], name)
trial, said = record.trials[0], []
if what == "wrong":  # measurements have it that a fourth of the memory does
    settings = settings.model_copy(update={"gpu_memory": budget})
    config = refit.config_of(record, trial)
    objective = refit.objective_of(record, settings, refit.same_data(record, settings))
    planner = refit.repetition(objective, settings, trial, config, print).planner
    spec = planner.spec(config)
    guess = need(spec, Split(128, evaluated=0))
    wrong = guess.allocated - int(0.75 * guess.varying)
    for _ in range(9):
        planner.book.note(spec, Measured(128, False, spec.length, 128, wrong, wrong))


def limit(size):
    resource.setrlimit(resource.RLIMIT_DATA, (size + unused(), resource.RLIM_INFINITY))


def limited(*args, **how):
    limit(system.data_size() + int(sys.argv[4]))
    return train(*args, **how)


if what == "wrong":  # the limit is for what is trained, and not seen before
    train, refit.refit_config = refit.refit_config, limited
else:
    limit(max(system.data_size(), 512 * MIB) + budget)
if what == "replay":
    print(json.dumps(replay_trial(refit.replay_objective(record, trial), trial, lambda *_: None)))
else:
    out = folder / f"{what}-model"
    refit.refit_study(record, 0, settings, seeds=[1], folder=out, tell=said.append)
    print(json.dumps(said))
"""


def studied(folder: Path, memory: int | None) -> supermax.Study:
    """Return a study with one trial on the texts of test_memory."""
    (folder / "space.yaml").write_text(SPACE)
    with (folder / "posts.jsonl").open("w") as file:
        for e in long_posts().spans:
            answers = {
                "answer": [e.text[first:last] for first, last in e.spans],
                "start": [first for first, _ in e.spans],
            }
            row = {"text": e.text, "question": e.question, "group": e.group, **answers}
            file.write(json.dumps(row) + "\n")
    columns = {name: name for name in ("text", "question", "answer", "group")}
    made = supermax.Study.from_config(
        agent="evidence",
        data={
            "path": str(folder / "posts.jsonl"),
            "columns": {**columns, "answer_start": "start"},
        },
        space=str(folder / "space.yaml"),
        trials=1,
        epochs=1,
        outdir=str(folder),
        seed=0,
        **({} if memory is None else {"gpu_memory": memory}),
    )
    return made.run(progress=False)


def limited(folder: Path, what: str, budget: int = BUDGET, held_to: int = 0) -> Any:
    """Run in a process that gets no more than the budget; to train, no more than `held_to`."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(folder), what, str(budget), str(held_to)],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "XDG_CACHE_HOME": str(folder / "known"),
            "MIMALLOC_ARENA_RESERVE": "65536",
        },
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory, template: Template) -> supermax.Study:
    """Return a study whose trial was split into micro-batches under the budget."""
    with forked_from(template):
        made = studied(tmp_path_factory.mktemp("split"), BUDGET)
    result = made.best().result
    assert result["micro_batch"] < 128
    return made


def folder_of(study: supermax.Study) -> Path:
    return Path(study.settings.outdir)


@pytest.mark.slow
def test_a_refit_fits_where_its_trial_did_and_is_the_same_experiment(
    split: supermax.Study, tmp_path: Path
) -> None:
    assert limited(folder_of(split), "refit") == []
    free = split.settings.model_copy(update={"gpu_memory": None})
    refit.refit_study(split.record, 0, free, seeds=[1], folder=tmp_path / "model")
    weights = [
        load_file(folder / "model.safetensors")
        for folder in (folder_of(split) / "refit-model", tmp_path / "model")
    ]
    for name, weight in weights[0].items():
        assert torch.allclose(weight, weights[1][name], atol=1e-4), name


class Seen(Exception):
    """Exception that carries the execution of a refit."""


@pytest.mark.slow
def test_a_refit_and_a_replay_take_the_plan_of_their_trial(
    split: supermax.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(*_: object, execution: Execution, **__: object) -> None:
        raise Seen(execution)

    monkeypatch.setattr(refit, "refit_config", seen)
    trial = split.record.trial(0)
    with pytest.raises(Seen) as found:
        refit.refit_study(split.record, 0, split.settings, seeds=[1], folder=tmp_path / "model")
    planned = trial.result["micro_batch"]
    again = found.value.args[0], refit.replay_objective(split.record, trial).execution
    for execution in again:  # smaller, where measurements say so or there is more data
        assert 0 < execution.micro_batch <= planned < 128


@pytest.mark.slow
def test_a_replay_fits_where_its_trial_did(split: supermax.Study) -> None:
    assert limited(folder_of(split), "replay") == pytest.approx(split.best().values, abs=1e-3)


@pytest.mark.slow
def test_a_refit_that_runs_out_of_memory_resumes_smaller(tmp_path: Path) -> None:
    made = studied(tmp_path, None)
    assert made.best().result["micro_batch"] == 128
    said = limited(tmp_path, "wrong", 580 * MIB, held_to=260 * MIB)
    assert said
    assert all(
        line.startswith("Memory ran out. Training resumes from its last checkpoint")
        for line in said
    )
    assert (tmp_path / "wrong-model" / "model.safetensors").exists()


# Which plan.


def repetition(study: supermax.Study, memory: int | None, **data: Any) -> Repetition:
    settings = study.settings.model_copy(update={"gpu_memory": memory})
    trial = study.record.trial(0)
    objective = refit.objective_of(study.record, settings, study.splits)
    config = refit.config_of(study.record, trial)
    return refit.repetition(replace(objective, **data), settings, trial, config, lambda _: None)


@pytest.mark.slow
def test_its_own_plan_is_kept_where_it_fits(split: supermax.Study) -> None:
    """A larger plan would fit, too."""
    trial = split.record.trial(0)
    first = repetition(split, 8 * BUDGET).first(Execution(memory=7))
    assert first.micro_batch == trial.result["micro_batch"]
    assert first.memory == 7
    unseen = replace(repetition(split, None), planner=None)
    assert unseen.first(Execution()) == replace(first, memory=None)
    assert replace(unseen, before=None).first(Execution()) == Execution()


@pytest.mark.slow
def test_a_smaller_device_has_another_plan(split: supermax.Study) -> None:
    again = repetition(split, 320 * MIB)
    first = again.first(Execution())
    assert first.micro_batch is not None
    assert first.micro_batch < split.record.trial(0).result["micro_batch"]
    assert again.planner is not None
    spec = again.planner.spec(again.config)
    assert need(spec, split_of(first, again.config)).total <= 320 * MIB
    with pytest.raises(EnvironmentFault, match=r"needs .* even with a micro-batch of 1"):
        repetition(split, 100 * MIB).first(Execution())


@pytest.mark.slow
def test_longer_texts_have_another_plan(split: supermax.Study) -> None:
    """The trial was planned for texts as long as these are."""
    train, validation = (
        replace(part, spans=tuple(replace(e, text=e.text[:40], spans=()) for e in part.spans))
        for part in refit_splits(refit.config_of(split.record, split.best()), split.splits)
    )
    long = repetition(split, BUDGET)
    short = repetition(split, BUDGET, train=train, validation=validation)
    short.before = long.before = {
        "micro_batch": 64,
        "checkpoint_activations": False,
        "evaluated": 2048,
        "best_on_host": False,
        "memory": BUDGET,
    }
    assert short.first(Execution()).micro_batch == 64
    assert (long.first(Execution()).micro_batch or 128) < 64


@pytest.mark.slow
def test_memory_that_ran_out_is_planned_smaller_until_nothing_is_left(
    split: supermax.Study,
) -> None:
    again = repetition(split, BUDGET)
    execution, sizes = again.first(Execution()), []
    assert again.smaller(ValueError("something else"), execution) is None
    while (less := again.smaller(MemoryError(), execution)) is not None:
        assert again.planner is not None
        spec = again.planner.spec(again.config)
        sizes.append(need(spec, split_of(less, again.config)).total)
        execution = less
    assert sizes
    assert sizes == sorted(sizes, reverse=True)
