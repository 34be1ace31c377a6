"""`refit` and `predict`: progress, and scores where labels are known."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from supermax.errors import UserError
from supermax.training.data.chosen_columns import chosen_columns
from supermax.training.data.columns import Columns
from supermax.training.deploy.refit import Stage
from supermax.ui.cli.models import _Stages
from supermax.ui.cli.progress import EVERY, Progress
from tests.ui.cli.helping import QUESTION, inside, sm

pytestmark = pytest.mark.usefixtures("quick", "preloaded")
EARLY = """
import sys
from supermax.ui.cli import main
from supermax.ui.cli.progress import Progress

def step(self, text):
    print(text, "torch" in sys.modules, flush=True)
    raise SystemExit

Progress.step = step
sys.argv = ["supermax", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize(
    ("args", "first"),
    [
        (("refit", "criteria"), "Loading torch and transformers, which takes some seconds"),
        (("predict", "criteria-model", "notes.csv", "-o", "x.csv"), "Reading notes.csv"),
    ],
)
def test_the_first_line_comes_before_torch_is_loaded(
    args: tuple[str, ...], first: str, playground: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY, *args], stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout == f"{first} False\n"


@pytest.mark.parametrize(
    ("model", "out", "said"),
    [
        ("no-model", "x.csv", "no-model is not a model that Supermax exported: there is no such"),
        *(
            pytest.param("criteria-model", out, said, marks=pytest.mark.slow)
            for out, said in (
                ("x.txt", "x.txt is neither CSV nor JSONL by its name"),
                ("nowhere/x.csv", "there is no folder"),
                ("notes.csv", "would overwrite notes.csv"),
            )
        ),
    ],
)
def test_wrong_input_is_reported_before_torch_is_loaded(
    model: str, out: str, said: str, playground: Path
) -> None:
    after = "try:\n    main()\nfinally:\n    print('torch' in sys.modules)\n"
    program = EARLY.replace("main()\n", after)
    command = [sys.executable, "-c", program, "predict", model, "notes.csv", "-o", out, "--force"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "False\n"
    assert said in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("refit", "--seeds", "two"), "--seeds is a number of seeds"),
        (("refit", "--seeds", "0"), "--seeds is at least one seed"),
        (("refit", "--seeds", "1,1"), "each only once"),
        (("predict", "no-model", "no.csv", "--text", "text", "-o", "x.csv"), "no file no.csv"),
    ],
)
def test_wrong_arguments_are_reported_before_anything_is_read(
    args: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    with inside(tmp_path):
        done = sm(*args, code=2)
    assert said in done
    assert "Loading" not in done
    assert "Reading" not in done


@pytest.mark.parametrize(
    ("args", "said", "code"),
    [
        (("predict", "critera-model"), "no such folder; did you mean 'criteria-model'?", 2),
        (("predict", "."), "holds no supermax.json; there are criteria-model", 2),
        (("predict", "MODEL", "--text", "sad"), "has no column 'sad' (--text); did you mean", 2),
        (("predict", "MODEL", "--label", "nope"), "has no column 'nope' (--label); there are", 2),
        (("predict", "MODEL", "--answer", "verdict"), "finds no answers, so none can be", 2),
        (("export", "MODEL"), "supermax export criteria-model --onnx", 2),
        (("refit", "-o", "notes.csv/model"), "cannot be written: Not a directory", 3),
        (("refit", "-o", "/proc/here/model"), "Name another folder (-o)", 3),
        (("refit",), "criteria-model exists and is not empty", 2),
        (("push", "MODEL", "a b"), "'a b' is not a name of a repository", 2),
        (("push", "MODEL", "mine", "--endpoint", "hub"), "one that begins with https://", 2),
    ],
)
def test_a_mistake_is_reported_before_the_work_begins(
    playground: Path, args: tuple[str, ...], said: str, code: int
) -> None:
    command, *rest = ("criteria-model" if word == "MODEL" else word for word in args)
    if command == "predict":
        rest = [rest[0], "notes.csv", "-o", "x.csv", *rest[1:]]
    more = ("criteria",) if command == "refit" else ()
    done = sm(command, *more, *rest, code=code)
    assert said in done
    assert "Predicting" not in done
    assert "Traceback" not in done


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("supermax.json", "lost"),
        ("supermax.json", "cut"),
        ("encoder/tokenizer.json", "lost"),
        ("encoder/tokenizer.json", "changed"),
        ("model.safetensors", "cut"),
        ("model.safetensors", "changed"),
    ],
)
def test_a_damaged_model(playground: Path, file: str, damage: str) -> None:
    path = playground / "criteria-model" / file
    if damage == "lost":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:100])
    else:
        path.write_bytes(b"\xff" * path.stat().st_size)
    done = sm("predict", "criteria-model", "notes.csv", "-o", "x.csv", code=2)
    assert "Traceback" not in done
    assert "refit" in done or "xport" in done
    assert not (playground / "x.csv").exists()


def test_a_file_without_texts_names_its_columns_and_the_option(playground: Path) -> None:
    (playground / "short.csv").write_text("nr,body,asked\n1,sun,so?\n2,rain,so?\n")
    args = "predict", "criteria-model", "short.csv", "-o", "x.csv"
    said = sm(*args, code=2)
    assert "Name it with --text; there are asked, body, nr." in said
    assert "2 rows predicted" in sm(*args, "--text", "body", "--question", "asked")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("body,asked\n", "has no rows"),
        ("body,asked\n\xff\xfe,so?\n", "is not UTF-8 text"),
        (9 * "on that day we walked in the park together,0\n", "no header"),
    ],
)
def test_advice_to_name_a_column_is_not_given_where_it_is_no_help(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "file.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=said):
        chosen_columns(tmp_path / "file.csv", None, {}, {"text": "text"}, asks=False)


def test_a_bad_row_is_left_out_as_advised(playground: Path) -> None:
    rows = "\n".join(f"it was day {i} and nothing happened,asked" for i in range(20))
    (playground / "rows.csv").write_text(f"text,asked\n{rows}\n,asked\n")
    args = "predict", "criteria-model", "rows.csv", "-o", "x.csv", "--question", "asked"
    said = sm(*args, code=2)
    assert "--on-bad skip to predict" in said
    assert "20 rows predicted" in sm(*args, "--on-bad", "skip")


def test_counts_are_printed_at_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    progress = Progress(clock=lambda: now)
    progress.step("begin")
    for second in range(1, 6):
        now = second * EVERY / 2
        progress.count(f"{second} of 5")
    Progress(shown=False).step("nothing")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "[supermax 0:00] begin",
        "[supermax 0:10] 2 of 5",
        "[supermax 0:20] 4 of 5",
    ]


def test_counts_overwrite_each_other_in_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    now = 0.0
    progress = Progress(clock=lambda: now)
    progress.step("begin")
    for now in (1.0, 1.5, 2.0):
        progress.count(f"{now:g} of 3 seconds are over")
    progress.step("next")
    now = 4.0
    with progress:
        progress.count("four")
    with progress:
        pass
    assert capsys.readouterr().err == (
        "[supermax 0:00] begin\n"
        "[supermax 0:01] 1 of 3 second"
        "\r\x1b[K[supermax 0:02] 2 of 3 second"
        "\n[supermax 0:02] next\n"
        "[supermax 0:04] four\n"
    )


def test_the_time_left_of_a_refit_counts_all_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    show = _Stages(Progress(clock=lambda: now), [7, 9])
    show(Stage("train", 7, 1.5, 2, 30.0))  # of a refit that goes on: one and a half of four epochs
    now = 120.0
    show(Stage("train", 7, 1.75, 2, 30.0))
    now = 200.0
    show(Stage("train", 9, 0.75, 2, 30.0))
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "[supermax 0:20] Seed 7: 1.8 of 2 epochs, 30 samples a second, about 3:00 left",
        "[supermax 1:40] Seed 9: 0.8 of 2 epochs, 30 samples a second, about 1:40 left",
    ]


def test_refit_and_predict_print_progress_and_scores(
    playground: Path,
) -> None:
    sm("tune", "notes.yaml", "--no-supervisor", "--trials", "1", "--study", "mine")
    said = sm("refit", "mine", "--seeds", "2", "-o", "mine-model")
    steps = [line for line in said.splitlines() if line.startswith("[supermax ")]
    for words in (
        "Loading torch",
        "Reading the data",
        "Seed 1 (1 of 2): loading the encoder",
        "Seed 2 (2 of 2): loading the encoder",
        "Seed 2: training 1 epoch",
        "Seed 2: epoch 1 is trained, loss",
        "Seed 1: predicting the test split",
        "Exporting",
    ):
        assert any(words in step for step in steps)
    json.loads(sm("refit", "mine", "--seeds", "1", "-o", "other-model", "--json"))
    with (playground / "new.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "what was said", "asked", "verdict"])  # the first is a decoy
        for i in range(9):
            words = ["I lay awake for hours", "I slept like a stone"][i % 2]
            row = [f"a much longer text of another kind, number {i}", f"{words}, {i}", QUESTION]
            writer.writerow([*row, ["yes", "no", "unheard of"][min(2, i % 9 // 2 % 3)]])
    told = sm("predict", "mine-model", "new.csv", "-o", "answers.csv")
    assert "text from 'what was said', question from 'asked', label from 'verdict'" in told
    assert "Predicting on cpu" in told or "Predicting on cuda" in told
    with (playground / "new.csv").open() as new, (playground / "answers.csv").open() as answers:
        pairs = [
            (row["verdict"], answer["label"])
            for row, answer in zip(csv.DictReader(new), csv.DictReader(answers), strict=True)
        ]
    known = [(true, guess) for true, guess in pairs if true in ("yes", "no")]
    right = sum(true == guess for true, guess in known) / len(known)
    assert f"On the {len(known)} rows with a label: macro_f1 " in told
    assert f", accuracy {right:.4f}" in told
    assert f"Not scored: {9 - len(known)} rows with a label that is not a class" in told
    off = sm("predict", "mine-model", "new.csv", "-o", "b.csv", "--text", "text")
    assert "text from 'text'" in off


def test_columns_are_those_of_the_search_where_the_file_has_them(tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text("text,body,query,y\nsome words,more words here,is it so?,no\n")
    known = {"text": "body", "question": "query", "label": "gone", "id": "nr"}
    given: dict[str, str | None] = {"text": None, "label": None}
    assert chosen_columns(path, None, given, known, asks=True) == Columns(
        text="body", question="query", label="y"
    )
    assert chosen_columns(path, None, {"text": "text"}, known, asks=False).text == "text"
    assert chosen_columns(path, None, {"text": "text"}, known, asks=False).question is None
    short = tmp_path / "short.jsonl"
    short.write_text('{"body": "sun", "query": "so?"}\n{"body": "rain", "query": "so?"}\n')
    assert chosen_columns(short, None, {}, known, asks=True) == Columns(
        text="body", question="query"
    )
    with pytest.raises(UserError, match="no column that holds texts"):
        chosen_columns(short, None, {}, {"text": "gone"}, asks=True)
    missing = tmp_path / "missing.csv"
    assert chosen_columns(missing, None, {"text": "t"}, {}, asks=True) == Columns(text="t")
    with pytest.raises(UserError, match="There is no file"):
        chosen_columns(missing, None, {}, {}, asks=True)
