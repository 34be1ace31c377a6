"""The long search: its table from recorded trials, its pack, its samples, and a short run."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import threading
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState, create_trial
from scipy.stats import binomtest

from supermax._util.attributes import DATA, RESULT
from supermax.engine.storage.locations import find_location
from supermax.engine.storage.run_folder import LedgerEntry, StudyFolder
from supermax.engine.trial.faults import Culprit, Fault, Kind
from supermax.engine.trial.oom import OomDetails
from supermax.memory.devices import Gpu
from supermax.studies import make_storage
from tests import ROOT

BENCHMARKS = ROOT / "benchmarks"
sys.path.append(str(BENCHMARKS))

import long_search_files  # noqa: E402
import long_search_pack  # noqa: E402
import long_search_record  # noqa: E402
import long_search_run  # noqa: E402
import long_search_summary  # noqa: E402
import long_search_table  # noqa: E402
from long_search_files import LongSearchFolder  # noqa: E402

GIB = 1 << 30
BASE, LARGE = "untrained/bert-base-uncased", "untrained/bert-large-uncased"
PLAN = {"micro_batch": 16, "checkpoint_activations": False, "memory": 10 * GIB}
CHOICES = {"encoder.name": [BASE, LARGE]}
AGAIN = "tried again with another memory plan"


def params(**given: object) -> dict[str, Any]:
    return {"encoder.name": BASE, "train.effective_batch": 32, "text.max_length": 512, **given}


def fault(attempt: int, kind: Kind, memory: OomDetails | None, at: float) -> LedgerEntry:
    found = Fault(kind, Culprit.CONFIGURATION, "short", "", "here")
    return {
        "at": at, "fault": asdict(found), "attempt": attempt, "decision": AGAIN, "again": True,
        "replanned": True, "memory": asdict(memory) if memory else None,
    }  # fmt: skip


def launch(attempt: int, at: float) -> LedgerEntry:
    return {"at": at, "launch": attempt, "cell": 1, "reserved": 10 * GIB, "plan": PLAN}


def add(
    study: optuna.Study, state: TrialState, ledger: list[LedgerEntry], ended: float, **given: Any
) -> None:
    """Add a trial as a run leaves it behind."""
    sampled = params(**given.pop("params", {}))
    reports = given.pop("reports", 2)
    trial = create_trial(
        state=state,
        value=0.5 if state is TrialState.COMPLETE else None,
        params=sampled,
        distributions={
            k: CategoricalDistribution(CHOICES.get(k, [v])) for k, v in sampled.items()
        },
        intermediate_values=dict.fromkeys(range(reports), 0.5),
        **given,
    )
    trial.datetime_start = datetime.fromtimestamp(ended - 1)
    trial.datetime_complete = datetime.fromtimestamp(ended) if state.is_finished() else None
    study.add_trial(trial)
    folder = StudyFolder(find_location(study).run_dir)
    folder.trial(len(study.trials) - 1).write_records(ledger)


@pytest.fixture
def files(tmp_path: Path) -> LongSearchFolder:
    """Return a folder of one piece of 100 s: a turn of criteria, and one of evidence that ended
    before its study was created."""
    files = LongSearchFolder(tmp_path / "long-search")
    files.path.mkdir()
    files.options.write_text(json.dumps(asdict(long_search_run.Options())))
    long_search_files.append(
        files.pieces, {"piece": 1, "started": 1000.0, "ended": 1100.0, "gpu": None, "machine": {}}
    )
    turn = {"piece": 1, "agent": "criteria", "started": 1000.0, "asked": 1080.0, "ended": 1090.0}
    long_search_files.append(files.turns, {**turn, "code": 130})
    late = {"piece": 1, "agent": "evidence", "started": 1090.0, "ended": 1100.0, "code": 130}
    long_search_files.append(files.turns, late)
    busy = [(1005, 0), (1015, 50), (1025, 100), (1085, 90), (1095, 0)]
    files.gpu.write_text("".join(f"{at}.0,{share},1000\n" for at, share in busy))
    study = optuna.create_study(
        storage=make_storage(str(files.study("criteria"))), study_name="criteria"
    )
    study.set_user_attr(DATA, {"splits": {"train": {"rows": 100}}})
    short = OomDetails(requested=GIB, allocated=10 * GIB, reserved=10 * GIB, limit=10 * GIB)
    result = {RESULT: {"seconds": 20.0, "metrics": {}}}
    complete, pruned, failed, running = (
        TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING
    )  # fmt: skip
    ledger = [launch(1, 1005), fault(1, Kind.DEVICE_OOM, short, 1009), launch(2, 1010)]
    add(study, complete, ledger, 1040, user_attrs=result, params={"encoder.name": LARGE})
    add(study, pruned, [launch(1, 1030)], 1050, reports=1)
    ledger = [launch(1, 1050), fault(1, Kind.HOST_OOM, None, 1060)]
    short_of = {"constraints:supermax:host_oom": 1.0}
    add(study, pruned, ledger, 1060, system_attrs=short_of, reports=0)
    never = {**fault(1, Kind.EXCEPTION, None, 1061), "again": False, "decision": "failed"}
    add(study, failed, [launch(1, 1060), never], 1061, reports=0)
    stopped: LedgerEntry = {"at": 1085, "stopped": 1}
    add(study, running, [launch(1, 1062), stopped], 1085, reports=0)
    add(study, running, [launch(1, 1063)], 1085, reports=0)
    return files


def test_trials_are_counted_by_how_they_ended(files: LongSearchFolder) -> None:
    found = long_search_summary.summary(files)
    columns = ("finished", "by_themselves", "interrupted", "short", "attempts")
    counts = {r["name"]: tuple(r[c] for c in columns) for r in found["all"] + found["by_encoder"]}
    assert counts == {
        "all": (4, 2, 2, 2, 5),
        "bert-base-uncased": (3, 1, 2, 1, 3),
        "bert-large-uncased": (1, 1, 0, 1, 2),
    }
    assert {(line["state"], line["reason"]): line["trials"] for line in found["by_reason"]} == {
        ("COMPLETE", "completed"): 1,
        ("PRUNED", "pruned by the pruner"): 1,
        ("PRUNED", "host_oom"): 1,
        ("FAIL", "exception"): 1,
        ("RUNNING", "interrupted"): 2,
    }


def test_shortages_are_a_share_of_the_attempts_that_no_piece_interrupted(
    files: LongSearchFolder,
) -> None:
    found = long_search_summary.summary(files)["shortages"]
    assert (found["attempts"], found["interrupted"], found["short"]) == (5, 2, 2)
    first, second = found["each"]
    assert first["encoder"] == "bert-large-uncased"
    assert (first["micro_batch"], first["effective_batch"], first["length"]) == (16, 32, 512)
    assert (first["estimate"], first["peak"]) == (10 * GIB, 11 * GIB)
    assert (first["cause"], second["cause"]) == ("estimate too low", "unknown")


def test_gpu_use_is_told_with_and_without_start_up(
    files: LongSearchFolder,
) -> None:
    """The trial that completed at 1040 trained for 20 s: the first step was at 1020."""
    found = long_search_summary.summary(files)["gpu"]
    assert found["pieces"] == pytest.approx(0.48)
    assert found["from_first_step_of_turn"] == pytest.approx(0.95)
    assert found["until_pause_requested"] == pytest.approx(1.0)
    assert found["from_first_step_of_piece"] == pytest.approx(1.9 / 3)
    assert found["start_up_seconds"] == [20.0]


def test_without_a_complete_trial_the_first_launch_counts(
    files: LongSearchFolder,
) -> None:
    trials = [t for t in long_search_record.trials_of(files) if t.training_from is None]
    firsts = [first for _, first in long_search_record.first_steps(files, trials)]
    assert firsts == [1030, None]


def test_rates_are_those_of_trials_that_ended_by_themselves(
    files: LongSearchFolder,
) -> None:
    found = long_search_summary.summary(files)["rates"]
    assert found["per_hour"] == pytest.approx(72)
    assert found["by_agent"] == {
        "criteria": {"trials": 2, "per_hour": pytest.approx(80), "at_once": 2},
        "evidence": {"trials": 0, "per_hour": 0.0, "at_once": 0},
    }
    assert found["samples_per_trial"] == 150  # 200 of the large encoder, 100 of the base one
    rate = 3600 * 148 / 150
    assert found["baseline_at_most"] == pytest.approx((0.85 * rate, 0.9 * rate))
    slower = 300 / (200 * 24 * 1024**2 / (12 * 768**2) + 100)
    assert found["baseline_extrapolated"][0] == pytest.approx(0.85 * rate * slower)


def test_the_table_fails_if_a_threshold_is_missed(
    files: LongSearchFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    into = files.path.parent / "results" / "long-search.json"
    assert long_search_table.table(files.path, into) == 1
    shown = capsys.readouterr().out
    assert "11.00 GiB" in shown
    rows = {
        name: (measured, met) for name, measured, _, met in json.loads(into.read_text())["rows"]
    }
    assert rows["attempts short of memory"][1] is False
    assert rows["GPU busy, from the first training step of each turn on"] == ("95.0%", True)


def test_without_attempts_nothing_is_met_or_missed(tmp_path: Path) -> None:
    files = LongSearchFolder(tmp_path)
    files.options.write_text("{}")
    rows = long_search_table.thresholds(long_search_summary.summary(files))
    assert {met for *_, met in rows} == {None}


@pytest.mark.parametrize(
    ("kind", "allocated", "reserved", "cause"),
    [
        (Kind.FRAGMENTED, 5, 9, "fragmentation"),
        (Kind.DEVICE_OOM, 10, 10, "estimate too low"),
        (Kind.DEVICE_OOM, 8, 10, "fragmentation"),
        (Kind.DEVICE_OOM, 5, 5, "neighbours"),
    ],
)
def test_the_cause_of_a_shortage(kind: Kind, allocated: int, reserved: int, cause: str) -> None:
    memory = OomDetails(1 * GIB, allocated * GIB, reserved * GIB, 10 * GIB)
    assert long_search_record.cause_of(kind, memory) == cause


@pytest.mark.parametrize(("count", "number"), [(0, 35), (3, 33), (33, 33)])
def test_the_interval_is_that_of_scipy(count: int, number: int) -> None:
    expected = binomtest(count, number).proportion_ci(method="wilson")
    assert long_search_summary.wilson(count, number) == pytest.approx(
        (expected.low, expected.high)
    )
    assert long_search_summary.wilson(0, 0) == (0, 1)


def test_a_pack_has_studies_and_ledgers_but_no_weights(
    files: LongSearchFolder, tmp_path: Path
) -> None:
    (run,) = files.path.glob("criteria.db.supermax/criteria/trials/00000")
    (run / "weights.safetensors").write_bytes(b"weights")
    (run / "checkpoint").mkdir()
    (run / "checkpoint" / "state.json").write_text("{}")
    pack = tmp_path / "out" / "long-search.tar.gz"
    assert long_search_pack.pack(files.path, pack) == 0
    copy = LongSearchFolder(tmp_path / "copy")
    long_search_pack.unpack(pack, copy.path)
    assert not list(copy.path.rglob("weights*")) + list(copy.path.rglob("checkpoint"))
    assert long_search_summary.summary(copy) == long_search_summary.summary(files)
    with pytest.raises(SystemExit, match="is not empty"):
        long_search_pack.unpack(pack, copy.path)


def test_the_gpu_is_sampled_until_the_end(tmp_path: Path) -> None:
    thrice, reads = threading.Event(), []

    def read() -> tuple[Gpu, ...]:
        reads.append(1)
        if len(reads) == 3:
            thrice.set()
        return (Gpu(0, "one", used=5, total=9, busy=0.25),)

    with long_search_run.sampled(tmp_path / "gpu.csv", read):
        assert thrice.wait(10)
    written = (tmp_path / "gpu.csv").read_text().splitlines()
    assert len(written) == len(reads) >= 3
    assert written[0].endswith(",25,5")


def test_later_pieces_have_the_options_of_the_first(tmp_path: Path) -> None:
    files = LongSearchFolder(tmp_path / "long-search")
    given = {"encoders": ["tiny-bert"], "posts": 20, "workers": "3"}
    options = long_search_run.prepare(files, given)
    assert long_search_run.prepare(files, {}) == long_search_run.prepare(files, given) == options
    with pytest.raises(SystemExit, match="other values of workers"):
        long_search_run.prepare(files, {"workers": "auto"})


def test_pairs_are_the_same_for_a_seed_and_reach_512_words(tmp_path: Path) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    for path in (one, two):
        long_search_run.write_pairs(path, long_search_run.Options())
    assert one.read_bytes() == two.read_bytes()
    with one.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    words = sorted(len(row["passage"].split()) for row in rows)
    assert (len(rows), words[-1]) == (530, 1000)
    assert words[len(words) // 2] < 256 < 512 < words[int(0.9 * len(words))]
    for row in rows:
        start = int(row["start"] or 0)
        assert (row["shown"] == "yes") == bool(row["answer"])
        assert row["passage"][start : start + len(row["answer"])] == row["answer"]


@pytest.mark.slow
def test_a_long_search_resumes_from_its_pack_in_another_folder(tmp_path: Path) -> None:
    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, BENCHMARKS / "long_search.py", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)

    one, two, pack = tmp_path / "one", tmp_path / "two", tmp_path / "long-search.tar.gz"
    tiny = ["--encoders", "tiny-bert", "tiny-deberta", "--posts", 40, "--workers", 2]
    agents = ["--agents", "criteria", "joint"]
    first = call("run", one, "--seconds", 150, "--pack", pack, *agents, *tiny)
    assert first.returncode == 0, first.stderr
    before = long_search_record.trials_of(LongSearchFolder(one))
    left = {(t.agent, t.number) for t in before if not t.finished}
    assert left
    second = call("run", two, "--seconds", 150, "--unpack", pack, *agents)
    assert second.returncode == 0, second.stderr
    after = {(t.agent, t.number): t for t in long_search_record.trials_of(LongSearchFolder(two))}
    assert {key for key in left if after[key].by_itself and len(after[key].attempts) == 2}
    assert len(after) > len(before)
    into = tmp_path / "long-search.json"
    assert call("table", two, "--into", into).returncode == 0
    found = json.loads(into.read_text())
    assert found["pieces"] == 2
    codes = found["exit_codes_of_turns"]  # None: killed, since it did not pause in time
    assert sum(codes.values()) == 4
    assert set(codes) <= {"130", "None"}
    assert found["all"][0]["share"] == 1.0
