"""Simulated searches: workers, budget, checkpoints, seeds, and agreement with plain Optuna."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import ROOT
from tests.benchmarks.toy import EPOCHS, toy_table
from tests.few import quick_are

from contenders import CONTENDERS, Setting, search  # isort: skip
from peer import PEERS, Peer, Project  # isort: skip
from simulate import Replay, simulate  # isort: skip
from tables import Params  # isort: skip

IN_PROCESS = sorted(CONTENDERS.keys() - PEERS.keys())


class Recorder:
    """Method that pauses each trial after every third epoch and continues the oldest."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.most_running = 0
        self.reports: list[tuple[int, int]] = []
        self._paused: list[int] = []
        self._asked = 0

    def ask(self) -> tuple[int, Params] | None:
        if len(self._paused) > 3:
            number = self._paused.pop(0)
        else:
            number, self._asked = self._asked, self._asked + 1
        self.running.add(number)
        self.most_running = max(self.most_running, len(self.running))
        return number, {"x": number / 100}

    def report(self, trial: int, epoch: int, loss: float) -> bool:
        self.reports.append((trial, epoch))
        if epoch % 3:
            return True
        self.running.discard(trial)
        if epoch < EPOCHS:
            self._paused.append(trial)
        return False


@pytest.mark.parametrize("workers", [1, 4, 8])
def test_workers_and_budget_are_respected(workers: int) -> None:
    method = Recorder()
    result = simulate(toy_table(), method, budget=200, workers=workers)
    assert method.most_running == workers
    assert len(result.epochs) == 200
    at_once = Counter(epoch.end for epoch in result.epochs)
    assert max(at_once.values()) == workers
    assert result.epochs[-1].end == 200 / workers


def test_a_trial_continues_after_its_last_epoch() -> None:
    method = Recorder()
    simulate(toy_table(), method, budget=200, workers=4)
    for trial in {trial for trial, _ in method.reports}:
        epochs = [epoch for number, epoch in method.reports if number == trial]
        assert epochs == list(range(1, len(epochs) + 1))
    assert any(epoch == EPOCHS for _, epoch in method.reports)


def test_idle_workers_wait_for_reports() -> None:
    class OneAtATime(Recorder):
        def ask(self) -> tuple[int, Params] | None:
            return None if self.running else super().ask()

    result = simulate(toy_table(), OneAtATime(), budget=20, workers=4)
    assert [epoch.end for epoch in result.epochs] == list(range(1, 21))


def test_a_method_with_nothing_left_ends_the_search() -> None:
    class Once(Recorder):
        def ask(self) -> tuple[int, Params] | None:
            return None if self._asked else super().ask()

    assert len(simulate(toy_table(), Once(), budget=20, workers=4).epochs) == 3


def test_a_running_trial_cannot_start_again() -> None:
    class Twice(Recorder):
        def ask(self) -> tuple[int, Params] | None:
            return 0, {"x": 0.0}

    with pytest.raises(ValueError, match="Trial 0 runs"):
        simulate(toy_table(), Twice(), budget=20, workers=2)


def _most_at_once(result: Replay) -> int:
    return max(Counter(epoch.end for epoch in result.epochs).values())


@pytest.mark.parametrize("contender", quick_are(["supermax", "optuna", "top-k"], IN_PROCESS))
def test_contenders_respect_budget_workers_and_seed(contender: str) -> None:
    first, again, other = (
        search(contender, toy_table(), Setting(seed, 15 * EPOCHS, workers=4)) for seed in (1, 1, 2)
    )
    assert first.epochs == again.epochs != other.epochs
    assert len(first.epochs) == 15 * EPOCHS
    assert _most_at_once(first) == 4


@pytest.mark.parametrize(
    ("plain", "replayed"),
    [
        ("optuna", "replayed-optuna"),
        ("optuna-hyperband", "replayed-optuna-hyperband"),
        ("optuna-no-pruning", "replayed-no-pruning"),
        ("random", "replayed-random"),
    ],
)
@pytest.mark.parametrize("workers", quick_are([4], [1, 4]))
def test_the_coordinator_searches_as_plain_optuna(plain: str, replayed: str, workers: int) -> None:
    setting = Setting(seed=3, budget=25 * EPOCHS, workers=workers)
    one, other = (search(name, toy_table(), setting) for name in (plain, replayed))
    assert one.epochs == other.epochs


def test_top_k_trains_the_best_of_the_first_epoch() -> None:
    result = search("top-k", toy_table(), Setting(seed=1, budget=20 * EPOCHS, workers=4))
    screened, trained = result.epochs[: 10 * EPOCHS], result.epochs[10 * EPOCHS :]
    assert result.trials == len({epoch.trial for epoch in screened}) == 10 * EPOCHS
    best = sorted(screened, key=lambda epoch: epoch.loss)[:12]
    assert {epoch.trial for epoch in trained} == {epoch.trial for epoch in best}


PROGRAM = f"""
import sys
sys.path.append({str(ROOT / "benchmarks" / "search" / "peers")!r})
from serve import serve

class Halving:
    def __init__(self, spec):
        self.low, self.high = spec.space["x"]["low"], spec.space["x"]["high"]
        self.asked = 0
    def ask(self):
        self.asked += 1
        return self.asked, {{"x": self.low + (self.high - self.low) / 2**self.asked}}
    def report(self, trial, epoch, loss):
        print("a project that prints")
        return epoch < trial

serve(lambda spec: ("1.0", Halving(spec)))
"""


def test_a_peer_searches_in_its_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    monkeypatch.setitem(PEERS, "toy", Project("toy", "toy==1.0", str(program)))
    table, python = toy_table(), Path(sys.executable)
    with Peer("toy", table, seed=1, budget=6, workers=1, python=python) as peer:
        result = simulate(table, peer, budget=6, workers=1)
    assert [epoch.trial for epoch in result.epochs] == [1, 2, 2, 3, 3, 3]
    assert [epoch.loss for epoch in result.epochs] == [1.0, 1.5, 1.0, 1.75, 1.25, 0.75 + 1 / 3]


@pytest.mark.parametrize(
    ("text", "pinned", "message"),
    [
        ("raise SystemExit(1)", "toy==1.0", "toy has failed"),
        (PROGRAM, "toy==2.0", r"toy needs toy==2\.0, not 1\.0"),
    ],
)
def test_a_peer_that_fails_or_has_another_version_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, pinned: str, message: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(text, encoding="utf-8")
    monkeypatch.setitem(PEERS, "toy", Project("toy", pinned, str(program)))
    python = Path(sys.executable)
    with pytest.raises(RuntimeError, match=message):
        Peer("toy", toy_table(), seed=1, budget=6, workers=1, python=python)
