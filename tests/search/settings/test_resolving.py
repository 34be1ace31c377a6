"""Sources of settings, their precedence, and invalid values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supermax._util.text import size_text
from supermax._util.yaml_lines import tree
from supermax.errors import UserError
from supermax.search.settings import Resolved, resolve
from supermax.search.settings.model import Settings, keys
from supermax.search.settings.resolving import ENVIRONMENT, Value
from supermax.search.settings.units import seconds, size
from supermax.search.settings.writing import reproducing, written
from supermax.space.presets import presets

PARAMETERS: dict[str, Any] = {"optim.lr": None, "text.max_length": None}


def resolved(
    agent: str | None = "criteria",
    file: Path | None = None,
    environment: dict[str, str] | None = None,
    **flags: Any,
) -> Resolved:
    given = {key.replace("__", "."): Value(value, f"--{key}") for key, value in flags.items()}
    return resolve(
        agent,
        file=file,
        environment=environment,
        flags=given,
        presets=presets(),
        parameters=PARAMETERS,
    )


def settings_file(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_trackers_and_targets_of_notifications() -> None:
    given = {
        "wandb,tensorboard:logs": ["wandb", "tensorboard:logs"],
        "mlflow": ["mlflow"],
        "sqlite:///a,b.db": ["sqlite:///a,b.db"],
        "http://localhost:5000": ["http://localhost:5000"],
    }
    for text, values in given.items():
        assert resolved(track=text).settings.track == values
        assert resolved(track=[text]).settings.track == values
    found = resolved(track=["wandb"], notify="https://me:pw@host/x, y").settings
    assert found.notify == ["https://me:pw@host/x, y"]
    assert "notify" not in found.to_store()
    assert "pw" not in repr(found.to_store())
    with pytest.raises(UserError, match="must be a word") as raised:
        resolved(notify=["https://me:pw@host/x", 3])
    assert "pw" not in str(raised.value)
    for key in ("track", "notify"):
        with pytest.raises(UserError, match="empty"):
            resolved(**{key: ["x", " "]})


def test_precedence_is_flags_environment_file_preset(
    tmp_path: Path,
) -> None:
    file = settings_file(tmp_path, "agent: criteria\nepochs: 7\npatience: 4\nworkers: 3\n")
    environment = {"HPO_EPOCHS": "8", "PAR": "2", "HPO_PATIENCE": "  "}
    found = resolved(None, file, environment, workers=5)
    assert (found.settings.epochs, found.settings.patience, found.settings.workers) == (8, 4, 5)
    assert found.settings.trials == 8
    assert found.sources["epochs"] == "HPO_EPOCHS of the environment"
    assert found.sources["patience"] == "mine.yaml, line 3"
    assert found.sources["workers"] == "--workers"
    assert found.sources["trials"] == "preset demo"


def test_every_environment_variable_sets_its_key() -> None:
    environment = {
        "HPO_EPOCHS": "5",
        "HPO_PATIENCE": "2",
        "HPO_MIN_DELTA": "0.01",
        "HPO_MODEL_CHOICES": "tiny, bert-base-uncased",
        "HPO_OUTDIR": "out",
        "PAR": "3",
        "SUPERMAX_STORAGE": "s.db",
        "SUPERMAX_DATA": "notes.csv",
        "N_TRIALS_JOINT": "11",
        "N_TRIALS_CRITERIA": "99",
    }
    assert set(ENVIRONMENT) <= set(environment)
    found = resolved("joint", environment=environment).settings
    assert (found.epochs, found.patience, found.min_delta) == (5, 2, 0.01)
    assert found.models == ["tiny", "bert-base-uncased"]
    assert (found.outdir, found.workers, found.storage) == ("out", 3, "s.db")
    assert (found.data.path, found.trials) == ("notes.csv", 11)


def test_a_preset_gives_each_agent_its_trials() -> None:
    sizes = {a: resolved(a, preset="supermax").settings.trials for a in ("criteria", "evidence")}
    assert sizes == {"criteria": 5000, "evidence": 8000}


def test_a_flag_narrows_the_space_over_what_the_file_narrows(tmp_path: Path) -> None:
    file = settings_file(
        tmp_path, "agent: criteria\nnarrow:\n  optim.lr: 1e-4\n  text.max_length: 64\n"
    )
    found = resolved(None, file, optim__lr=1e-3)
    assert found.settings.narrow == {"optim.lr": 1e-3, "text.max_length": 64}


def test_objectives_may_be_joined_by_commas() -> None:
    flags = {"objectives": Value(["macro_f1,latency", "mcc"], "--objective")}
    found = resolve("criteria", flags=flags, presets=presets()).settings
    assert found.objectives == ["macro_f1", "latency", "mcc"]


def test_an_unknown_key_of_set_comes_with_where_keys_are_listed() -> None:
    with pytest.raises(UserError, match=r"--set quux: there is no such key\. `supermax init` "):
        resolve("criteria", flags={"quux": Value(1, "--set quux")}, presets=presets())


def test_a_dataset_of_the_hub_is_no_path(tmp_path: Path) -> None:
    """Neither beside the file, nor when it is stored, nor in a report."""
    name = "hub:owner/reviews:small@v1"
    found = resolved(None, settings_file(tmp_path, f"agent: criteria\ndata: {name}\n")).settings
    assert found.data.path == name
    stored = found.to_store()
    assert stored["data"]["path"] == name  # type: ignore[index]
    assert f'path: "{name}"' in reproducing(stored, "reviews", {})


def test_paths_of_a_file_are_relative_to_its_folder(tmp_path: Path) -> None:
    file = settings_file(tmp_path, "agent: criteria\ndata: notes.csv\nstorage: s.db\n")
    found = resolved(None, file).settings
    assert found.data.path == str(tmp_path / "notes.csv")
    assert found.storage == str(tmp_path / "s.db")
    synthetic = settings_file(tmp_path, "agent: criteria\ndata: synthetic\n")
    assert resolved(None, synthetic).settings.data.path == "synthetic"
    url = settings_file(tmp_path, "agent: criteria\nstorage: postgresql://u:p@h/d\n")
    assert resolved(None, url).settings.storage == "postgresql://u:p@h/d"
    typo = settings_file(tmp_path, "agent: criteria\nstorage: postgresql:/u:p@h/d\n")
    assert resolved(None, typo).settings.storage == "postgresql:/u:p@h/d"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("agent: critera\n", "line 1: there is no agent 'critera'; did you mean 'criteria'?"),
        ("agent: criteria\nepoch: 3\n", "line 2: epoch: there is no such key; did you mean"),
        ("agent: criteria\nepochs: many\n", "line 2: epochs: it must be a whole number ('many')"),
        ("agent: criteria\nepochs: true\n", "line 2: epochs: write a number instead of true"),
        ("agent: criteria\nfolds: false\n", "line 2: folds: write a number instead of false"),
        ("agent: criteria\nmps: 2\n", "line 2: mps: it must be true or false (2)"),
        (
            "agent: criteria\ncompile: maybe\n",
            "line 2: compile: write true, false or auto instead of 'maybe'",
        ),
        (
            "agent: criteria\nworkers: 0\n",
            "line 2: workers: 0 is no number of workers; write 1",
        ),
        ("agent: criteria\nworkers: many\n", "line 2: workers: 'many' is no number of workers"),
        ("agent: criteria\npreset: huge\n", "line 2: there is no preset 'huge'"),
        ("agent: criteria\nsampler: tpee\n", "line 2: there is no sampler 'tpee'; did you mean"),
        ("agent: criteria\ntimeout: soon\n", "'soon' is no duration"),
        ("agent: criteria\ngpu_memory: 24 elephants\n", "is no size"),
        ("agent: criteria\ndata:\n  colums: {text: a}\n", "line 3: data.colums.text: there is no"),
        ("agent: criteria\ndata:\n  columns: {label: a}\n", "data.columns.text: it is missing"),
        ("agent: criteria\nagent: joint\n", "line 2: the key 'agent' is given twice"),
        ("agent: [criteria\n", "line 2:"),
        ("", "holds no settings"),
        ("- a\n- b\n", "holds no settings"),
        ("epochs: 3\n", "No agent is named"),
        ("agent: criteria\ndata: {}\nepochs: 3.5\n", "line 3: epochs: it must be a whole number"),
    ],
)
def test_mistakes_of_a_file_are_reported_with_their_line(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(UserError) as caught:
        resolved(None, settings_file(tmp_path, text))
    assert words in str(caught.value)


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    file = settings_file(tmp_path, "agent: criteria\nepoch: 3\npatience: x\n")
    with pytest.raises(UserError) as caught:
        resolved(None, file, {"PAR": "none"}, sampler="tp", optm__lr=3)
    for words in ("'epochs'", "patience", "PAR of the environment", "'tpe'", "'optim.lr'"):
        assert words in str(caught.value)
    assert "5 mistakes" in str(caught.value)


def test_a_binary_file_is_reported_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8"):
        resolved(None, path)
    with pytest.raises(UserError, match="cannot be read"):
        resolved(None, tmp_path)


def test_the_file_of_init_is_valid_and_names_every_key(tmp_path: Path) -> None:
    text = written("evidence", name="my notes", data={"path": "a b.csv", "columns": {"text": "n"}})
    found = resolved(None, settings_file(tmp_path, text)).settings
    assert (found.agent, found.study) == ("evidence", "my notes")
    whole = settings_file(
        tmp_path,
        "\n".join(
            line.removeprefix("# ") if ":" in line.split("#")[1 if line[0] == "#" else 0] else ""
            for line in text.splitlines()
            if line and not line.startswith(("# What", "# Paths", "# All other keys"))
        ),
    )
    assert set(Settings.model_fields) <= set(tree(whole.read_text(), whole).data)
    assert resolved(None, whole).settings.timeout == 8 * 3600


def test_every_key_is_described() -> None:
    assert all(keys().values())


@given(st.floats(0.001, 1e6), st.sampled_from(["s", "m", "h", "d"]))
def test_durations_are_parsed(number: float, unit: str) -> None:
    factor = {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit]
    assert seconds(f"{number:.3f}{unit}") == pytest.approx(round(number, 3) * factor)


@pytest.mark.parametrize("wrong", ["", "h", "1x", "-3", "0", "1h-2m", "inf", True, "nan"])
def test_invalid_durations_and_sizes_are_refused(wrong: Any) -> None:
    for read in (seconds, size):
        with pytest.raises((ValueError, TypeError)):
            read(wrong)


def test_settings_that_reproduce_a_search_name_no_folder_of_a_run() -> None:
    """A run folder belongs to one study, so a second one would be refused."""
    of_machine = {"run_dir": "runs/2", "checkpoints": "/shared/c", "address": "head:6379"}
    stored = {"agent": "criteria", "trials": 7, "epochs": 1, "executor": "ray", **of_machine}
    found = reproducing(stored, "notes", {})
    assert "trials: 7" in found
    for key in of_machine:
        assert key not in found


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (24, "24 what? Write 24GiB or 500MB"),
        ("24", "24 what? Write 24GiB or 500MB"),
        ("1000000", "1000000 what?"),
        ("0.5", "0.5 what? Write 24GiB or 500MB"),
        (0, "0 must be more than 0"),
        (-1, "-1 must be more than 0"),
        ("0", "'0' must be more than 0"),
        ("-1", "'-1' must be more than 0"),
        ("-1GiB", "'-1GiB' must be more than 0"),
        ("0GiB", "'0GiB' must be more than 0"),
        ("0.0001KB", "'0.0001KB' is too little; write 24GiB or 500MB"),
    ],
)
def test_a_size_without_its_unit_is_asked_for_it(wrong: Any, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        size(wrong)
    assert words in str(caught.value)


@given(st.integers(1, 10**6).map(lambda n: n * 2**15))
def test_a_size_stored_in_bytes_can_be_read_back(bytes_: int) -> None:
    for unit, factor in (("KiB", 1 << 10), ("MiB", 1 << 20), ("", 1)):
        try:
            found = size(f"{bytes_ / factor:.6f}{unit}")
        except ValueError:
            continue
        assert size(found) == found


def test_sizes() -> None:
    assert size("24GiB") == 24 * 1024**3
    assert size("24 gib") == size("24G") == 24 * 1024**3
    assert size("1.5MB") == 1_500_000
    assert size(24 * 10**9) == size("24000000000") == size("24GB")
    assert size(1 << 20) == size("1MiB") == 1 << 20
    assert size_text(24 * 1024**3) == "24.0 GiB"
    assert size_text(500) == "500 B"


def test_earlier_studies_that_no_path_can_be_stay_names(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "supermax.db").touch()
    names = ["notes", "~nobody-of-this-name", "a" * 300, "out", "out#a#b"]
    text = f"agent: criteria\nwarm_start: [{', '.join(names)}]\n"
    found = resolved(None, settings_file(tmp_path, text)).settings.warm_start
    assert found == [*names[:3], str(tmp_path / "out"), f"{tmp_path / 'out'}#a#b"]


def test_earlier_studies_are_names_or_paths_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "old.db").touch()
    text = "agent: criteria\nwarm_start: [old, old.db, old.db#a, 'journal:///x.log#a']\n"
    found = resolved(None, settings_file(tmp_path, text)).settings.warm_start
    db = str(tmp_path / "old.db")
    assert found == ["old", db, f"{db}#a", "journal:///x.log#a"]
    one = settings_file(tmp_path, "agent: criteria\nwarm_start: a,b\n")
    assert resolved(None, one).settings.warm_start == ["a,b"]
    assert resolved(None, one, warm_start=["c", "d"]).settings.warm_start == ["c", "d"]
    with pytest.raises(UserError, match="a study without a name: leave it out"):
        resolved(None, None, warm_start=["c", " "])
