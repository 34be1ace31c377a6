"""A space can change and no trial is lost: diffs, versions, carrying over, crashes in between."""

from __future__ import annotations

import datetime
import itertools
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from optuna.storages import InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

import supermax
from supermax import Space, UserError
from supermax.naming import FROM, ORIGIN, plain_params
from supermax.space import Opened, changes, enqueue_defaults, open_version, space_of, warm_start
from supermax.space.feasible import draw
from supermax.space.versions import find_versions
from tests.space.strategies import domains, feasible_spaces

ENCODERS = ["bert", "bert-large", "roberta", "deberta", "xlmr", "electra", "electra-large"]
BASE: dict[str, Any] = {
    "name": "s",
    "parameters": {
        "encoder": {"choices": ENCODERS, "default": "bert"},
        "lr": {"type": "float", "low": 1e-5, "high": 1e-3, "log": True, "default": 1e-4},
        "batch": [
            {"when": "encoder in ['bert-large', 'electra-large']", "choices": [8, 16]},
            {"choices": [8, 16, 32, 64], "default": 16},
        ],
        "warmup": {"type": "float", "low": 0.0, "high": 0.3},
    },
    "constraints": [{"name": "small", "require": "batch <= 32 or lr < 5e-4", "reason": "noise"}],
}


def changed(**parameters: Any) -> Space:
    """BASE with some parameters replaced; None removes one."""
    merged = {**BASE["parameters"], **{k.replace("__", "."): v for k, v in parameters.items()}}
    return Space(**{**BASE, "parameters": {k: v for k, v in merged.items() if v is not None}})


def filled(study: Study, space: Space, n: int, seed: int = 0) -> None:
    """Real trials in all finished states, with curves, attributes and dates."""
    import numpy as np

    rng = np.random.RandomState(seed)
    study.sampler = supermax.space.sampler_for(space, "random", seed=seed)
    for number in range(n):
        trial = study.ask()
        space.sample(trial)
        trial.set_user_attr("note", {"n": number, "list": [1, 2]})
        for step in range(3):
            trial.report(float(rng.rand()) if step else float("nan"), step)
        if number % 7 == 3:
            study.tell(trial, state=TrialState.PRUNED)
        elif number % 7 == 5:
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, float(rng.rand()) if number % 11 else float("inf"))


def essence(trial: FrozenTrial) -> dict[str, Any]:
    """All of a trial that carrying it over must keep."""
    origin = trial.system_attrs.get(ORIGIN, {})
    return {
        "params": plain_params(trial),
        "state": trial.state,
        "values": trial.values,
        "steps": {step: repr(value) for step, value in trial.intermediate_values.items()},
        "attributes": trial.user_attrs,
        "start": trial.datetime_start,
        "end": trial.datetime_complete,
        "root": (origin.get("study"), origin.get("number")),
    }


def by_root(study: Study) -> dict[Any, dict[str, Any]]:
    essences = [essence(trial) for trial in study.get_trials()]
    assert len({e["root"] for e in essences}) == len(essences)
    return {e["root"]: e for e in essences}


@pytest.fixture(params=["sqlite", "journal", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        return optuna.storages.get_storage(f"sqlite:///{tmp_path}/s.db")
    if request.param == "journal":
        return JournalStorage(JournalFileBackend(str(tmp_path / "s.log")))
    return InMemoryStorage()


def opened(space: Space, storage: Any, **options: Any) -> Opened:
    return open_version(space, storage=storage, name="s", **options)


def test_the_same_space_goes_on(storage: Any) -> None:
    first = opened(Space(**BASE), storage)
    filled(first.study, first.space, 5)
    again = opened(Space.from_json(Space(**BASE).to_json()), storage)
    assert again.study.study_name == "s"
    assert len(again.study.trials) == 5
    assert again.lines() == []
    assert [s.study_name for s in find_versions(storage, "s")] == ["s"]


def test_nine_encoders_narrowed_to_seven(storage: Any) -> None:
    """The old system deleted the study here."""
    nine = changed(encoder={"choices": [*ENCODERS, "albert", "longformer"], "default": "bert"})
    study = opened(nine, storage).study
    filled(study, nine, 60)
    seven = Space(**BASE)
    result = opened(seven, storage, seed=1)
    assert result.study.study_name == "s@2"
    gone = [t for t in study.trials if t.params["encoder"] in ("albert", "longformer")]
    assert 0 < len(gone) < 30
    assert result.carried == 60 - len(gone) == len(result.study.trials)
    assert result.left.total() == len(gone)
    assert all("encoder" in reason and "no longer possible" in reason for reason in result.left)
    before = {("s", t.number): {**essence(t), "root": ("s", t.number)} for t in study.trials}
    after = by_root(result.study)
    assert after == {root: before[root] for root in after}
    text = "\n".join(result.lines())
    assert "choices removed: encoder (albert, longformer)" in text
    assert f"{result.carried} trial(s) carried over ({result.carried} from s)" in text
    assert len(study.trials) == 60  # where they were
    # And the search goes on there, under the engine's eyes or not.
    result.study.optimize(lambda trial: float(len(seven.sample(trial))), n_trials=3)


def test_conditional_batches_over_a_mixed_sequence_and_after_a_restart(tmp_path: Path) -> None:
    """The old system died of «dynamic value space», or spent 10 of 13 trials on pruning."""
    space = Space(**BASE)
    url = f"sqlite:///{tmp_path}/s.db"

    def objective(trial: Any) -> float:
        config = space.sample(trial)
        assert config["batch"] <= 16 or "large" not in config["encoder"]
        return float(config["batch"])

    for total in (13, 26):
        study = supermax.open_study(space, storage=url, seed=total, quiet=True)
        for encoder in ("bert-large", "bert", "electra-large", "roberta"):
            study.enqueue_trial({"encoder": encoder})
        supermax.optimize(study, objective, n_trials=total, workers=2, progress=False)
        assert [t.state for t in study.trials[:total]] == [TrialState.COMPLETE] * total
    used = {(plain_params(t)["encoder"], plain_params(t)["batch"]) for t in study.trials}
    assert any(encoder == "bert-large" for encoder, _ in used)
    assert any(batch == 64 for _, batch in used)


def test_added_parameters_take_their_default_and_say_so(storage: Any) -> None:
    filled(opened(Space(**BASE), storage).study, Space(**BASE), 20)
    more = changed(
        clip={"type": "float", "low": 0.1, "high": 5.0, "default": 1.0},
        head__width={"when": "encoder == 'bert'", "choices": [1, 2], "default": 2},
    )
    result = opened(more, storage)
    assert result.carried == 20
    for trial in result.study.trials:
        params = plain_params(trial)
        assert params["clip"] == 1.0
        assert ("head.width" in params) == (params["encoder"] == "bert")
        assert "clip" in trial.system_attrs[ORIGIN]["assumed"]


def test_without_a_default_nothing_is_assumed(storage: Any) -> None:
    filled(opened(Space(**BASE), storage).study, Space(**BASE), 10)
    result = opened(changed(clip={"type": "float", "low": 0.1, "high": 5.0}), storage)
    assert result.carried == 0
    assert result.left == {"clip is new and has no default": 10}


def test_renamed_parameters_keep_their_values(storage: Any) -> None:
    study = opened(Space(**BASE), storage).study
    filled(study, Space(**BASE), 10)
    parameters = {n: p for n, p in BASE["parameters"].items() if n != "lr"}
    parameters["optim.lr"] = {**BASE["parameters"]["lr"], "was": "lr"}
    renamed = Space(name="s", parameters=parameters)
    result = opened(renamed, storage)
    assert [c.kind for c in result.changes] == ["renamed", "constraint removed"]
    assert result.carried == 10
    for old, new in zip(study.trials, result.study.trials, strict=True):
        assert new.params["optim.lr"] == old.params["lr"]


def test_removed_parameters_are_remembered_and_come_back(storage: Any) -> None:
    study = opened(Space(**BASE), storage).study
    filled(study, Space(**BASE), 12)
    opened(changed(warmup=None), storage)
    back = opened(Space(**BASE), storage)
    assert back.study.study_name == "s@3"
    assert back.carried == 12
    for old, new in zip(study.trials, back.study.trials, strict=True):
        assert plain_params(new) == plain_params(old)


def test_a_rename_undone_finds_the_values_again(storage: Any) -> None:
    one = Space(
        name="s", parameters={"lr": {"type": "float", "low": 0, "high": 1, "default": 0.5}}
    )
    two = Space(
        name="s",
        parameters={"rate": {"type": "float", "low": 0, "high": 1, "default": 0.5, "was": "lr"}},
    )
    three = Space(
        name="s",
        parameters={"lr": {"type": "float", "low": 0, "high": 1, "default": 0.5, "was": "rate"}},
    )
    study = opened(one, storage).study
    filled(study, one, 10)
    true = [t.params["lr"] for t in study.trials]
    for space, name in ((two, "rate"), (one, "lr"), (two, "rate"), (three, "lr")):
        result = opened(space, storage)
        assert result.carried in (0, 10)
        assert [t.params[name] for t in result.study.trials] == true
        assert not result.assumed


def test_a_forgotten_rename_is_hinted_at(storage: Any) -> None:
    filled(opened(Space(**BASE), storage).study, Space(**BASE), 6)
    warm = {"type": "float", "low": 0.0, "high": 0.3, "default": 0.1}
    result = opened(changed(warmup=None, warm=warm), storage)
    text = "\n".join(result.lines())
    assert "write was: warmup" in text
    assert "taken to have had the defaults of warm (6 trials)" in text
    assert "They also have warmup (6 trials)" in text


def test_trials_that_a_version_had_no_place_for_come_back_later(storage: Any) -> None:
    study = opened(Space(**BASE), storage).study
    filled(study, Space(**BASE), 40)
    two = opened(changed(encoder={"choices": ["bert", "roberta"], "default": "bert"}), storage)
    assert two.carried < 40
    three = opened(Space(**BASE), storage)
    assert three.carried == 40


def test_a_new_constraint_leaves_what_breaks_it(storage: Any) -> None:
    filled(opened(Space(**BASE), storage).study, Space(**BASE), 30)
    stricter = {"name": "tiny", "require": "batch <= 8", "reason": "a small card"}
    space = Space(**{**BASE, "constraints": [*BASE["constraints"], stricter]})
    result = opened(space, storage)
    assert result.left == {"breaks the constraint tiny": 30 - result.carried}
    assert 0 < result.carried < 30
    assert all(plain_params(t)["batch"] == 8 for t in result.study.trials)


def test_defaults_and_reasons_do_not_open_a_version(storage: Any) -> None:
    filled(opened(Space(**BASE), storage).study, Space(**BASE), 3)
    new = changed(lr={**BASE["parameters"]["lr"], "default": 2e-4})
    result = opened(new, storage)
    assert result.study.study_name == "s"
    assert space_of(result.study) == new
    assert [c.kind for c in result.changes] == ["default changed"]


def test_another_version_number_does(storage: Any) -> None:
    filled(opened(Space(**BASE), storage).study, Space(**BASE), 3)
    result = opened(Space(**{**BASE, "version": 2}), storage)
    assert result.study.study_name == "s@2"
    assert result.carried == 3


def test_new_opens_an_empty_version_and_stop_says_what_differs(storage: Any) -> None:
    filled(opened(Space(**BASE), storage).study, Space(**BASE), 5)
    wider = changed(warmup={"type": "float", "low": 0.0, "high": 0.5})
    with pytest.raises(UserError, match=r"(?s)widened: warmup \(0 to 0.3 → 0 to 0.5\)"):
        opened(wider, storage, on_change="stop")
    assert len(find_versions(storage, "s")) == 1
    empty = opened(wider, storage, on_change="new")
    assert empty.study.study_name == "s@2"
    assert empty.study.trials == []
    # What was started anew stays without the trials from before.
    third = opened(Space(**{**wider.data(), "version": 5}), storage)
    assert third.study.trials == []
    with pytest.raises(UserError, match="did you mean 'migrate'"):
        opened(wider, storage, on_change="migrat")


def test_running_trials_are_queued_and_waiting_ones_stay_queued(storage: Any) -> None:
    space = Space(**BASE)
    study = opened(space, storage).study
    study.enqueue_trial({"encoder": "bert"})
    space.sample(running := study.ask())
    study.ask()  # nothing drawn from it yet
    study.enqueue_trial({"encoder": "roberta"}, user_attrs={"why": "asked for"})
    study.enqueue_trial({"encoder": "electra"})
    result = opened(changed(encoder={"choices": ENCODERS[:5]}), storage, seed=3)
    queued = result.study.get_trials(states=(TrialState.WAITING,))
    assert len(queued) == result.carried == 2
    assert queued[0].system_attrs["fixed_params"] == {**plain_params(study.trials[running.number])}
    assert queued[1].user_attrs == {"why": "asked for"}
    assert result.left.total() == 2
    assert study.trials[running.number].state is TrialState.RUNNING
    result.study.optimize(lambda trial: float(bool(result.space.sample(trial))), n_trials=2)
    assert plain_params(result.study.trials[1])["encoder"] == "roberta"


def test_failed_trials_with_half_their_parameters_are_carried_as_they_are(storage: Any) -> None:
    space = Space(**BASE)
    study = opened(space, storage).study
    trial = study.ask()
    trial.suggest_categorical("encoder", ENCODERS)
    study.tell(trial, state=TrialState.FAIL)
    study.add_trial(create_trial(state=TrialState.FAIL))
    more = changed(clip={"type": "float", "low": 0.1, "high": 5.0, "default": 1.0})
    result = opened(more, storage)
    assert [set(t.params) for t in result.study.trials] == [{"encoder"}, set()]
    assert [t.state for t in result.study.trials] == [TrialState.FAIL] * 2


def test_a_study_of_plain_optuna_is_adopted(storage: Any) -> None:
    """As the old system left them: plain names, batch sizes from the union of all branches."""
    study = optuna.create_study(storage=storage, study_name="s")
    sizes = [8, 16, 32, 64]

    def objective(trial: optuna.Trial) -> float:
        encoder = trial.suggest_categorical("encoder", ENCODERS)
        batch = trial.suggest_categorical("batch", sizes)
        lr = trial.suggest_float("lr", 1e-5, 1e-3, log=True)
        trial.suggest_float("warmup", 0.0, 0.3)
        if "large" in encoder and batch > 16:
            raise optuna.TrialPruned
        return batch * lr

    study.optimize(objective, n_trials=40)
    space = Space(**{**BASE, "constraints": []})
    result = opened(space, storage)
    assert result.study.study_name == "s@2"
    wasted = [t for t in study.trials if t.state is TrialState.PRUNED]
    assert result.carried == 40 - len(wasted)
    assert result.left.total() == len(wasted)
    assert "adopted" in result.lines()[0]
    before = {t.number: plain_params(t) for t in study.trials}
    for trial in result.study.trials:
        assert plain_params(trial) == before[trial.system_attrs[ORIGIN]["number"]]


def test_an_empty_study_of_optuna_is_just_used(storage: Any) -> None:
    optuna.create_study(storage=storage, study_name="s")
    assert opened(Space(**BASE), storage).study.study_name == "s"


def test_wrong_use(storage: Any) -> None:
    opened(Space(**BASE), storage)
    with pytest.raises(UserError, match="has the directions minimize, not maximize"):
        opened(Space(**BASE), storage, directions="maximize")
    with pytest.raises(UserError, match="names a version"):
        open_version(Space(**BASE), storage=storage, name="s@2")
    with pytest.raises(UserError, match="'minimize' or 'maximize'"):
        opened(Space(**BASE), storage, directions="up")
    impossible = {"name": "no", "require": "lr > 1", "reason": "-"}
    with pytest.raises(UserError, match="no feasible point"):
        opened(Space(**{**BASE, "constraints": [impossible]}), storage)
    assert [s.study_name for s in find_versions(storage, "s")] == ["s"]
    with pytest.raises(UserError, match=r"directions=\['minimize'\]"):
        opened(Space(**BASE), storage, directions="maximize")
    with pytest.raises(UserError, match="is a mapping"):
        supermax.space.enqueue(opened(Space(**BASE), storage).study, Space(**BASE), [1])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="is a study"):
        warm_start(opened(Space(**BASE), storage).study, Space(**BASE), "s")  # type: ignore[arg-type]
    with pytest.raises(supermax.EnvironmentFault, match="cannot be opened"):
        supermax.open_study(Space(**BASE), storage="nonsense://x")


def test_dates_values_and_constraints_survive_a_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    space = Space(**BASE)
    study = opened(space, url).study
    start = datetime.datetime(2026, 7, 1, 12, 30, 15, 123456)
    study.add_trial(
        create_trial(
            state=TrialState.PRUNED,
            params={"encoder": "bert", "lr": 1e-4, "warmup": 0.1},
            distributions={n: space.distributions[n] for n in ("encoder", "lr", "warmup")},
            intermediate_values={0: float("nan"), 1: float("-inf"), 2: 0.25},
            system_attrs={"constraints:supermax:oom": 0.5, "supermax:claim": "a run"},
        )
    )
    result = opened(changed(warmup={"type": "float", "low": 0.0, "high": 0.9}), url)
    trial = result.study.trials[0]
    assert repr(trial.intermediate_values) == "{0: nan, 1: -inf, 2: 0.25}"
    assert trial.system_attrs["constraints:supermax:oom"] == 0.5
    assert "supermax:claim" not in trial.system_attrs
    assert start < trial.datetime_complete


# Properties.


@st.composite
def changed_spaces(draw_: st.DrawFn, count: int) -> list[Space]:
    """Versions of one space: domains replaced, parameters left out."""
    first = draw_(feasible_spaces(default=True))
    versions = [first]
    for _ in range(count - 1):
        data = versions[-1].data()
        names = list(data["parameters"])
        name = draw_(st.sampled_from(names))
        if len(names) > 1 and draw_(st.booleans()):
            del data["parameters"][name]
        else:
            data["parameters"][name] = draw_(domains(default=True))
        data["constraints"] = []
        try:
            versions.append(Space(**data))
        except UserError:  # a condition speaks of what is gone, or can never hold
            assume(False)
    return versions


COUNTER = itertools.count()


def fresh_storage(space: Space, n: int) -> tuple[Any, Study]:
    storage = InMemoryStorage()
    study = open_version(space, storage=storage, name="s").study
    filled(study, space, n, seed=next(COUNTER) % 97)
    return storage, study


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(changed_spaces(2))
def test_every_valid_trial_is_kept_and_twice_changes_nothing(versions: list[Space]) -> None:
    old, new = versions
    storage, study = fresh_storage(old, 8)
    result = open_version(new, storage=storage, name="s")
    before = by_root_of(study)
    kept = by_root(result.study) if result.study.study_name != "s" else before
    for root, one in kept.items():
        assert new.mistakes(one["params"]) == []
        same = {k: v for k, v in one.items() if k != "params"}
        assert same == {k: v for k, v in before[root].items() if k != "params"}
        for name, value in one["params"].items():
            if name in before[root]["params"]:
                assert value == before[root]["params"][name]
    for root, one in before.items():
        if new.mistakes(one["params"]) == []:
            assert root in kept
    again = open_version(new, storage=storage, name="s")
    assert again.study.study_name == result.study.study_name
    assert again.carried == 0
    assert len(again.study.trials) == len(result.study.trials)


def by_root_of(study: Study) -> dict[Any, dict[str, Any]]:
    return {
        (study.study_name, t.number): {**essence(t), "root": (study.study_name, t.number)}
        for t in study.trials
    }


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(changed_spaces(3))
def test_one_two_three_is_one_three(versions: list[Space]) -> None:
    one, two, three = versions
    assume(changes(one, two) and changes(two, three) and changes(one, three))
    storage, _ = fresh_storage(one, 8)
    direct_storage, direct_study = InMemoryStorage(), None
    direct_study = open_version(one, storage=direct_storage, name="s").study
    for trial in optuna.load_study(study_name="s", storage=storage).trials:
        direct_study.add_trial(trial)
    through = open_version(two, storage=storage, name="s")
    assume(not through.left)  # nothing was lost on the way
    through = open_version(three, storage=storage, name="s")
    direct = open_version(three, storage=direct_storage, name="s")
    assert by_root(through.study) == by_root(direct.study)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(changed_spaces(2))
def test_a_diff_says_something_exactly_when_something_differs(versions: list[Space]) -> None:
    old, new = versions
    assert changes(old, old) == []
    assert bool(changes(old, new)) == (old != new)
    assert all(str(change) for change in changes(new, old))


# Crashes.

KILLED = """
import os, sys
sys.path.insert(0, {root!r})
from supermax.space import open_version, writing
from tests.space.test_versions import changed
import supermax.space.versions as versions
calls = 0
writing._BATCH = 50
def dying(original):
    def wrapped(*args, **kwargs):
        global calls
        calls += 1
        if calls == {moment}:
            os.kill(os.getpid(), 9)
        result = original(*args, **kwargs)
        return result
    return wrapped
writing._insert = dying(writing._insert)
versions.optuna.create_study = dying(versions.optuna.create_study)
from optuna.storages._cached_storage import _CachedStorage
_CachedStorage.set_study_system_attr = dying(_CachedStorage.set_study_system_attr)
space = changed(clip={{"type": "float", "low": 0.1, "high": 5.0, "default": 1.0}})
open_version(space, storage={url!r}, name="s")
"""


def test_a_crash_at_any_step_leaves_both_versions_sound(tmp_path: Path) -> None:
    original = tmp_path / "original.db"
    study = opened(Space(**BASE), f"sqlite:///{original}").study
    filled(study, Space(**BASE), 120)
    before = by_root_of(study)
    study._storage.remove_session()
    root = str(Path(__file__).parent.parent.parent)
    for moment in range(1, 30):
        url = f"sqlite:///{tmp_path}/{moment}.db"
        shutil.copy(original, tmp_path / f"{moment}.db")
        program = textwrap.dedent(KILLED).format(root=root, moment=moment, url=url)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        killed = done.returncode == -signal.SIGKILL
        assert killed or done.returncode == 0, done.stderr
        assert by_root_of(optuna.load_study(study_name="s", storage=url)) == before
        clip = {"type": "float", "low": 0.1, "high": 5.0, "default": 1.0}
        second = opened(changed(clip=clip), url).study
        assert second.study_name == "s@2"
        assert set(by_root(second)) == set(before)
        assert second._storage.get_study_system_attrs(second._study_id)[FROM]["done"]
        assert [t.number for t in second.trials] == list(range(120))
        if not killed:
            break
    assert moment >= 7  # the study, three attributes, three batches


def test_two_programs_at_once_write_no_trial_twice(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    filled(opened(Space(**BASE), url).study, Space(**BASE), 60)
    program = textwrap.dedent(KILLED).format(
        root=str(Path(__file__).parent.parent.parent), moment=0, url=url
    )
    both = [
        subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    errors = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    study = optuna.load_study(study_name="s@2", storage=url)
    assert len(by_root(study)) == 60
    assert sorted(t.number for t in study.trials) == list(range(60))


def test_a_run_at_work_is_not_migrated_under_its_feet(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    study = supermax.open_study(Space(**BASE), storage=url, quiet=True)
    folder = tmp_path / "s.db.supermax" / "s"
    holder = subprocess.Popen(
        [sys.executable, "-c",
         "import sys, pathlib; from supermax.engine.folder import Lock;"
         f"lock = Lock(pathlib.Path({str(folder / 'lock')!r}), 's'); print('held', flush=True);"
         "sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match="Another run is at work"):
        supermax.open_study(changed(warmup=None), storage=url, quiet=True)
    holder.communicate()
    again = supermax.open_study(changed(warmup=None), storage=url, quiet=True)
    assert again.study_name == f"{study.study_name}@2"


# Seeds of a search.


def test_defaults_are_queued_once(storage: Any) -> None:
    space = changed(
        warmup={"type": "float", "low": 0.0, "high": 0.3, "default": 0.1},
    )
    study = opened(space, storage).study
    assert enqueue_defaults(study, space)
    assert not enqueue_defaults(study, space)
    study.optimize(lambda trial: float(bool(space.sample(trial))), n_trials=1)
    assert plain_params(study.trials[0]) == space.defaults()
    assert not enqueue_defaults(study, space)
    with pytest.raises(UserError, match="no default: batch, warmup"):
        enqueue_defaults(study, Space(**BASE))


def test_the_best_of_another_study_are_a_warm_start(storage: Any) -> None:
    source = opened(Space(**BASE), storage).study
    filled(source, Space(**BASE), 40)
    space = changed(warmup=None, clip={"type": "float", "low": 0.1, "high": 5.0})
    study = open_version(space, storage=storage, name="other").study
    queued, left = warm_start(study, space, source, top=5)
    assert queued == 0  # clip is not known, and has no default
    assert left["clip is new and has no default"] > 0
    space = changed(warmup=None, encoder={"choices": ENCODERS[:3]})
    study = open_version(space, storage=storage, name="third").study
    queued, left = warm_start(study, space, source, top=5)
    assert queued == 5
    study.optimize(lambda trial: float(bool(space.sample(trial))), n_trials=5)
    fitting = [
        t
        for t in sorted(source.trials, key=lambda t: (t.value is None, t.value))
        if t.state is TrialState.COMPLETE and t.params["encoder"] in ENCODERS[:3]
    ]
    for ours, theirs in zip(study.trials, fitting, strict=False):
        wanted = {k: v for k, v in plain_params(theirs).items() if k != "warmup"}
        assert plain_params(ours) == wanted
        assert ours.user_attrs[ORIGIN] == {"study": "s", "number": theirs.number}
    assert warm_start(study, space, source, top=5)[1]["it is there already"] > 0


def test_prior_draws_are_valid() -> None:
    import numpy as np

    rng = np.random.RandomState(0)
    for _ in range(200):
        values = draw(Space(**BASE), rng)
        assert [m for m in Space(**BASE).mistakes(values) if "breaks" not in m] == []


# Found by attack.


def test_names_given_on_the_way_are_not_forgotten(storage: Any) -> None:
    """A trial that a version had no place for is carried past it, with the names it gave."""
    one = Space(name="s", parameters={"a": {"type": "int", "low": 0, "high": 10}})
    two = Space(name="s", parameters={"b": {"type": "int", "low": 0, "high": 5, "was": "a"}})
    wide = {"type": "int", "low": 0, "high": 10, "default": 1}
    three = Space(name="s", parameters={"b": wide})
    four = Space(name="s", parameters={"b": wide, "a": wide})
    study = opened(one, storage).study
    study.enqueue_trial({"a": 7})
    study.optimize(lambda trial: float(one.sample(trial)["a"]), n_trials=1)
    assert opened(two, storage).carried == 0
    result = opened(three, storage)
    assert [t.params for t in result.study.trials] == [{"b": 7}]
    result = opened(four, storage)
    assert [t.params for t in result.study.trials] == [{"b": 7, "a": 1}]  # another a


def test_the_finished_form_of_a_trial_counts(storage: Any) -> None:
    space = Space(**BASE)
    study = opened(space, storage).study
    space.sample(running := study.ask())
    two = opened(Space(**{**BASE, "version": 2}), storage)
    assert [t.state for t in two.study.trials] == [TrialState.WAITING]
    study.tell(running, 0.25)  # it was still at work
    three = opened(Space(**{**BASE, "version": 3}), storage)
    assert [t.value for t in three.study.trials] == [0.25]


def test_a_copy_made_by_another_program_is_a_trial_of_its_own(storage: Any) -> None:
    space = Space(**BASE)
    study = opened(space, storage).study
    space.sample(failed := study.ask())
    study.tell(failed, state=TrialState.FAIL)
    two = opened(Space(**{**BASE, "version": 2}), storage).study
    again = two.trials[0]
    two.add_trial(
        create_trial(
            value=0.5,
            params=again.params,
            distributions=again.distributions,
            system_attrs=again.system_attrs,
        )
    )
    three = opened(Space(**{**BASE, "version": 3}), storage).study
    assert sorted(t.state.name for t in three.trials) == ["COMPLETE", "FAIL"]


def test_a_version_in_the_middle_may_be_deleted(storage: Any) -> None:
    study = opened(Space(**BASE), storage).study
    filled(study, Space(**BASE), 20)
    few = {"choices": ["bert", "roberta"], "default": "bert"}
    opened(changed(encoder=few), storage)
    opened(Space(**{**changed(encoder=few).data(), "version": 2}), storage)
    optuna.delete_study(study_name="s@2", storage=storage)
    assert opened(Space(**BASE), storage).carried == 20


def test_a_study_of_the_users_own_is_not_taken_for_a_version(storage: Any) -> None:
    filled(opened(Space(**BASE), storage).study, Space(**BASE), 3)
    own = optuna.create_study(storage=storage, study_name="s@2")
    own.optimize(lambda trial: trial.suggest_float("other", 0, 1), n_trials=2)
    result = opened(Space(**{**BASE, "version": 2}), storage)
    assert result.study.study_name == "s@3"
    assert result.carried == 3
    assert [set(t.params) for t in own.trials] == [{"other"}] * 2


def test_half_a_trial_must_meet_constraints_too(storage: Any) -> None:
    one = Space(name="s", parameters={n: {"type": "int", "low": 0, "high": 9} for n in "ab"})
    study = opened(one, storage).study
    study.enqueue_trial({"a": 9})
    study.optimize(lambda trial: float(trial.suggest_int("a", 0, 9)), n_trials=1)
    rule = {"name": "small", "require": "a < 5", "reason": "-"}
    assert opened(Space(**{**one.data(), "constraints": [rule]}), storage).carried == 0


def test_two_openers_with_two_spaces_get_two_versions(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    filled(opened(Space(**BASE), url).study, Space(**BASE), 30)
    program = (
        f"import sys, supermax; sys.path.insert(0, {str(Path(__file__).parent.parent.parent)!r})\n"
        "from tests.space.test_versions import changed\n"
        "high = float(sys.argv[1])\n"
        "space = changed(warmup={'type': 'float', 'low': 0.0, 'high': high})\n"
        f"study = supermax.open_study(space, storage={url!r}, name='s', quiet=True)\n"
        "print(study.study_name, supermax.space.space_of(study) == space, len(study.trials))\n"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", program, high], stdout=subprocess.PIPE, text=True)
        for high in ("0.4", "0.5")
    ]
    said = sorted(process.communicate()[0].split() for process in both)
    assert said == [["s@2", "True", "30"], ["s@3", "True", "30"]]
