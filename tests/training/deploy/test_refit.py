"""Refit: the test split is used last, intervals have their coverage, the median is exported."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from supermax.errors import UserError
from supermax.training.config import DecodeConfig
from supermax.training.data.examples import Corpus, Example
from supermax.training.data.splits import Splits
from supermax.training.deploy import refit as module
from supermax.training.deploy.export import load_exported
from supermax.training.deploy.predict import predict_examples
from supermax.training.deploy.refit import Refit, cautions, refit
from supermax.training.eval.evaluate import Evaluation
from supermax.training.eval.intervals import Estimate, estimates
from supermax.training.eval.metrics import Span, class_metrics, span_metrics
from supermax.training.loop import train, train_without_validation
from supermax.training.models.encoders import load_encoder
from supermax.training.models.sources import find
from supermax.training.models.tokenizers import tokenizer_for
from supermax.training.prepare import Prepared, prepare
from supermax.training.steps.execution import Execution
from tests.training.corpora import OPEN, Quiet, config, corpus
from tests.training.eval.test_intervals import judged


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "estimates", partial(estimates, rounds=40))


def part(n: int, seed: int) -> Corpus:
    """Return a corpus with its own groups."""
    whole = corpus(n, seed)

    def own(examples: tuple[Example, ...]) -> tuple[Example, ...]:
        return tuple(replace(e, group=f"{seed}-{e.group}") for e in examples)

    return replace(whole, classes=own(whole.classes), spans=own(whole.spans))


SPLITS = Splits(part(16, 1), part(8, 2), part(10, 3))


def run(tmp_path: Path, agent: str = "criteria", **changes: Any) -> Refit:
    wanted = config(agent, **changes.pop("parts", {}))
    arguments = {"seeds": [1, 2, 3], "cache": tmp_path / "cache"} | changes
    return refit(wanted, SPLITS, **arguments)


@pytest.mark.parametrize(
    "agent", ["criteria", "evidence", "share", pytest.param("joint", marks=pytest.mark.slow)]
)
def test_every_agent_is_refitted_tested_and_exported(tmp_path: Path, agent: str) -> None:
    result = run(tmp_path, agent, folder=tmp_path / "model", seeds=[5, 6])
    assert [r.seed for r in result.runs] == [5, 6]
    for name, estimate in result.metrics.items():
        values = [r.metrics[name] for r in result.runs]
        assert estimate.values == pytest.approx(values, nan_ok=True), name
        assert estimate.mean == pytest.approx(np.mean(values), nan_ok=True)
        assert math.isnan(estimate.low) or estimate.low <= estimate.high
    assert result.metrics.keys() == result.runs[0].metrics.keys()
    loaded = load_exported(tmp_path / "model")
    assert loaded.config.train.seed == result.chosen
    assert loaded.label_names == ("no", "yes")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "Mean of 2 seeds" in card
    assert [path.suffix for path in (tmp_path / "cache" / "refits").iterdir()] == [".lock"]


LORA = {"adapter": {"name": "lora"}, "optim": {"lr": 1e-2}}


@pytest.mark.parametrize("parts", [{}, LORA])
def test_the_exported_model_is_the_tested_one(tmp_path: Path, parts: dict[str, Any]) -> None:
    """Each seed has random weights of its own for the encoder, under LoRA too."""
    result = run(tmp_path, folder=tmp_path / "model", parts=parts)
    test = SPLITS.test.classes
    given = predict_examples(load_exported(tmp_path / "model"), test)
    p = [list((one.probabilities or {}).values()) for one in given]
    chosen = next(r for r in result.runs if r.seed == result.chosen)
    assert class_metrics([e.label or 0 for e in test], p) == pytest.approx(chosen.metrics)
    values = sorted(r.metrics["macro_f1"] for r in result.runs)
    assert chosen.metrics["macro_f1"] == values[1]


def test_the_same_call_gives_the_same_result(tmp_path: Path) -> None:
    assert run(tmp_path, seeds=[4]) == run(tmp_path, seeds=[4])


def test_decoding_that_was_left_open_is_chosen_exported_and_tested(tmp_path: Path) -> None:
    result = run(tmp_path, "evidence", parts=OPEN, folder=tmp_path / "model", seeds=[5])
    chosen = result.runs[0].decoding
    assert chosen is not None
    loaded = load_exported(tmp_path / "model")
    assert loaded.config.decode == DecodeConfig(n_best=chosen.n_best, max_answer=chosen.max_answer)
    assert (loaded.config.no_answer.policy, loaded.threshold) == ("calibrated", chosen.threshold)
    test = SPLITS.test.spans
    spans = [each.spans or () for each in predict_examples(loaded, test)]
    expected = span_metrics(spans, [e.spans or () for e in test], [e.text for e in test])
    assert expected == pytest.approx(result.runs[0].metrics, nan_ok=True)


# What is looked at when.


@pytest.mark.slow
def test_a_killed_refit_resumes_bitwise(tmp_path: Path) -> None:
    killed = """
import os, signal, sys
from pathlib import Path
import torch
from tests.training.deploy.test_refit import run

def told(seed, epoch, loss):
    if (seed, epoch) == (2, 3):
        os.kill(os.getpid(), signal.SIGKILL)

torch.set_num_threads(1)
run(Path(sys.argv[1]), save_every=0, progress=told, parts={"train": {"epochs": 4}})
"""
    done = subprocess.run(
        [sys.executable, "-c", killed, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == -signal.SIGKILL
    epochs: list[tuple[int, int]] = []
    four = {"train": {"epochs": 4}}
    model = tmp_path / "model"
    again = run(
        tmp_path,
        folder=model,
        parts=four,
        progress=lambda seed, epoch, _: epochs.append((seed, epoch)),
    )
    assert epochs[0] in ((2, 3), (2, 4))  # the state of epoch 3 may have been on its way
    assert epochs[-4:] == [(3, 1), (3, 2), (3, 3), (3, 4)]
    whole = run(tmp_path / "other", folder=tmp_path / "whole", parts=four)
    assert whole.runs == again.runs
    weights = [load_file(folder / "model.safetensors") for folder in (model, tmp_path / "whole")]
    assert all(torch.equal(weights[0][name], w) for name, w in weights[1].items())


@pytest.mark.slow
def test_a_refit_that_ran_out_of_memory_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    epochs: list[tuple[int, int]] = []
    used: list[int | None] = []

    def told(seed: int, epoch: int, _: float) -> None:
        epochs.append((seed, epoch))
        if epochs == [(1, 1), (1, 2)]:
            raise MemoryError

    def smaller(error: Exception, execution: Execution) -> Execution | None:
        used.append(execution.micro_batch)
        return replace(execution, micro_batch=5) if isinstance(error, MemoryError) else None

    four = {"train": {"epochs": 4}}
    again = run(tmp_path, parts=four, progress=told, save_every=0, smaller=smaller)
    assert used == [None]
    assert epochs == [(seed, epoch) for seed in (1, 2, 3) for epoch in (1, 2, 3, 4)]
    whole = run(tmp_path / "other", parts=four)
    for one, other in zip(again.runs, whole.runs, strict=True):
        assert one.metrics == pytest.approx(other.metrics, abs=1e-4)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, progress=lambda *_: print(1 / 0), smaller=smaller)


def stopped(folder: Path, seed: int, **how: Any) -> None:
    """Run a refit that is interrupted after the first epoch of a seed."""

    def stop(now: int, *_: Any) -> None:
        if now == seed:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(folder, progress=stop, save_every=0, **how)


def trained(folder: Path, **how: Any) -> set[int]:
    """Return the seeds that a refit trains."""
    seen: set[int] = set()
    run(folder, progress=lambda seed, *_: seen.add(seed), **how)
    return seen


@pytest.mark.slow
def test_a_refit_takes_up_its_own_work_only(tmp_path: Path) -> None:
    stopped(tmp_path, 3)
    assert trained(tmp_path, seeds=[9]) == {9}  # and leaves the others' work alone
    assert trained(tmp_path) == {3}
    saved, changed = tmp_path / "encoder", {"encoder": {"name": str(tmp_path / "encoder")}}
    source = find("tiny")
    tokenizer_for(source, ["some words"], tmp_path).save_pretrained(saved)
    load_encoder(source, source.config).save_pretrained(saved)
    stopped(tmp_path, 2, parts=changed)
    load_encoder(source, source.config).save_pretrained(saved)  # other weights in the same place
    assert trained(tmp_path, parts=changed) == {1, 2, 3}


def test_damaged_checkpoints_are_replaced(tmp_path: Path) -> None:
    stopped(tmp_path, 3)
    (kept,) = [path for path in (tmp_path / "cache" / "refits").iterdir() if path.is_dir()]
    (kept / "1" / "done.pt").write_bytes(b"")
    (kept / "2" / "done.pt").write_bytes((kept / "2" / "done.pt").read_bytes()[:2000])
    (kept / "3" / "state.pt").write_bytes(b"garbage")
    for file in (tmp_path / "cache" / "tokenizers").glob("*.json"):
        file.write_text("")
    for i, folder in enumerate(sorted((tmp_path / "cache" / "tokens").iterdir())):
        (folder / "ids.npy").write_bytes(b"x" * i)
        (folder / "label.npy").unlink()
    assert trained(tmp_path) == {1, 2, 3}


def test_seed_that_an_earlier_version_has_trained_is_trained_again(tmp_path: Path) -> None:
    parts = {"no_answer": {"policy": "calibrated"}}
    stopped(tmp_path, 2, agent="evidence", seeds=[1, 2], parts=parts)
    (kept,) = [path for path in (tmp_path / "cache" / "refits").iterdir() if path.is_dir()]
    done = torch.load(kept / "1" / "done.pt", weights_only=True)
    torch.save({"weights": done["weights"], "threshold": 0.5}, kept / "1" / "done.pt")
    assert trained(tmp_path, agent="evidence", seeds=[1, 2], parts=parts) == {1, 2}


def test_the_same_refit_does_not_run_twice_at_once(tmp_path: Path) -> None:
    def inner(*_: Any) -> None:
        with pytest.raises(UserError, match="already running"):
            run(tmp_path)

    run(tmp_path, seeds=[1], progress=inner)


@pytest.mark.parametrize("policy", ["threshold", "calibrated"])
def test_the_test_split_is_used_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """Every text that is tokenized or evaluated goes through these functions; their order is
    recorded."""
    texts = {e.id for e in SPLITS.test.examples}
    seen: list[tuple[str, bool]] = []

    def spy(name: str, examples: Any) -> None:
        seen.append((name, any(e.id in texts for e in examples)))

    for name in ("prepare", "train_without_validation", "evaluate", "tokenize", "evaluate_model"):
        owner: Any = Prepared if name == "evaluate" else module
        real = getattr(owner, name)

        def wrapped(*args: Any, _name: str = name, _real: Any = real, **more: Any) -> Any:
            if _name == "prepare":
                spy(_name, args[1].examples + args[2].examples)
            elif _name in ("train_without_validation", "evaluate"):
                spy(_name, args[0].train.examples + args[0].validation.examples)
            elif _name == "tokenize":
                spy(_name, args[1].examples)
            else:
                spy(_name, args[2].examples)
            return _real(*args, **more)

        monkeypatch.setattr(owner, name, wrapped)
    run(tmp_path, "evidence", parts={"no_answer": {"policy": policy}}, seeds=[1, 2])
    looked = [touches for _, touches in seen]
    first = looked.index(True)
    assert all(looked[first:])
    assert [name for name, _ in seen[:first]].count("train_without_validation") == 2
    assert {name for name, _ in seen[first:]} == {"tokenize", "evaluate_model"}


def test_the_test_split_does_not_influence_the_weights(tmp_path: Path) -> None:
    for name, test in (("one", SPLITS.test), ("other", part(10, 9))):
        refit(config("evidence", no_answer={"policy": "calibrated"}), replace(SPLITS, test=test),
              seeds=[1], cache=tmp_path / "cache", folder=tmp_path / name)  # fmt: skip
    one, other = (load_exported(tmp_path / name) for name in ("one", "other"))
    weights = one.model.state_dict(), other.model.state_dict()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert one.threshold == other.threshold


def test_a_refit_trains_on_train_and_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learnt: list[set[str]] = []
    blind = train_without_validation

    def noted(prepared: Any, *rest: Any, **how: Any) -> Any:
        learnt.append({e.id for e in prepared.train.examples})
        return blind(prepared, *rest, **how)

    monkeypatch.setattr(module, "train_without_validation", noted)
    run(tmp_path, seeds=[1])
    assert learnt == [{e.id for e in SPLITS.train.classes + SPLITS.validation.classes}]


@pytest.mark.parametrize("parts", [{"no_answer": {"policy": "calibrated"}}, OPEN])
def test_a_threshold_comes_from_groups_that_were_not_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: dict[str, Any]
) -> None:
    held: list[Any] = []
    real = Prepared.evaluate

    def noted(prepared: Any) -> Any:
        held.append(prepared)
        return real(prepared)

    monkeypatch.setattr(Prepared, "evaluate", noted)
    result = run(tmp_path, "share", parts=parts, seeds=[1, 2])
    assert all(r.threshold is not None for r in result.runs)
    test = {e.group for e in SPLITS.test.examples}
    for prepared in held:
        learnt = {e.group for e in prepared.train.examples}
        kept = {e.group for e in prepared.validation.examples}
        assert not learnt & kept
        assert not (learnt | kept) & test
        assert len(learnt | kept) == 24
        assert 1 <= len(kept) <= 5
    assert run(tmp_path, "evidence", seeds=[1]).runs[0].threshold is None


# Blind training.


def test_training_without_validation_equals_training_with_it(tmp_path: Path) -> None:
    """All epochs have the same losses, and the weights after the first are bitwise equal."""
    noisy = {"encoder": {"dropout": 0.2}, "train": {"epochs": 3}}
    few = corpus(12, 1)
    losses: list[tuple[int, float]] = []
    blind = prepare(config(**noisy), few, few, cache=tmp_path)
    weights = train_without_validation(blind, 3, lambda epoch, loss: losses.append((epoch, loss)))
    usual = prepare(config(**noisy), few, few, cache=tmp_path)
    usual.sign = 0.0  # all epochs are equal, and only a better one is kept
    result = train(usual, Quiet())
    assert result.best_epoch == 1
    assert losses == [(c["epoch"], c["train_loss"]) for c in result.curve]
    one = prepare(config(**noisy), few, few, cache=tmp_path)
    first = train_without_validation(one, 1)
    assert all(torch.equal(first[n], result.weights[n]) for n in first)
    assert not all(torch.equal(first[n], weights[n]) for n in first)


def test_epochs_end_training_on_the_schedule_of_the_search(tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    run(tmp_path, seeds=[3], epochs=1, folder=tmp_path / "m",
        progress=lambda seed, epoch, loss: heard.append((seed, epoch)))  # fmt: skip
    assert heard == [(3, 1)]
    facts = json.loads((tmp_path / "m" / "supermax.json").read_text())
    assert (facts["epochs"], facts["config"]["train"]["epochs"]) == (1, 2)


def test_a_diverged_seed_is_the_worst_and_is_not_hidden() -> None:
    nan = float("nan")
    assert module._median([0.9, nan, 0.8], higher=True) == 2
    assert module._median([0.1, nan, 0.3], higher=False) == 2
    assert module._median([0.9, 0.7], higher=True) == 1
    assert module._median([0.9, 0.7], higher=False) == 0
    examples, evaluations = judged(1, 6, 2, 2)
    bad = Evaluation({}, dict.fromkeys(evaluations[0].probabilities, [nan] * 3), {})
    silent: dict[str, list[Span]] = {name: [] for name in evaluations[0].spans}
    bad = replace(bad, spans=silent, metrics={"token_f1": nan})
    found = estimates(examples, [evaluations[0], bad], rounds=10)
    for name in ("macro_f1", "token_f1"):
        assert isinstance(found[name], Estimate)
        assert math.isnan(found[name].mean)


# Wrong input.


def test_mistakes_are_reported_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "prepare", lambda *a, **k: pytest.fail("too late"))
    for seeds in ([], [1, 1], [-1]):
        with pytest.raises(UserError, match="at least one seed"):
            run(tmp_path, seeds=seeds)
    for epochs in (0, 3):
        with pytest.raises(UserError, match="the configuration has 2"):
            run(tmp_path, epochs=epochs)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "x").touch()
    with pytest.raises(UserError, match="overwrites nothing"):
        run(tmp_path, folder=tmp_path / "there")
    with pytest.raises(UserError, match="has no metric 'token_f1'"):
        run(tmp_path, objective="token_f1")
    empty = replace(SPLITS, test=replace(SPLITS.test, spans=()))
    with pytest.raises(UserError, match="no rows to evaluate the agent 'joint' on"):
        refit(config("joint"), empty, seeds=[1], cache=tmp_path)


def test_few_groups_and_shared_texts_are_reported(tmp_path: Path) -> None:
    """The refit's result and the model card name them."""
    test = SPLITS.test
    two = replace(test, classes=tuple(replace(e, group=f"g{e.label}") for e in test.classes))
    known = replace(two.classes[0], text=SPLITS.train.classes[0].text.upper())
    two = replace(two, classes=(known, *two.classes[1:]), spans=())
    splits = replace(SPLITS, test=two)
    folder = tmp_path / "model"
    found = refit(config("criteria"), splits, seeds=[1], cache=tmp_path / "cache", folder=folder)
    assert all(math.isnan(estimate.low) for estimate in found.metrics.values())
    card = (folder / "README.md").read_text()
    few, shared = found.cautions
    assert few.startswith("The test split has 2 groups of examples.")
    assert shared.startswith("1 text of the test split also occurs in train or validation")
    for caution in found.cautions:
        assert f"**Note:** {caution}" in card
    assert "f1 of yes" in card
    larger = replace(SPLITS, test=part(40, 3))
    assert cautions(larger.test.classes, larger) == ()
