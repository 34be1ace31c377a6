"""Earlier studies from which a search begins: how they are named, and what is refused."""

from __future__ import annotations

import contextlib
import copy
import re
import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from supermax._util.attributes import EXPERIMENT, ORIGIN, WARM_START, plain_params
from supermax.engine.storage.locations import find_location
from supermax.engine.storage.rdb import uncached
from supermax.errors import EnvironmentFault, SupermaxError, UserError
from supermax.search.earlier import TOP, Earlier, begin_with, find_earlier, planned, quota
from supermax.search.settings import Settings
from supermax.space import Space, enqueue_defaults, sampler_for
from supermax.studies import existing, make_storage, open_locked
from tests.search.searches import search_in
from tests.space.versions import BASE, changed
from tests.users import as_somebody, common_folder, needs_root

SPACE = changed(warmup={"type": "float", "low": 0.0, "high": 0.3, "default": 0.1})


def studied(
    file: Path, name: str, agent: str = "criteria", trials: int = 20, metric: str = "macro_f1"
) -> Study:
    """Return a study with trials, as a search of an agent leaves it."""
    space = Space(**{**BASE, "name": name})
    study = open_locked(space, file, quiet=True, directions=["maximize"]).study
    study.set_user_attr(EXPERIMENT, {"agent": agent, "objectives": [metric]})
    quick = optuna.create_study(direction="maximize", sampler=sampler_for(space, "random", seed=0))
    quick.optimize(lambda trial: float(space.sample(trial)["lr"]), n_trials=trials)
    study.add_trials(quick.trials)
    return study


def settings(folder: Path, *names: str, **values: Any) -> Settings:
    given = {"agent": "criteria", "trials": 3, "epochs": 1, "storage": str(folder / "mine.db")}
    return Settings.model_validate({**given, "warm_start": list(names), **values})


def opened(file: Path, name: str = "criteria") -> Study:
    study = open_locked(SPACE, file, quiet=True, name=name, directions=["maximize"]).study
    enqueue_defaults(study, SPACE)
    return study


def queued(study: Study) -> list[dict[str, Any]]:
    return [trial.system_attrs["fixed_params"] for trial in study.trials]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with several storages. Tests only read them."""
    folder = tmp_path_factory.mktemp("archive")
    (folder / "out").mkdir()
    (folder / "none").mkdir()
    for file in ("mine.db", "theirs.db", "out/supermax.db"):
        studied(folder / file, "old", trials=8)
        studied(folder / file, "spans", agent="evidence", trials=2)
        space = Space(**{**changed(warmup=None).data(), "name": "old"})
        second = open_locked(space, folder / file, quiet=True, directions=["maximize"]).study
        assert second.study_name == "old@2"  # its first version has the experiment
    studied(folder / "mine.db", "new", trials=0)
    studied(folder / "mine.db", "criteria", trials=2)
    studied(folder / "spans.db", "spans", agent="evidence", trials=2)
    optuna.create_study(storage=make_storage(folder / "mine.db"), study_name="plain")
    (folder / "empty.db").touch()
    return folder


@pytest.mark.parametrize(
    "text", ["old", "old@2", "theirs.db", "theirs.db#old", "theirs.db#old@2", "out", "out#old"]
)
def test_an_earlier_study_is_named_by_its_name_or_its_storage(
    archive: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(archive)
    (found,) = find_earlier(settings(archive, text))
    assert (found.name, found.study.study_name) == (text, "old@2")
    file = {"old": "mine.db", "theirs": "theirs.db", "out": "out/supermax.db"}
    assert find_location(found.study).file == archive / file[re.split("[.@#]", text)[0]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("odl", "There is no study 'odl'; did you mean 'old'? Name a study elsewhere as STORAGE#"),
        (
            "nowhere.db#old",
            "There is no file nowhere.db, and no study has that name. Name a study",
        ),
        ("./nowhere", "There is no file ./nowhere, and no study has that name"),
        ("none", "The folder none has no supermax.db, and no study has that name"),
        ("none#old", "The folder none has no supermax.db"),
        ("mine.db#odl", "did you mean 'old'"),
        ("empty.db", "It holds no studies. Name the file or URL of their storage"),
        ("mine.db#spans", "It is a study of the agent evidence, and this is a search of criteria"),
        ("plain", "It is a study of no agent"),
        ("spans.db", "It has no study of the agent criteria"),
        ("mine.db", "It has several studies: criteria, new, old. Name one: mine.db#criteria."),
        ("new", "It has no complete trial yet. Wait for its first one"),
        ("criteria", "It is the study of this search, which goes on with its own trials anyway"),
        ("mine.db#criteria", "It is the study of this search"),
    ],
)
def test_a_study_from_which_no_search_can_begin_is_refused(
    archive: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.chdir(archive)
    with pytest.raises(UserError) as error:
        find_earlier(settings(archive, text))
    assert str(error.value).startswith(f"warm_start {text}: ")
    assert words in str(error.value)


def test_a_storage_that_cannot_be_read_is_named_with_advice(tmp_path: Path) -> None:
    garbage, foreign = tmp_path / "garbage.db", tmp_path / "foreign.db"
    garbage.write_bytes(b"garbage" * 500)
    with contextlib.closing(sqlite3.connect(foreign)) as database:
        database.execute("CREATE TABLE studies (a)")
    for file in (garbage, foreign):
        with pytest.raises(EnvironmentFault) as error:
            find_earlier(settings(tmp_path, f"{file}#old"))
        assert str(error.value).startswith(f"warm_start {file}#old: ")
        assert "SQL" not in str(error.value).replace("sqlite", "")  # no statement, no type
        assert str(error.value).endswith("Name another study, or leave it out.")
        assert "--storage" not in str(error.value)  # that is the storage of the search


@needs_root
def test_storages_of_another_user_are_refused_with_advice(tmp_path: Path) -> None:
    with common_folder() as folder:
        for name, mode in (("closed", 0o700), ("open", 0o755)):
            (folder / name).mkdir()
            storage = studied(folder / name / "theirs.db", "old", trials=2)._storage
            storage.remove_session()
            uncached(storage).engine.dispose()  # type: ignore[attr-defined]  # no -wal file is left
            (folder / name).chmod(mode)

        def refused(name: str) -> str:
            """Return the message; of a copy, the number of studies."""
            try:
                return str(len(find_earlier(settings(folder, f"{folder / name}/theirs.db#old"))))
            except SupermaxError as error:
                return str(error)

        assert "This user may not read" in as_somebody(lambda: refused("closed"))
        (folder / "open/theirs.db").chmod(0o600)
        assert "This user may not read it" in as_somebody(lambda: refused("open"))
        (folder / "open/theirs.db").chmod(0o644)
        advice = "Copy theirs.db to a folder that you can write, and name the copy."
        assert as_somebody(lambda: refused("open")).endswith(f"by this user. {advice}")
        own = as_somebody(lambda: existing(f"{folder}/open/theirs.db"))
        assert own.rstrip().endswith(
            "by this user. " + advice.replace("copy.", "copy with --storage.")
        )

        def with_copy() -> str:
            (folder / "copy").mkdir()
            shutil.copyfile(folder / "open/theirs.db", folder / "copy/theirs.db")
            return refused("copy")

        assert as_somebody(with_copy) == "1"  # as it advises


def test_a_study_that_is_named_in_two_ways_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.db"
    studied(file, "old", trials=1)
    with pytest.raises(UserError, match="It is the same study as old"):
        find_earlier(settings(tmp_path, "old", f"{file}#old"))


@pytest.mark.parametrize("name", ["~nobody-of-this-name", "~nobody#x", "a" * 300, "a\0b"])
def test_a_name_that_no_path_can_be_is_that_of_a_study(tmp_path: Path, name: str) -> None:
    studied(tmp_path / "mine.db", "old", trials=1)
    with pytest.raises(UserError, match="There is no study"):
        find_earlier(settings(tmp_path, name))


@pytest.mark.parametrize("prefix", ["", "sqlite:///"])
def test_a_study_elsewhere_may_have_a_number_sign_in_its_name(tmp_path: Path, prefix: str) -> None:
    theirs = tmp_path / "theirs.db"
    studied(theirs, "x#y@home", trials=1)
    (found,) = find_earlier(settings(tmp_path, f"{prefix}{theirs}#x#y@home"))
    assert found.study.study_name == "x#y@home"


def test_an_own_storage_that_does_not_exist_yet_has_no_study(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist yet"):
        find_earlier(settings(tmp_path, "old"))
    assert list(tmp_path.iterdir()) == []


def test_a_study_of_the_same_name_in_another_storage_is_another_study(tmp_path: Path) -> None:
    studied(tmp_path / "theirs.db", "criteria")
    opened(tmp_path / "mine.db")
    (found,) = find_earlier(settings(tmp_path, f"{tmp_path / 'theirs.db'}#criteria"))
    assert find_location(found.study).file == tmp_path / "theirs.db"


def best_first(study: Study) -> list[FrozenTrial]:
    complete = study.get_trials(states=(TrialState.COMPLETE,))
    return sorted(complete, key=lambda trial: -trial.values[0])


def add_better(study: Study) -> None:
    """Add a trial that is better than all others of the study."""
    best = best_first(study)[0]
    params = {**best.params, "lr": 2e-4}
    study.add_trial(create_trial(params=params, distributions=best.distributions, value=1e9))


def test_the_best_configurations_come_once_after_the_defaults(tmp_path: Path) -> None:
    mine = tmp_path / "mine.db"
    old = studied(mine, "old")
    before = old.trials
    wanted = settings(tmp_path, "old", "old")
    study = opened(mine)
    begin_with(study, SPACE, find_earlier(wanted))
    first = queued(study)
    assert first[0] == SPACE.defaults()
    taken = [trial.user_attrs[ORIGIN]["number"] for trial in study.trials[1:]]
    better = [trial.number for trial in best_first(old)]
    assert taken == [number for number in better if number in taken]
    assert (taken[0], len(taken)) == (better[0], TOP)
    assert first[1:] == [plain_params(old.trials[number]) for number in taken]
    assert old.trials == before
    add_better(old)
    assert find_earlier(wanted) == []  # the search has begun: it is not read again


def test_the_defaults_take_the_place_of_no_configuration(tmp_path: Path) -> None:
    """They are a good trial of many earlier studies, and run anyway."""
    old = studied(tmp_path / "mine.db", "old")
    defaults = SPACE.defaults()
    assert defaults is not None
    best = copy.copy(best_first(old)[0])
    best.params, best.values = {name: defaults[name] for name in best.params}, [1e9]
    old.add_trial(best)
    (earlier,) = find_earlier(settings(tmp_path, "old"))
    chosen, left = earlier.configurations(SPACE)
    assert (len(chosen), defaults in chosen.values()) == (TOP, False)
    assert left["it has the defaults, which run anyway"] == 1
    study = opened(tmp_path / "mine.db")
    begin_with(study, SPACE, [earlier])
    assert len(study.trials) == 1 + TOP


def test_several_studies_share_the_number_of_configurations(tmp_path: Path) -> None:
    mine = tmp_path / "mine.db"
    for name in ("one", "two"):
        studied(mine, name, trials=12)
    study = opened(mine)
    begin_with(study, SPACE, find_earlier(settings(tmp_path, "one", "two")))
    assert {name: len(taken) for name, taken in study.user_attrs[WARM_START].items()} == {
        "one": 2,
        "two": 1,
    }


@given(st.integers(1, 40))
def test_every_study_has_a_share_and_the_shares_are_even(studies: int) -> None:
    shares = [quota(position, studies) for position in range(studies)]
    assert sum(shares) == max(TOP, studies)
    assert 1 <= min(shares) <= max(shares) <= min(shares) + 1


def test_two_runs_that_have_read_the_earlier_study_enqueue_it_once(tmp_path: Path) -> None:
    mine = tmp_path / "mine.db"
    old = studied(mine, "old")
    study, wanted = opened(mine), settings(tmp_path, "old")
    one, other = find_earlier(wanted), find_earlier(wanted)
    begin_with(study, SPACE, one)
    first = queued(study)
    add_better(old)
    begin_with(opened(mine), SPACE, other)
    assert queued(study) == first
    begin_with(another := opened(mine, "another"), SPACE, other)
    assert queued(another) != first


def test_two_runs_that_start_at_the_same_moment_enqueue_once(tmp_path: Path) -> None:
    studied(tmp_path / "mine.db", "old")
    opened(tmp_path / "mine.db")
    wanted, together = settings(tmp_path, "old"), threading.Barrier(2)

    def begin(run: tuple[Study, list[Earlier]]) -> None:
        together.wait(60)
        begin_with(run[0], SPACE, run[1])

    runs = [(opened(tmp_path / "mine.db"), find_earlier(wanted)) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(begin, runs))
    assert len(runs[0][0].trials) == 1 + TOP


def test_a_search_that_has_begun_does_not_need_the_earlier_study(tmp_path: Path) -> None:
    theirs, mine = tmp_path / "theirs.db", tmp_path / "mine.db"
    studied(theirs, "old")
    wanted = settings(tmp_path, str(theirs))
    study = opened(mine)
    begin_with(study, SPACE, find_earlier(wanted))
    assert list(study.user_attrs[WARM_START]) == [str(theirs)]
    theirs.unlink()
    assert find_earlier(wanted) == []
    with pytest.raises(UserError, match="There is no file"):
        find_earlier(settings(tmp_path, str(theirs), name="another"))


def test_the_plan_says_how_many_configurations_the_search_takes(tmp_path: Path) -> None:
    studied(tmp_path / "mine.db", "old")
    (found,) = find_earlier(settings(tmp_path, "old"))
    assert found.planned(SPACE, ["macro_f1"]) == ["begins with 3 configurations of old"]
    assert found.planned(SPACE, ["accuracy"]) == [
        "begins with 3 configurations of old, the best by macro_f1: this search optimizes accuracy"
    ]
    narrow = changed(lr={"type": "float", "low": 5e-6, "high": 6e-6}, warmup=None)
    first, second = found.planned(narrow, ["macro_f1"])
    assert first == "begins with no configuration of old"
    assert second.startswith("trials of old that are left out: lr is not")


def test_the_plan_says_which_configurations_are_beyond_the_trials(tmp_path: Path) -> None:
    """The defaults come first, or the trials that the study has."""
    studied(tmp_path / "mine.db", "old")
    found = find_earlier(settings(tmp_path, "old"))
    names = ["macro_f1"]
    (begins,) = planned(found, SPACE, names, before=1, trials=4)
    assert begins == "begins with 3 configurations of old"
    assert planned(found, SPACE, names, before=1, trials=3)[1:] == [
        "only 2 of them among the 3 trials, after 1 that comes first: --trials 4 runs all"
    ]
    assert planned(found, SPACE, names, before=7, trials=3)[1:] == [
        "none of them among the 3 trials, after 7 that come first: --trials 10 runs all"
    ]
    assert planned([], SPACE, names, before=7, trials=3) == []


def test_configurations_of_a_start_that_was_killed_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, study = studied(tmp_path / "mine.db", "old"), opened(tmp_path / "mine.db")
    wanted = settings(tmp_path, "old")
    enqueue_trial = Study.enqueue_trial

    def killed_at_the_third(self: Study, *args: Any, **options: Any) -> None:
        if len(self.trials) == 3:
            raise KeyboardInterrupt
        enqueue_trial(self, *args, **options)

    earlier = find_earlier(wanted)
    with monkeypatch.context() as patched:
        patched.setattr(Study, "enqueue_trial", killed_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            begin_with(study, SPACE, earlier)
    first = queued(study)
    add_better(old)
    begin_with(study, SPACE, find_earlier(wanted))
    assert queued(study)[: len(first)] == first
    assert len(study.trials) == 1 + TOP
    assert find_earlier(wanted) == []


@pytest.mark.parametrize("password", ["secret", "secret#1", "1#secret", "secret%2F#1"])
@pytest.mark.parametrize("study", ["", "#old", "#old@2"])
def test_a_password_is_neither_shown_nor_stored(tmp_path: Path, password: str, study: str) -> None:
    url = f"postgresql://me:{password}@nowhere.invalid/db{study}"
    wanted = settings(tmp_path, url)
    assert "secret" not in str(wanted.to_store())
    with pytest.raises(SupermaxError) as error:
        find_earlier(wanted)
    assert "secret" not in str(error.value)


@pytest.mark.usefixtures("quick", "preloaded")
def test_a_search_begins_with_the_best_of_an_earlier_one_and_resumes(tmp_path: Path) -> None:
    first = search_in(tmp_path, trials=2, name="first").run(progress=False).study
    earlier = [Earlier("first", first)]
    search = search_in(tmp_path, trials=2, name="second", earlier=earlier)
    study = search.run(progress=False).study
    defaults = search.fit.space.defaults()
    better = [plain_params(trial) for trial in best_first(first)]
    taken = [values for values in better if values != defaults]
    assert [plain_params(t) for t in study.trials[:2]] == [defaults, *taken]
    again = replace(search, trials=3).run(progress=False).study
    assert [trial.number for trial in again.trials] == [0, 1, 2]
    assert "fixed_params" not in again.trials[2].system_attrs
