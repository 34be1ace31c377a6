"""Training loop: bitwise resume, early stopping, best weights, checkpoints."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from supermax.errors import Infeasible, UserError
from supermax.training.checkpoint import Saver
from supermax.training.config import read_config, with_decoding
from supermax.training.data.examples import Corpus, Example
from supermax.training.eval.evaluate import evaluation_of
from supermax.training.loop import Result, train
from supermax.training.prepare import Prepared, prepare
from supermax.training.steps.batches import by_length, micro_batches, order
from supermax.training.steps.execution import best_precision
from tests import ROOT
from tests.few import quick_are
from tests.training.corpora import OPEN, Quiet, Stopped, config, corpus, ready

NOISY = {"encoder": {"dropout": 0.2, "attention_dropout": 0.1}, "head": {"dropout": 0.3}}


def same(one: Result, other: Result) -> bool:
    weights = all(torch.equal(one.weights[n], other.weights[n]) for n in one.weights)
    return weights and one.curve == other.curve and one.metrics == other.metrics


@pytest.mark.parametrize(
    "agent", quick_are(["criteria", "evidence"], ["criteria", "evidence", "share", "joint"])
)
def test_the_same_seed_gives_the_same_bits(tmp_path: Path, agent: str) -> None:
    one, other = (train(ready(tmp_path, config(agent, **NOISY)), Quiet()) for _ in range(2))
    assert same(one, other)
    third = train(ready(tmp_path, config(agent, **NOISY, train={"seed": 2})), Quiet())
    assert not same(one, third)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_8bit", "adafactor", "lion"])
@pytest.mark.parametrize("stop_at", quick_are([3], [1, 3, 4, 7]))
def test_an_interrupted_trial_resumes_bitwise(
    tmp_path: Path, optimizer: str, stop_at: int
) -> None:
    """It stops within an epoch and between two epochs, and resumes in a new model."""
    wanted = config(**NOISY, optim={"name": optimizer}, schedule={"name": "cosine"})
    whole = train(ready(tmp_path, wanted), Quiet())
    folder = tmp_path / "state"
    folder.mkdir()
    with pytest.raises(Stopped):
        train(ready(tmp_path, wanted), Quiet(stop_at), folder)
    torch.manual_seed(12345)  # whatever the new process has drawn meanwhile
    np.random.seed(3)
    torch.set_num_threads(2)
    again = ready(tmp_path, wanted)
    rest = Quiet()
    assert same(train(again, rest, folder), whole)
    assert len(rest.values) <= 2
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("asked", ["report", "should_prune"])
def test_a_stop_that_comes_with_an_answer_loses_nothing(tmp_path: Path, asked: str) -> None:
    class Answered(Quiet):
        stop_requested = False

        def answer(self) -> None:
            self.stop_requested = True
            raise Stopped

        def report(self, value: float, epoch: int) -> None:
            if asked == "report":
                self.answer()

        def should_prune(self) -> bool:
            self.answer()
            return False

    wanted = config(**NOISY, train={"epochs": 2})
    whole = train(ready(tmp_path, wanted), Quiet())
    folder = tmp_path / "state"
    folder.mkdir()
    with pytest.raises(Stopped):
        train(ready(tmp_path, wanted), Answered(), folder)
    rest = Quiet()
    assert same(train(ready(tmp_path, wanted), rest, folder), whole)
    assert len(rest.values) == 1


def test_a_state_is_saved_a_minute_after_the_last_and_is_whole_or_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[int] = []
    save = Saver.save
    monkeypatch.setattr(
        Saver,
        "save",
        lambda self, state: (saved.append(state["loop"]["epoch"]), save(self, state)),
    )
    times = iter(range(0, 10_000, 25))  # every look at the clock is 25 s later
    wanted = config(train={"epochs": 6})
    train(ready(tmp_path, wanted, n=12), Quiet(), tmp_path, clock=lambda: float(next(times)))
    assert saved == [2, 4] or saved == [3, 6] or saved == [2, 4, 6]
    assert not list(tmp_path.glob("*.tmp"))


def test_a_full_disk_raises(tmp_path: Path) -> None:
    saver = Saver(tmp_path / "nowhere")
    saver.save({"x": torch.zeros(1)})
    with pytest.raises(FileNotFoundError):
        saver.wait()


def test_a_saved_state_does_not_change_with_training(tmp_path: Path) -> None:
    saver = Saver(tmp_path)
    weight = torch.zeros(4)
    saver.save({"weight": weight})
    weight += 1
    saver.wait()
    loaded = saver.load()
    assert loaded is not None
    assert torch.equal(loaded["weight"], torch.zeros(4))


def scripted(monkeypatch: pytest.MonkeyPatch, values: list[float]) -> None:
    """Patch evaluations to return these values."""
    real = Prepared.evaluate
    script = iter(values)

    def scored(prepared: Any) -> Any:
        result = real(prepared)
        value = next(script, values[-1])
        return type(result)({**result.metrics, "macro_f1": value}, {}, {})

    monkeypatch.setattr(Prepared, "evaluate", scored)


def test_early_stopping_waits_for_its_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [0.1, 0.5, 0.505, 0.4, 0.3, 0.9])
    wanted = config(train={"epochs": 9, "patience": 3, "min_delta": 0.01})
    result = train(ready(tmp_path, wanted, n=8), Quiet())
    assert result.epochs == 5  # two that were better, three that were not
    assert result.best_epoch == 2


def test_the_best_weights_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, [0.1, 0.9, 0.2])
    three = train(ready(tmp_path, config(train={"epochs": 3}), n=8), Quiet())
    scripted(monkeypatch, [0.1, 0.9])
    monkeypatch.undo()
    assert three.best_epoch == 2
    prepared = ready(tmp_path, config(train={"epochs": 3}), n=8)
    prepared.model.load_state_dict(three.weights)


def test_a_trial_is_pruned_when_it_should_be(tmp_path: Path) -> None:
    class Pruning(Quiet):
        def should_prune(self) -> bool:
            return len(self.values) == 2

        def prune(self) -> Any:
            raise Stopped

    reporter = Pruning()
    with pytest.raises(Stopped):
        train(ready(tmp_path, config(train={"epochs": 5}), n=8), reporter)
    assert len(reporter.values) == 2


def test_it_learns(tmp_path: Path) -> None:
    """The loss falls, and the training examples are predicted correctly."""
    wanted = config(train={"epochs": 12, "effective_batch": 8}, optim={"lr": 3e-3})
    few = corpus(24, 1)
    result = train(prepare(wanted, few, few, cache=tmp_path), Quiet())
    assert result.curve[-1]["train_loss"] < 0.7 * result.curve[0]["train_loss"]
    assert result.value > 0.85


@pytest.mark.parametrize("objective", ["token_f1", "null_accuracy"])
def test_open_decoding_is_chosen_for_the_objective(tmp_path: Path, objective: str) -> None:
    prepared = replace(ready(tmp_path, config("evidence", **OPEN)), objective=objective)
    found = train(prepared, Quiet()).evaluation
    assert found.decoding is not None
    assert found.threshold is not None
    # The settings that it delivers, on the same rows: at least as good as any other threshold.
    outputs = prepared.executor.run_inference(prepared.validation, 1)
    values = []
    for threshold in (found.threshold, -99.0, 0.0, 99.0):
        concrete = with_decoding(prepared.config, found.decoding)
        evaluated = evaluation_of(outputs, concrete, prepared.validation, threshold=threshold)
        values.append(evaluated.metrics[objective])
    assert values[0] >= max(values) - 1e-9


def test_a_configuration_with_open_decoding_decodes_nothing_by_itself(tmp_path: Path) -> None:
    prepared = ready(tmp_path, config("evidence", **OPEN))
    outputs = prepared.executor.run_inference(prepared.validation, 1)
    with pytest.raises(UserError, match=r"leaves decode\.n_best or decode\.max_answer open"):
        evaluation_of(outputs, prepared.config, prepared.validation, threshold=0.0)


@pytest.mark.parametrize("policy", ["none", "threshold", "ratio", "calibrated"])
def test_every_no_answer_policy_is_real(tmp_path: Path, policy: str) -> None:
    result = train(ready(tmp_path, config("evidence", no_answer={"policy": policy})), Quiet())
    assert 0 <= result.metrics["token_f1"] <= 1
    assert (result.evaluation.threshold is not None) == (policy == "calibrated")
    given = [bool(spans) for spans in result.evaluation.spans.values()]
    if policy == "none":
        assert all(given)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(1, 40), st.integers(0, 5), st.integers(0, 5))
def test_an_epoch_sees_everything_once(n: int, size: int, seed: int, epoch: int) -> None:
    lengths = np.random.RandomState(seed).randint(1, 60, n)
    batches = order(lengths, size, seed, epoch)
    assert sorted(i for batch in batches for i in batch) == list(range(n))
    assert sum(len(batch) != size for batch in batches) <= 1
    again = order(lengths, size, seed, epoch)
    assert all((a == b).all() for a, b in zip(batches, again, strict=True))
    for batch in batches:
        assert [i for some in micro_batches(batch, 3) for i in some] == list(batch)
    assert sorted(i for batch in by_length(lengths, size) for i in batch) == list(range(n))


def test_precision_follows_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert best_precision("cpu") == "fp32"
    for native, best in ((True, "bf16"), (False, "fp16")):
        monkeypatch.setattr(
            torch.cuda,
            "is_bf16_supported",
            lambda including_emulation=True, native=native: native or including_emulation,
        )
        assert best_precision("cuda") == best


IN_BF16 = """
import sys
from pathlib import Path
import torch
from supermax.training.loop import train
from tests.training.corpora import Quiet, config, ready
supported = torch.ops.mkldnn._is_mkldnn_bf16_supported()
wanted = config("share", encoder={"name": "tiny-modernbert"}, train={"epochs": 1})
train(ready(Path(sys.argv[1]), wanted, n=6, precision=sys.argv[2]), Quiet())
print(supported, torch.backends.mkldnn.enabled)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "isa"),
    list(product(["bf16", "fp32"], ["DEFAULT", "AVX2"])),
)
def test_a_cpu_without_bf16_trains_in_it_without_a_warning(
    tmp_path: Path, precision: str, isa: str
) -> None:
    """oneDNN is made to take this CPU for an older one, which is possible on x86."""
    said = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", IN_BF16, str(tmp_path), precision],
        cwd=ROOT,
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": isa, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.split()
    supported, used = said
    if platform.machine() == "x86_64" and isa == "AVX2":
        assert supported == "False"
    assert used == (supported if precision == "bf16" else "True")


# Wrong input.


def test_every_wrong_key_is_named_at_once() -> None:
    with pytest.raises(UserError) as caught:
        read_config(
            {
                "encoder": {"name": "tiny", "dropout": 2},
                "optim": {"name": "adamm", "lrr": 1},
                "trian": {},
            }
        )
    text = str(caught.value)
    for words in (
        "encoder.dropout",
        "optim.name",
        "did you mean 'optim.lr'",
        "did you mean 'train'",
    ):
        assert words in text


def test_an_agent_without_its_data_names_what_it_needs(tmp_path: Path) -> None:
    only = Corpus("mine", ("a", "b"), (Example("1", "1", "text", "", 0),) * 3)
    with pytest.raises(UserError, match=r"'evidence' needs spans .*, which 'mine' does not have"):
        prepare(config("evidence"), only, only, cache=tmp_path)


def test_a_question_that_leaves_no_room_is_named_by_its_row(tmp_path: Path) -> None:
    long = "word " * 40
    rows = tuple(Example(f"row-{i}", str(i), "some text", long, i % 2) for i in range(4))
    with pytest.raises(Infeasible, match="leaves no room") as caught:
        prepare(config(), Corpus("m", ("a", "b"), rows), Corpus("m", ("a", "b"), rows),
                cache=tmp_path)  # fmt: skip
    assert "row-" in str(caught.value)
    assert "word word" not in str(caught.value)


def test_a_metric_that_the_agent_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no metric 'token_f1'"):
        prepare(config(), corpus(8), corpus(8), cache=tmp_path, objective="token_f1")
