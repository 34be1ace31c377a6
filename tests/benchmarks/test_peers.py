"""Peers of other projects: the protocol with a program of its own, and each installed project."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests import ROOT
from tests.benchmarks.toy import EPOCHS, toy_table

from contenders import Setting, search  # isort: skip
from peer import PEERS, Peer, Project, python_of  # isort: skip
from simulate import simulate  # isort: skip

PEERS_FOLDER = ROOT / "benchmarks" / "search" / "peers"
PROGRAM = f"""
import sys
sys.path.append({str(PEERS_FOLDER)!r})
from serve import serve

class PausesAndPromotes:
    def __init__(self, spec):
        self.spec, self.paused, self.asked = spec, [], 0
        assert spec.space == {{"x": {{"type": "float", "low": -1.0, "high": 1.0, "log": False}}}}
        assert (spec.epochs, spec.defaults, spec.seed) == ({EPOCHS}, {{"x": 0.5}}, 7)
    def ask(self):
        if len(self.paused) == 2:
            return self.paused.pop(0), {{"x": 0.0}}
        if self.asked == 3:
            return None
        self.asked += 1
        return self.asked, {{"x": self.asked / 10}}
    def report(self, trial, epoch, loss):
        if self.spec.variant == "fails" and epoch == 2:
            raise RuntimeError("a fault of the project")
        if epoch == 1:
            self.paused.append(trial)
        return epoch > 1

serve(lambda spec: ("1.0", PausesAndPromotes(spec)))
"""


def test_what_peers_share_needs_neither_supermax_nor_torch() -> None:
    """Environments of peers do not have them."""
    code = (
        "import sys; sys.modules |= {'supermax': None, 'torch': None}; "
        f"sys.path[:0] = [{str(PEERS_FOLDER)!r}, {str(PEERS_FOLDER.parent)!r}]; "
        "import optuna_method, serve"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def toy_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    for variant in ("works", "fails"):
        monkeypatch.setitem(PEERS, variant, Project("toy", "toy==1.0", str(program), variant))


def toy(variant: str) -> Peer:
    return Peer(variant, toy_table(), seed=7, budget=50, workers=1, python=Path(sys.executable))


@pytest.mark.usefixtures("toy_peer")
def test_a_peer_pauses_promotes_and_has_nothing_left() -> None:
    with toy("works") as peer:
        result = simulate(toy_table(), peer, budget=50, workers=1)
    whole = list(range(2, EPOCHS + 1))
    assert [epoch.trial for epoch in result.epochs] == [1, 2, *[1 for _ in whole], 3, *[2] * 8]
    losses = [epoch.loss for epoch in result.epochs if epoch.trial == 1]
    assert losses == pytest.approx([0.1 + 1 / epoch for epoch in range(1, EPOCHS + 1)])
    assert len(result.epochs) < 50


@pytest.mark.usefixtures("toy_peer")
def test_a_peer_that_fails_in_the_search_is_named_and_leaves_no_process() -> None:
    with toy("fails") as peer, pytest.raises(RuntimeError, match="fails has failed"):
        simulate(toy_table(), peer, budget=50, workers=1)
    assert not _programs_running()


@pytest.mark.usefixtures("toy_peer")
def test_the_process_of_a_peer_ends_with_an_error_of_the_simulator() -> None:
    with pytest.raises(KeyboardInterrupt):
        _interrupted(toy("works"))
    assert not _programs_running()


def _interrupted(peer: Peer) -> None:
    with peer:
        assert peer.ask() == (1, {"x": 0.1})
        assert _programs_running()
        raise KeyboardInterrupt


def _programs_running() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "program.py" in " ".join(child.cmdline())]


@pytest.mark.parametrize("entry", ["nobody=/bin/sh", "smac=/no/such/file", "smac"])
def test_an_unknown_project_or_interpreter_is_refused(entry: str) -> None:
    with pytest.raises(SystemExit, match="PROJECT is one of neps, optunahub, smac"):
        python_of(entry)


def test_an_interpreter_is_named_by_its_project() -> None:
    assert python_of(f"smac={sys.executable}") == ("smac", Path(sys.executable))


def test_a_peer_without_interpreter_says_which_one_it_needs() -> None:
    with pytest.raises(ValueError, match="neps-priorband needs --python neps=PATH"):
        search("neps-priorband", toy_table(), Setting(1, 9, 1))


def _installed() -> dict[str, Path]:
    """Read SUPERMAX_TEST_PEERS: entries PROJECT=PATH as for --python, with spaces between."""
    return dict(python_of(entry) for entry in os.environ.get("SUPERMAX_TEST_PEERS", "").split())


@pytest.mark.parametrize("name", sorted(PEERS))
def test_an_installed_peer_respects_budget_workers_and_seed(name: str) -> None:
    pythons = _installed()
    if PEERS[name].project not in pythons:
        pytest.skip(f"SUPERMAX_TEST_PEERS has no {PEERS[name].project}=PATH")
    first, again, other = (
        search(name, toy_table(), Setting(seed, 15 * EPOCHS, 4, pythons)) for seed in (1, 1, 2)
    )
    assert first.epochs == again.epochs != other.epochs
    assert len(first.epochs) == 15 * EPOCHS
    assert max(Counter(epoch.end for epoch in first.epochs).values()) == 4
    lengths = Counter(epoch.trial for epoch in first.epochs).values()
    assert max(lengths) == EPOCHS > min(lengths), "no trial was stopped or paused early"
