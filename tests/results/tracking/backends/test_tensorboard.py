"""Event files that TensorBoard's own reader reads: curves, parameters, ends; torn and full."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from supermax.engine.storage.locations import find_location
from supermax.errors import UserError
from supermax.results.tracking import send_missing
from supermax.results.tracking.backend import (
    FINISHED,
    RUNNING,
    MetricPoint,
    NewRun,
    Run,
    Unreachable,
)
from supermax.results.tracking.backends.tensorboard import TensorBoard, read_events
from supermax.results.tracking.kinds import find_destination

pytest.importorskip("tensorboard")


@pytest.fixture
def board(tmp_path: Path, study: optuna.Study) -> TensorBoard:
    made = TensorBoard(find_destination(f"tensorboard:{tmp_path}/logs", find_location(study)))
    made.connect()
    return made


def new(key: str = "0123456789", parent: str | None = "study") -> NewRun:
    return NewRun(key, "trial 7", 0, "s", {"supermax.trial": "7"}, parent)


def point(step: int, value: float = 0.5) -> MetricPoint:
    return MetricPoint("curve/value", value, 1000, step)


def filled(study: optuna.Study) -> None:
    study.add_trials(
        create_trial(
            state=state,
            value=0.25 * number if state is TrialState.COMPLETE else None,
            params={"x": 0.5, "kind": "a"},
            distributions={
                "x": FloatDistribution(0, 1),
                "kind": CategoricalDistribution(["a", "b"]),
            },
            intermediate_values={step: number + step / 10 for step in range(3)},
        )
        for number, state in enumerate((TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED))
    )


def test_tensorboards_reader_reads_curves_parameters_and_ends(
    study: optuna.Study, tmp_path: Path
) -> None:
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
    from tensorboard.plugins.hparams import api_pb2, metadata

    filled(study)
    for sent in (3, 0):  # the second time nothing is left
        standing, shown = send_missing(study, "tensorboard")
        assert (standing.sent, standing.left, standing.trouble) == (sent, 0, None)
    assert shown == str(tmp_path / "tensorboard")
    reader = EventMultiplexer().AddRunsFromDirectory(shown).Reload()
    runs = {name.rpartition("/")[2].partition(".")[0]: name for name in reader.Runs()}
    assert set(runs) == {"study", "trial-0000", "trial-0001", "trial-0002"}
    for number in range(3):
        name = runs[f"trial-{number:04}"]
        curve = [
            (e.step, e.tensor_proto.double_val[0]) for e in reader.Tensors(name, "curve/value")
        ]
        assert curve == [(step, number + step / 10) for step in range(3)]
        plugin = reader.SummaryMetadata(name, metadata.SESSION_START_INFO_TAG).plugin_data
        started = metadata.parse_session_start_info_plugin_data(plugin.content)
        assert started.hparams["x"].number_value == 0.5
        assert started.hparams["kind"].string_value == "a"
        plugin = reader.SummaryMetadata(name, metadata.SESSION_END_INFO_TAG).plugin_data
        ended = metadata.parse_session_end_info_plugin_data(plugin.content)
        failed = number == 1
        assert ended.status == (api_pb2.STATUS_FAILURE if failed else api_pb2.STATUS_SUCCESS)
    (value,) = reader.Tensors(runs["trial-0000"], "value")
    assert value.tensor_proto.double_val[0] == 0.0
    (best,) = {
        event.tensor_proto.string_val[0]
        for event in reader.Tensors(runs["study"], "supermax.best.trial")
    }
    assert best == b"0"
    (folder,) = Path(shown).glob("*/trial-0000.*")
    assert (folder / "configuration.json").is_file()


def test_a_value_is_written_once_by_several_processes(board: TensorBoard, tmp_path: Path) -> None:
    experiment = board.experiment("s")
    run = board.create(experiment, new())
    board.log(run.id, {"x": 1}, [point(0), point(1)], {})
    other = TensorBoard(board_destination(board))
    assert other.find(experiment, new().key) == [Run(run.id, RUNNING)]
    assert other.history(run.id, "curve/value") == {0: 0.5, 1: 0.5}
    other.log(run.id, {"x": 1}, [point(1), point(2)], {})
    other.end(run.id, FINISHED, 5000)
    third = TensorBoard(board_destination(board))
    assert third.get(run.id) == Run(run.id, FINISHED)
    steps = [name for path in sorted(Path(run.id).iterdir()) for name in steps_in(path)]
    assert steps == [0, 1, 2]


def board_destination(board: TensorBoard) -> Any:
    from supermax.results.tracking.destination import Destination

    return Destination(str(board._root), str(board._root), kind="tensorboard")


def steps_in(path: Path) -> list[int]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [
        event.step
        for event in (EventFileLoader(str(path)).Load() if "tfevents" in path.name else ())
        for value in event.summary.value
        if value.tag == "curve/value"
    ]


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_record_that_a_kill_has_torn_is_written_again(board: TensorBoard, cut: int) -> None:
    run = board.create(board.experiment("s"), new())
    board.log(run.id, {}, [point(0), point(1)], {})
    (file,) = Path(run.id).glob("events.*")
    file.write_bytes(file.read_bytes()[:-cut])
    other = TensorBoard(board_destination(board))
    assert other.history(run.id, "curve/value") == {0: 0.5}
    other.log(run.id, {}, [point(0), point(1)], {})
    assert read_events(Path(run.id)).values == {("curve/value", n): 0.5 for n in (0, 1)}
    assert [step for path in sorted(Path(run.id).iterdir()) for step in steps_in(path)] == [0, 1]


@contextlib.contextmanager
def small_files(size: int) -> Iterator[None]:
    """Let writes beyond a size fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_for_a_while(board: TensorBoard) -> None:
    run = board.create(board.experiment("s"), new())
    points = [point(step, step / 100) for step in range(100)]
    with small_files(1000), pytest.raises(Unreachable, match="No space left"):
        board.log(run.id, {}, points, {})
    board.log(run.id, {}, points, {})
    assert board.history(run.id, "curve/value") == {n: n / 100 for n in range(100)}
    found = [step for path in sorted(Path(run.id).iterdir()) for step in steps_in(path)]
    assert found == list(range(100))


def test_a_folder_that_is_a_file(tmp_path: Path, study: optuna.Study) -> None:
    (tmp_path / "logs").touch()
    with pytest.raises(UserError, match="is a file"):
        send_missing(study, f"tensorboard:{tmp_path}/logs")


PROGRAM = """
import os, signal, sys, time
import optuna, supermax

def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    for step in range(5):
        trial.report(step / 10, step)
        time.sleep(0.1)
    return x

def kill(study, trial):
    if trial.number == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

study = optuna.load_study(study_name="test", storage=sys.argv[1])
supermax.optimize(
    study, objective, 6, workers=2, progress=False, callbacks=[kill], track="tensorboard"
)
"""


@pytest.mark.slow
def test_after_kills_of_the_coordinator_each_step_is_there_once(
    study: optuna.Study, url: str, tmp_path: Path
) -> None:
    for killed in (1, 3, -1):
        command = [sys.executable, "-c", PROGRAM, url, str(killed)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert (done.returncode == 0) == (killed == -1), done.stderr
    assert send_missing(study, "tensorboard")[0].left == 0
    folders = list((tmp_path / "tensorboard").glob("*/trial-*"))
    assert sorted(path.name.partition(".")[0] for path in folders) == [
        f"trial-{number:04}" for number in range(6)
    ]
    for folder in folders:
        steps = [step for path in sorted(folder.iterdir()) for step in steps_in(path)]
        assert steps == list(range(5)), folder
        assert read_events(folder).status == FINISHED


def test_a_deleted_run_starts_over(board: TensorBoard) -> None:
    run = board.create(board.experiment("s"), new())
    board.log(run.id, {}, [point(0)], {})
    board.delete(run.id)
    assert board.get(run.id) is None
    assert board.find(board.experiment("s"), new().key) == []
    again = board.create(board.experiment("s"), new())
    board.log(again.id, {}, [point(0, 0.75)], {})
    assert board.history(again.id, "curve/value") == {0: 0.75}


def test_the_tracker_does_not_load_torch(tmp_path: Path, study: optuna.Study) -> None:
    code = (
        "import sys; from supermax.results.tracking.backends.tensorboard import TensorBoard;"
        "from supermax.results.tracking.destination import Destination;"
        f"TensorBoard(Destination({str(tmp_path)!r}, '')).connect();"
        "sys.exit(int('torch' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
