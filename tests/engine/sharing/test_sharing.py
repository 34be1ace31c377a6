"""Several runs on one study, on a database server: killed, stopped, cut off, and started again."""

from __future__ import annotations

import json
import random
import signal
import stat
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

import supermax
from supermax._util.attributes import CLAIM
from supermax.engine.run import session
from supermax.engine.run.options import RunOptions
from supermax.engine.storage.run_folder import StudyFolder
from supermax.engine.trial.outcome import Outcome, Raised
from supermax.errors import EnvironmentFault, UserError
from tests.conftest import eventually
from tests.engine.programs import short_trial, with_checkpoint
from tests.engine.sharing.shared_runs import (
    LEASE,
    Run,
    check,
    created,
    execute,
    finished,
    opened,
    running,
    stored,
)
from tests.engine.storage.postgres import GivenServer, Proxy, Server
from tests.users import as_somebody, common_folder, needs_root


@pytest.mark.slow
def test_two_runs_meet_the_target_together(proxy: Proxy, tmp_path: Path) -> None:
    one, other = (Run(proxy, tmp_path / name, 16, pace=0.05) for name in ("one", "other"))
    with running(one, other):
        one.finish()
        other.finish()
    check(proxy, 16)
    assert len({trial.system_attrs[CLAIM] for trial in stored(proxy)}) == 2
    assert len((tmp_path / "marks").read_text().splitlines()) == 16  # none was run twice


@pytest.mark.slow
def test_trials_of_a_killed_run_are_continued_by_another(proxy: Proxy, tmp_path: Path) -> None:
    shared = tmp_path / "checkpoints"
    one = Run(proxy, tmp_path / "one", 4, shared, pace=0.4)
    with running(one):
        assert eventually(lambda: len(list(shared.glob("*/*/1/step"))) >= 2)
        one.end()
        numbers = [t.number for t in stored(proxy) if t.state is TrialState.RUNNING]
        assert numbers
        other = Run(proxy, tmp_path / "other", 4, shared)
        with running(other):
            other.finish()
    check(proxy, 4)
    marks = [json.loads(line) for line in (tmp_path / "marks").read_text().splitlines()]
    first_steps = {number: first for number, _, first, _ in marks}
    assert all(first_steps[number] > 0 for number in numbers), marks  # from the checkpoint
    assert "is taken over" in other.output


@pytest.mark.slow
def test_a_fault_of_another_run_is_named_so(proxy: Proxy, tmp_path: Path) -> None:
    """The run is killed between the end of an attempt and its decision about it."""
    one = Run(proxy, tmp_path / "one", 2, pace=0.4)
    with running(one):
        assert eventually(lambda: any((tmp_path / "one").glob("run/trials/*/ledger.jsonl")))
        one.end()
        (number,) = [t.number for t in stored(proxy) if t.state is TrialState.RUNNING]
        raised = Raised("ValueError", "no such luck", "", "objective.py:1")
        folder = StudyFolder(tmp_path / "one" / "run").trial(number)
        folder.write_outcome(Outcome(attempt=1, state="raised", raised=raised))
        other = Run(proxy, tmp_path / "other", 2)
        with running(other):
            other.finish()
    assert "(it had ended so in another run)" in other.output
    assert "faults={}" in other.output


@pytest.mark.slow
def test_a_stopped_run_loses_its_trials_and_writes_nothing_more(
    proxy: Proxy, tmp_path: Path
) -> None:
    one = Run(proxy, tmp_path / "one", 2, pace=0.5)
    other = Run(proxy, tmp_path / "other", 2)
    with running(one):
        assert eventually(lambda: len(stored(proxy)) == 2)
        one.process.send_signal(signal.SIGSTOP)
        with running(other):
            assert eventually(lambda: finished(proxy) == 2, within=30)
            before = [vars(trial) for trial in stored(proxy)]
            one.process.send_signal(signal.SIGCONT)
            one.finish()
            other.finish()
    assert [vars(trial) for trial in stored(proxy)] == before
    check(proxy, 2)
    assert "was taken over by another run" in one.output


@pytest.mark.slow
def test_a_database_that_is_away_stops_nothing(
    database: Server, proxy: Proxy, tmp_path: Path
) -> None:
    """All leases expire meanwhile, but nobody takes a trial from a living run."""
    runs = [Run(proxy, tmp_path / name, 8, pace=0.3) for name in ("one", "other")]
    with running(*runs):
        assert eventually(lambda: len(stored(proxy)) >= 4)
        database.stop()
        time.sleep(2 * LEASE)  # the time that passes is what is tested
        database.start()
        for run in runs:
            run.finish()
    check(proxy, 8)
    for run in runs:
        assert "taken over" not in run.output
    assert len((tmp_path / "marks").read_text().splitlines()) == 8


@pytest.mark.slow
def test_an_enqueued_trial_is_run_once(proxy: Proxy, tmp_path: Path) -> None:
    study = optuna.create_study(storage=proxy.url, study_name="shared")
    for x in range(6):
        study.enqueue_trial({"x": float(x)})
    runs = [Run(proxy, tmp_path / name, 6) for name in ("one", "other")]
    with running(*runs):
        for run in runs:
            run.finish()
    check(proxy, 6)
    assert sorted(trial.params["x"] for trial in stored(proxy)) == [0, 1, 2, 3, 4, 5]
    study._storage._backend.engine.dispose()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_two_runs_in_one_folder_are_refused(proxy: Proxy, tmp_path: Path) -> None:
    one = Run(proxy, tmp_path / "one", 100_000)
    with running(one):
        assert eventually(lambda: finished(proxy) > 0)
        study = optuna.load_study(storage=proxy.url, study_name="shared")
        with pytest.raises(UserError, match="give this run a folder of its own"):
            supermax.optimize(
                study, with_checkpoint, 1, run_dir=tmp_path / "one" / "run", progress=False
            )
        study._storage._backend.engine.dispose()  # type: ignore[attr-defined]


def test_a_user_without_the_right_to_create_tables_is_told_so(proxy: Proxy) -> None:
    if not proxy.url.startswith("postgresql"):
        pytest.skip("the roles are those of PostgreSQL")
    execute(
        proxy,
        "DROP TABLE IF EXISTS supermax_leases, supermax_runs",
        "DROP ROLE IF EXISTS reader",
        "CREATE ROLE reader LOGIN IN ROLE pg_read_all_data, pg_write_all_data",
    )
    with (
        created(proxy, "reader") as study,
        pytest.raises(
            EnvironmentFault,
            match=r"be created in the study's database: permission denied .* Grant",
        ),
    ):
        supermax.optimize(study, short_trial, 1, progress=False)


def test_the_users_own_run_folder_keeps_its_mode(proxy: Proxy, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    folder.chmod(0o755)
    with created(proxy) as study:
        supermax.optimize(study, short_trial, 1, run_dir=folder, progress=False)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_unusable_checkpoints_are_refused_before_the_run(proxy: Proxy, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with created(proxy) as study:
        with pytest.raises(UserError, match=r"Checkpoints cannot be stored at s4://") as caught:
            supermax.optimize(study, short_trial, 1, checkpoints="s4://me:secret@x/y")
        assert "secret" not in str(caught.value)
        with pytest.raises(UserError, match=r"^checkpoints: s3:/x is neither .* write s3://…"):
            supermax.optimize(study, short_trial, 1, checkpoints="s3:/x")
        assert not Path("s3:").exists()
        with pytest.raises(EnvironmentFault, match="of checkpoints cannot be created"):
            supermax.optimize(study, short_trial, 1, checkpoints=tmp_path / "file")
        assert study.trials == []


@needs_root
def test_checkpoints_of_another_user_are_refused_before_the_run() -> None:
    study: Any = SimpleNamespace(_study_id=0, study_name="shared")
    storage: Any = SimpleNamespace(get_study_system_attrs=lambda _: {session.IDENTITY: "1" * 32})
    with common_folder() as place:
        options = RunOptions(checkpoints=place)
        folder = session._checkpoints(study, storage, options)
        assert folder is not None
        assert as_somebody(lambda: session._checkpoints(study, storage, options)) == folder
        Path(folder).mkdir(0o700)
        said = as_somebody(lambda: session._checkpoints(study, storage, options))
    assert f"The folder {folder} of checkpoints cannot be written by this user" in said


@pytest.mark.slow
def test_seeded_runs_do_not_sample_the_same_values(proxy: Proxy, tmp_path: Path) -> None:
    def drawn(name: str) -> list[float]:
        sampler = optuna.samplers.RandomSampler(seed=1)
        study = optuna.create_study(
            storage=proxy.url, study_name="shared", load_if_exists=True, sampler=sampler
        )
        before = len(study.trials)
        folder = tmp_path / name
        supermax.optimize(study, short_trial, before + 3, run_dir=folder, progress=False)
        values = [trial.params["x"] for trial in study.trials[before:]]
        study._storage._backend.engine.dispose()  # type: ignore[attr-defined]
        with opened(proxy) as storage:
            for summary in storage.get_all_studies() if name == "first" else ():
                storage.delete_study(summary._study_id)
        return values

    first = drawn("first")
    assert drawn("second") == first  # alone on its study, a run samples what its seed says
    assert not set(drawn("third")) & set(first)


def under_fire(
    database: Server, proxies: list[Proxy], folder: Path, n_trials: int, seed: int, restarts: int
) -> Counter[str]:
    """Run to the target with one run per proxy, while runs are killed, stopped for longer than
    their lease, cut off from the database, and started again, and the database is restarted.
    Return how often each happened."""
    dice = random.Random(seed)
    done: Counter[str] = Counter()
    runs = [
        Run(proxy, folder / f"run-{place}", n_trials, folder / "checkpoints", pace=0.03)
        for place, proxy in enumerate(proxies)
    ]
    deadline = time.monotonic() + 600
    stopped: dict[int, float] = {}
    cut: dict[int, float] = {}
    at = [n_trials * (n + 1) // (restarts + 1) for n in range(restarts)]
    with running(*runs):
        while (count := finished(proxies[0])) < n_trials:
            assert time.monotonic() < deadline, (done, count, [run.output[-500:] for run in runs])
            time.sleep(dice.uniform(0.2, 0.6))
            now = time.monotonic()
            for place in [place for place, until in stopped.items() if until < now]:
                runs[place].process.send_signal(signal.SIGCONT)
                del stopped[place]
            for place in [place for place, until in cut.items() if until < now]:
                proxies[place].frozen.clear()
                del cut[place]
            if at and count >= at[0]:
                at.pop(0)
                database.stop()
                time.sleep(dice.uniform(0.1, 1.5))
                database.start()
                done["database restarted"] += 1
            place = dice.randrange(1, len(runs))  # the first one is left alone: its proxy is ours
            if place in stopped or place in cut:
                continue
            run, what = runs[place], dice.random()
            if run.process.poll() is not None:
                run.start()
            elif what < 0.25:
                run.end()
                done["killed"] += 1
                run.start()
            elif what < 0.4:
                run.process.send_signal(signal.SIGSTOP)
                stopped[place] = now + dice.uniform(1, 3) * LEASE
                done["stopped"] += 1
            elif what < 0.5:
                proxies[place].frozen.set()
                cut[place] = now + dice.uniform(1, 3) * LEASE
                done["cut off"] += 1
        for place in stopped:
            runs[place].process.send_signal(signal.SIGCONT)
        for place in cut:
            proxies[place].frozen.clear()
        for run in runs:
            if run.process.poll() is None:
                run.finish(120)
    return done


@pytest.mark.parametrize(
    ("n_runs", "n_trials", "restarts"),
    [(3, 18, 1), pytest.param(4, 400, 2, marks=pytest.mark.slow)],
)
def test_every_trial_is_stored_once_whatever_happens_to_runs(
    database: Server, proxy: Proxy, tmp_path: Path, n_runs: int, n_trials: int, restarts: int
) -> None:
    if isinstance(database, GivenServer):
        restarts = 0
    proxies = [proxy, *(Proxy(database.path) for _ in range(n_runs - 1))]
    done = under_fire(database, proxies, tmp_path, n_trials, seed=3, restarts=restarts)
    check(proxy, n_trials)
    assert done["database restarted"] == restarts
    assert done.total() > restarts  # something happened to the runs too
    for other in proxies[1:]:
        other.close()
