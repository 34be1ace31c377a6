"""Changes of a space: diffs, versions, and trials that are carried over."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

import supermax
from supermax import Space, UserError
from supermax._util.attributes import ORIGIN, RECORD, plain_params
from supermax._util.text import counted
from supermax.engine.ranking import ranked
from supermax.space import open_version, space_of, warm_start
from supermax.space.migration import versions
from supermax.space.migration.bulk_write import add_trials
from supermax.space.migration.carry import renumber_references
from supermax.space.migration.versions import find_versions
from tests.space.versions import (
    BASE,
    ENCODERS,
    by_root,
    changed,
    essence,
    filled,
    opened,
)


def test_the_same_space_resumes_the_study(storage: Any) -> None:
    first = opened(Space(**BASE), storage)
    filled(first.study, first.space, 5)
    again = opened(Space.from_json(Space(**BASE).to_json()), storage)
    assert again.study.study_name == "s"
    assert len(again.study.trials) == 5
    assert again.lines() == []
    assert [s.study_name for s in find_versions(storage, "s")] == ["s"]


@pytest.mark.slow
def test_nine_encoders_narrowed_to_seven(storage: Any) -> None:
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
    assert f"{counted(result.carried, 'trial')} carried over ({result.carried} from s)" in text
    assert len(study.trials) == 60  # where they were
    # And the search goes on there, under the engine's eyes or not.
    result.study.optimize(lambda trial: float(len(seven.sample(trial))), n_trials=3)


@pytest.mark.slow
def test_conditional_batches_over_a_mixed_sequence_and_after_a_restart(tmp_path: Path) -> None:
    """Plain Optuna refuses these as a dynamic value space."""
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


def test_added_parameters_take_their_default_and_are_reported(storage: Any) -> None:
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


@pytest.mark.slow
def test_values_of_removed_parameters_are_kept_and_restored(storage: Any) -> None:
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


def test_a_probable_rename_is_hinted_at(storage: Any) -> None:
    filled(opened(Space(**BASE), storage).study, Space(**BASE), 6)
    warm = {"type": "float", "low": 0.0, "high": 0.3, "default": 0.1}
    result = opened(changed(warmup=None, warm=warm), storage)
    text = "\n".join(result.lines())
    assert "write was: warmup" in text
    assert "taken to have had the defaults of warm (6 trials)" in text
    assert "They also have warmup (6 trials)" in text


@pytest.mark.slow
def test_trials_that_were_invalid_in_a_version_return_later(storage: Any) -> None:
    study = opened(Space(**BASE), storage).study
    filled(study, Space(**BASE), 40)
    two = opened(changed(encoder={"choices": ["bert", "roberta"], "default": "bert"}), storage)
    assert two.carried < 40
    three = opened(Space(**BASE), storage)
    assert three.carried == 40


def test_trials_that_break_a_new_constraint_are_left_behind(storage: Any) -> None:
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


def test_another_version_number_opens_a_version(storage: Any) -> None:
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


def test_running_trials_are_enqueued_and_waiting_ones_stay_enqueued(storage: Any) -> None:
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


def test_failed_trials_with_missing_parameters_are_carried_unchanged(storage: Any) -> None:
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


@pytest.mark.slow
def test_a_study_of_plain_optuna_is_adopted(storage: Any) -> None:
    """With plain names, and batch sizes from the union of all branches."""
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


def test_an_empty_study_of_optuna_is_used(storage: Any) -> None:
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
    with pytest.raises(UserError, match="is not a kind of storage"):
        supermax.open_study(Space(**BASE), storage="nonsense://x")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@nowhere/db",
        "postgresql://nowhere/db?user=me&password=s3cret",
        "nonsense://me:s3cret@h:port/db",
    ],
)
def test_no_password_is_shown(url: str) -> None:
    with pytest.raises(supermax.SupermaxError) as caught:
        supermax.open_study(Space(**BASE), storage=url)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_storage_is_a_path_too(tmp_path: Path) -> None:
    place = tmp_path / "not there" / "yet" / "s.db"
    supermax.open_study(Space(**BASE), storage=place, quiet=True)
    assert place.exists()
    with pytest.raises(UserError, match="cannot have"):
        supermax.open_study(Space(**BASE), storage=str(tmp_path / "a?b.db"))


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


def with_references(study: Study) -> None:
    """Add a trial that version 2 does not have, a trial, a copy of its result, and a failed trial
    with its repetition."""
    for encoder, record in (
        ("albert", {}),
        ("bert", {"attempts": 1}),
        ("bert", {"attempts": 0, "result_of": 1}),
        ("roberta", {"attempts": 3}),
        ("roberta", {"attempts": 1, "repeats": 3}),
    ):
        params = {"encoder": encoder, "lr": 1e-4, "batch@[8|16|32|64]": 16, "warmup": 0.1}
        distributions = {name: NINE.distributions[name] for name in params}
        made = create_trial(
            value=0.5, params=params, distributions=distributions, user_attrs={RECORD: record}
        )
        study.add_trial(made)


NINE = changed(encoder={"choices": [*ENCODERS, "albert", "longformer"], "default": "bert"})
CLIPPED = changed(clip={"type": "float", "low": 0.1, "high": 5.0, "default": 1.0})
RENUMBERED = [
    {"attempts": 1},
    {"attempts": 0, "result_of": 0},
    {"attempts": 3},
    {"attempts": 1, "repeats": 2},
]


def records(study: Study) -> list[dict[str, object]]:
    return [trial.user_attrs[RECORD] for trial in study.trials]


def test_trials_that_others_name_are_named_by_their_new_numbers(storage: Any) -> None:
    first = opened(NINE, storage).study
    with_references(first)
    before = records(first)
    assert records(opened(Space(**BASE), storage).study) == RENUMBERED
    assert records(opened(CLIPPED, storage).study) == RENUMBERED
    back = opened(NINE, storage).study
    assert back.study_name == "s@4"
    assert records(back) == before == records(first)  # all are valid again


def test_numbers_are_right_after_an_interrupted_migration(
    storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(NINE, storage).study
    with_references(first)

    def half(study: Study, trials: list[FrozenTrial], progress: object) -> int:
        add_trials(study, trials[2:3])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(versions, "add_trials", half)
        with pytest.raises(KeyboardInterrupt):
            opened(Space(**BASE), storage)
    study = opened(Space(**BASE), storage).study
    assert records(study) == [
        {"attempts": 3},
        {"attempts": 1},
        {"attempts": 0, "result_of": 1},
        {"attempts": 1, "repeats": 0},
    ]


def test_a_copy_stands_for_an_original_that_is_not_carried_over() -> None:
    copy = create_trial(value=0.5, user_attrs={RECORD: {"attempts": 0, "result_of": 1}})
    renumber_references(copy, {0: 0, 2: 1})
    assert copy.user_attrs[RECORD] == {"attempts": 0}
    assert ranked([copy], [StudyDirection.MINIMIZE]) == [copy]


def test_a_wrong_argument_creates_no_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    with pytest.raises(UserError, match="sampler"):
        open_version(Space(name="s", parameters=ONE), storage=url, sampler="nonsense")
    with pytest.raises(TypeError, match="direction"):
        open_version(Space(name="s", parameters=ONE), storage=url, direction="maximize")  # type: ignore[call-arg]
    assert not list(tmp_path.iterdir())


ONE: Any = {"x": {"type": "float", "low": 0, "high": 1}}
