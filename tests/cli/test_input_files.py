"""Files that people have: what `supermax init` makes of each, and what a search then reads."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from supermax import planning
from supermax.api import Study
from supermax.cli.tune import resolved
from supermax.errors import UserError
from supermax.search import data_of, prepared
from supermax.training.data.splits import Splits
from tests.cli.helping import inside, sm

SECRET = "zebra"  # stands in every text, and must be printed nowhere


def csv(header: str, *rows: str, end: str = "\n") -> str:
    return end.join([header, *rows]) + end


def notes(
    many: int, label: Callable[[int], str] = lambda i: "yes" if i % 2 else "no"
) -> list[str]:
    return [f"on day {i} the {SECRET} went out for a long walk,{label(i)}" for i in range(many)]


def article(i: int) -> str:
    return f"Article {i} tells in many words of the {SECRET} and of the answer {i} to it."


def asked(many: int, titles: int) -> list[str]:
    """Questions on articles, sorted by title; every third has no answer. Positions as pandas
    writes them."""
    rows = []
    for i in range(many):
        text = article(i // 3)
        answer, start = f"answer {i // 3}", float(text.index("answer"))
        found = f"{answer},{start}" if i % 3 else ","
        rows.append(f"{text},What does it tell of number {i}?,{found},Title {i * titles // many}")
    return rows


RATINGS = notes(300, lambda i: f"{i / 7:.3f}")
TWO_PARTS = ("mild;acute", "mild;chronic", "severe;acute", "severe;chronic")
SEVERAL = notes(90, lambda i: ("joy", "anger", "joy|anger")[i % 3])


@dataclass(frozen=True)
class File:
    name: str
    data: str | bytes
    said: tuple[str, ...] = ()
    """Output of `init`."""
    roles: dict[str, str] = field(default_factory=dict)
    """Columns by role; empty: `init` refuses the file."""
    labels: tuple[str, ...] = ()
    rows: int = 0
    """Rows that a search reads."""
    unfit: str = ""
    """Error of `tune` where `init` writes settings that cannot be searched."""


TEXT = {"text": "text", "label": "label"}
FILES = [
    File("plain.csv", csv("text,label", *notes(60)), (), TEXT, ("no", "yes"), 60),
    File(
        "sorted.csv",
        csv("text,label", *sorted(notes(6000), key=lambda row: row.rsplit(",", 1)[1])),
        (),
        TEXT,
        ("no", "yes"),
        6000,
    ),
    File(
        "unnamed-columns.csv",
        csv("a,b", *sorted(notes(6000), key=lambda row: row.rsplit(",", 1)[1])),
        ("few values, each of them often",),
        {"text": "a", "label": "b"},
        ("no", "yes"),
        6000,
    ),
    File(
        "titles.csv",
        csv("passage,asked,answer,start,title", *asked(6000, 16)),
        ("agent        evidence",),
        {
            "text": "passage",
            "question": "asked",
            "answer": "answer",
            "answer_start": "start",
            "group": "title",
        },
        (),
        6000,
    ),
    File(
        "many-classes.csv",
        csv("text,label", *notes(3000, lambda i: f"class {i % 50}")),
        (),
        TEXT,
        tuple(sorted(f"class {i}" for i in range(50))),
        3000,
    ),
    File(
        "latin.csv",
        csv("text,label", *(row.replace("walk", "café") for row in notes(60))).encode("latin-1"),
        ("encoding     cp1252",),
        TEXT,
        ("no", "yes"),
        60,
    ),
    File(
        "quotes.csv",
        csv("text,label", *(row.replace("long", "\u2019long\u2019") for row in notes(60))).encode(
            "cp1252"
        ),
        ("encoding     cp1252",),
        TEXT,
        ("no", "yes"),
        60,
    ),
    File(
        "russian.csv",
        csv("text,label", *(row.replace("long", "это очень хорошо") for row in notes(60))).encode(
            "cp1251"
        ),
        ("encoding     cp1251",),
        TEXT,
        ("no", "yes"),
        60,
    ),
    File(
        "excel-unicode.txt",
        csv("text\tlabel", *(row.replace(",", "\t") for row in notes(60))).encode("utf-16"),
        ("encoding     utf-16",),
        TEXT,
        ("no", "yes"),
        60,
    ),
    File(
        "utf-16-without-a-mark.csv",
        csv("text,label", *notes(60)).encode("utf-16-be"),
        ("encoding     utf-16-be",),
        TEXT,
        ("no", "yes"),
        60,
    ),
    File(
        "one-class.csv",
        csv("text,label", *notes(60, lambda i: "yes")),
        ("The column 'label' holds one class alone; a search needs two.",),
        TEXT,
        unfit="only one label",
    ),
    File(
        "ragged.csv",
        csv("text,label", *notes(60), *(f"{row},more" for row in notes(2))),
        (
            "`tune` refuses 2 rows of this file as it is:",
            "ragged.csv, line 62: the row has not as many fields as the header (3, not 2); 1 more",
        ),
        TEXT,
        unfit="not as many fields as the header",
    ),
    File(
        "twice.csv",
        csv("text,label,label", *(f"{row},{'xy'[i % 2]}" for i, row in enumerate(notes(60)))),
        ("`tune` refuses this file as it is:", "line 1: the column 'label' stands twice"),
        TEXT,
        unfit="the column 'label' stands twice",
    ),
    File(
        "all-test.csv",
        csv("text,label,split", *(f"{row},test" for row in notes(60))),
        ("has no rows of train, which `tune` needs",),
        TEXT | {"split": "split"},
        unfit="train: no row with a label",
    ),
    File(
        "train-and-test.csv",
        csv(
            "text,label,split",
            *(f"{row},{('train', 'test')[i > 79]}" for i, row in enumerate(notes(100))),
        ),
        ("has no rows of validation: `tune` draws them from train.",),
        TEXT | {"split": "split"},
        ("no", "yes"),
        100,
    ),
    File(
        "odd-split.csv",
        csv(
            "text,label,split",
            *(f"{row},{('train', 'fold 2', '')[i % 3]}" for i, row in enumerate(notes(60))),
        ),
        (
            "The column 'split' is not used, and all rows are split anew: beside train, "
            "validation and test it holds ''.",
        ),
        TEXT,
        ("no", "yes"),
        60,
    ),
    File(
        "parts-of-a-body.csv",
        csv(
            "text,label,part",
            *(f"{row},{('hip', 'knee')[i % 2]}" for i, row in enumerate(notes(60))),
        ),
        ("not used     part",),
        TEXT,
        ("no", "yes"),
        60,
    ),
    File(
        "windows.csv",
        b"\xef\xbb\xbf" + csv("text;label", *notes(60), end="\r\n").replace(",", ";").encode(),
        (),
        TEXT,
        ("no", "yes"),
        60,
    ),
    File(
        "tabs.tsv",
        csv("text,label", *notes(60)).replace(",", "\t"),
        (),
        TEXT,
        ("no", "yes"),
        60,
    ),
    File(
        "packed.csv.gz",
        gzip.compress(csv("text,label", *notes(60)).encode()),
        ("Written to packed.yaml",),
        TEXT,
        ("no", "yes"),
        60,
    ),
    File(
        "lines.jsonl",
        "\n".join(json.dumps({"text": f"a {SECRET} day {i}", "label": i % 2}) for i in range(60)),
        (),
        TEXT,
        ("0", "1"),
        60,
    ),
    File(
        "some-to-predict.csv",
        csv("text,label", *notes(60), *notes(100, lambda i: "")[60:]),
        ("40 rows without a label: `tune` leaves such rows out",),
        TEXT,
        ("no", "yes"),
        60,
    ),
    File(
        "stars.csv",
        csv("text,label", *notes(300, lambda i: f"{0.5 + i % 10 / 2}")),
        (),
        TEXT,
        tuple(f"{n / 2}" for n in range(1, 11)),
        300,
    ),
    File(
        "regression.csv",
        csv("text,target", *RATINGS),
        ("The column 'target' holds 300 different numbers: Supermax learns classes",),
        {"text": "text"},
        unfit="learns from labels",
    ),
    File(
        "multilabel.csv",
        csv("text,label", *SEVERAL),
        ("The column 'label' holds several labels (with '|' between them) in 30 rows",),
        {"text": "text"},
        unfit="learns from labels",
    ),
    File(
        "empty-column.csv",
        csv("text,label,", *(f"{row}," for row in notes(60))),
        (),
        TEXT,
        ("no", "yes"),
        60,
    ),
    File(
        "survey.csv",
        csv(
            "words,How often did you feel sad in the last two weeks?",
            *(row.replace(",yes", ",often").replace(",no", ",never") for row in notes(60)),
        ),
        ("few values, each of them often",),
        {"text": "words", "label": "How often did you feel sad in the last two weeks?"},
        ("never", "often"),
        60,
    ),
    File(
        "spam.jsonl",
        "".join(
            json.dumps({"mail": f"{SECRET} number {i}", "spam": ("spam", "ham")[i % 2]}) + "\n"
            for i in range(60)
        ),
        ("few values, each of them often",),
        {"text": "mail", "label": "spam"},
        ("ham", "spam"),
        60,
    ),
    File(
        "codes.csv",
        csv("text,label", *notes(600, lambda i: str(i % 30))),
        (),
        TEXT,
        tuple(sorted((str(i) for i in range(30)), key=int)),
        600,
    ),
    File(
        "two-part-classes.csv",
        csv("text,label", *notes(80, lambda i: TWO_PARTS[i % 4])),
        (),
        TEXT,
        TWO_PARTS,
        80,
    ),
    File(
        "rating-and-gender.csv",
        csv(
            "text,gender,target",
            *(
                f"{row.rsplit(',', 1)[0]},{'mf'[i % 2]},{i / 7:.3f}"
                for i, row in enumerate(notes(300))
            ),
        ),
        ("The column 'target' holds 300 different numbers",),
        {"text": "text"},
        unfit="learns from labels",
    ),
    File("no-header.csv", csv(*notes(60)), ("no-header.csv has no header", "such as text,label")),
    File(
        "no-header-short.csv",
        csv(*(f"{SECRET} {i},{'yes' if i % 2 else 'no'}" for i in range(60))),
        ("no-header-short.csv has no header",),
    ),
    File(
        "torn.csv.gz",
        gzip.compress(csv("text,label", *notes(60)).encode())[:-20],
        ("torn.csv.gz is not a whole gzip file",),
    ),
    File("empty.csv", "", ("empty.csv is empty",)),
    File("header.csv", "text,label\n", ("header.csv has no rows",)),
    File(
        "numbers.csv",
        csv("a,b", *(f"{i},{i % 2}" for i in range(60))),
        ("no column that holds texts",),
    ),
    File("table.xlsx", b"PK\x03\x04", ("neither CSV nor JSONL",)),
    File(
        "large.csv",
        csv("text,label", *sorted(notes(200_000), key=lambda row: row.rsplit(",", 1)[1])),
        (),
        TEXT,
        ("no", "yes"),
        200_000,
    ),
]


def write(folder: Path, file: File) -> None:
    data = file.data if isinstance(file.data, bytes) else file.data.encode()
    (folder / file.name).write_bytes(data)


def read(folder: Path, name: str, **settings: object) -> Splits:
    return data_of(Study.from_config(folder / name, **settings).settings)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_each_file_is_read_as_people_mean_it(tmp_path: Path, file: File) -> None:
    write(tmp_path, file)
    place = f"{file.name.removesuffix('.gz').rpartition('.')[0]}.yaml"
    with inside(tmp_path):
        said = sm("init", file.name, code=0 if file.roles else 2)
        assert SECRET not in said
        for words in file.said:
            assert words in said
        if not file.roles:
            assert not (tmp_path / place).exists()
            return
        assert SECRET not in (tmp_path / place).read_text()
        settings = Study.from_config(place).settings
        assert settings.data.columns is not None
        assert settings.data.columns.model_dump(exclude_none=True) == file.roles
        if file.unfit:
            assert file.unfit in sm("tune", place, "--no-supervisor", code=2)
            return
        splits = read(tmp_path, place)
    assert sum(len({e.id for e in part.examples}) for part in splits.parts) == file.rows
    assert splits.train.label_names == file.labels


def test_words_of_another_encoding_are_read_right(tmp_path: Path) -> None:
    for file in FILES:
        if file.name in ("latin.csv", "quotes.csv", "russian.csv"):
            write(tmp_path, file)
    with inside(tmp_path):
        for name, word in (("latin", "café"), ("quotes", "\u2019long\u2019"), ("russian", "это")):
            sm("init", f"{name}.csv")
            assert all(word in e.text for e in read(tmp_path, f"{name}.yaml").train.examples)


@pytest.mark.parametrize("header", ["a,text\ttext\tlabel", '"a,text";text;label'])
def test_the_delimiter_is_that_of_all_lines(tmp_path: Path, header: str) -> None:
    mark = "\t" if "\t" in header else ";"
    rows = [mark.join(("x", *row.rsplit(",", 1))) for row in notes(60)]
    (tmp_path / "mine.csv").write_text(csv(header, *rows))
    data = {"path": str(tmp_path / "mine.csv"), "columns": TEXT}
    splits = data_of(Study.from_config({"data": data}, agent="criteria").settings)
    assert splits.train.label_names == ("no", "yes")


def test_a_byte_order_mark_that_was_written_twice_is_no_name(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_bytes(
        b"\xef\xbb\xbf" * 2 + csv("text,label", *notes(60)).encode()
    )
    data = {"path": str(tmp_path / "mine.csv"), "columns": TEXT}
    assert data_of(Study.from_config({"data": data}, agent="criteria").settings)


def test_an_encoding_that_is_given_is_taken(tmp_path: Path) -> None:
    rows = [row.replace("walk", "mały ląd") for row in notes(60)]
    (tmp_path / "polish.csv").write_bytes(csv("text,label", *rows).encode("cp1250"))
    with inside(tmp_path):
        assert "encoding     cp1250" in sm("init", "polish.csv", "--encoding", "cp1250")
        texts = [e.text for e in read(tmp_path, "polish.yaml").train.examples]
        assert all("mały ląd" in text for text in texts)
        wrong = {"data": {"path": "polish.csv", "columns": TEXT, "encoding": "cp1252x"}}
        with pytest.raises(UserError, match="There is no encoding 'cp1252x'"):
            data_of(Study.from_config(wrong, agent="criteria").settings)
        wrong["data"]["encoding"] = "ascii"
        with pytest.raises(UserError, match=r"is not ascii text. Name its encoding"):
            data_of(Study.from_config(wrong, agent="criteria").settings)


@pytest.mark.parametrize(
    ("name", "why"),
    [("regression.csv", "300 different numbers"), ("multilabel.csv", "several labels")],
)
def test_columns_that_are_no_classes_are_refused_as_labels(
    tmp_path: Path, name: str, why: str
) -> None:
    """As when somebody maps them."""
    file = next(file for file in FILES if file.name == name)
    write(tmp_path, file)
    label = "target" if name == "regression.csv" else "label"
    data = {"path": str(tmp_path / name), "columns": {"text": "text", "label": label}}
    with pytest.raises(UserError, match=why):
        data_of(Study.from_config({"data": data}, agent="criteria").settings)


def test_the_advice_for_several_labels_in_a_row_works(tmp_path: Path) -> None:
    rows = []
    for row in SEVERAL:
        text, _, labels = row.rpartition(",")
        rows += [f"{text},{one},{'yes' if one in labels else 'no'}" for one in ("joy", "anger")]
    (tmp_path / "pairs.csv").write_text(csv("text,emotion,label", *rows))
    columns = {"text": "text", "question": "emotion", "label": "label"}
    data = {"path": str(tmp_path / "pairs.csv"), "columns": columns}
    splits = data_of(Study.from_config({"data": data}, agent="criteria").settings)
    assert sum(len(part.examples) for part in splits.parts) == 180


def test_labels_that_lack_classes_are_one_line_with_advice_that_works(tmp_path: Path) -> None:
    rows = notes(600, lambda i: f"title {i % 16}")
    (tmp_path / "titles.csv").write_text(csv("text,label", *rows))
    some = [f"title {i}" for i in range(6)]
    data = {"path": str(tmp_path / "titles.csv"), "columns": TEXT}
    with pytest.raises(UserError) as told:
        data_of(Study.from_config({"data": {**data, "labels": some}}, agent="criteria").settings)
    said = str(told.value)
    assert said.count("the label is none of") == 1
    assert "more like it" in said
    assert "Remove data.labels to take all labels of the file" in said
    assert "would drop 62% of the rows" in said
    splits = data_of(Study.from_config({"data": data}, agent="criteria").settings)
    assert len(splits.train.label_names) == 16


def test_tune_takes_a_table_and_writes_its_settings(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(csv("text,label", *notes(60)))
    (tmp_path / "empty.yaml").write_text("agent: criteria\ndata: other.csv\n")
    command = ("--trials", "1", "--set", "epochs=1", "--no-supervisor")
    with inside(tmp_path):
        said = sm("tune", "mine.csv", *command)
        assert "text         text  (by its name)" in said
        assert "Written to mine.yaml" in said
        settings = (tmp_path / "mine.yaml").read_text()
        said = sm("tune", "mine.csv", *command)  # goes on, here: is done
        assert "The settings are those of mine.yaml" in said
        assert (tmp_path / "mine.yaml").read_text() == settings
        (tmp_path / "empty.csv").write_text(csv("text,label", *notes(60)))
        said = sm("tune", "empty.csv", *command, code=2)
        assert "is not about empty.csv" in said
        sm("init", "empty.csv", "-o", "other.yaml")  # as it says


def test_columns_that_are_not_given_are_guessed_and_told(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(csv("what was said,verdict", *notes(60)))
    with inside(tmp_path):
        study = Study.from_config(agent="criteria", data="mine.csv")
        plan = "\n".join(study.plan())
        assert "data.columns.text = what was said (guessed, the longest texts)" in plan
        assert "data.columns.label = verdict (guessed, by its name)" in plan
        assert study.splits.train.label_names == ("no", "yes")


def test_looking_at_a_table_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(csv("text,label", *notes(60)))
    with inside(tmp_path):
        assert "tiny" in sm("plan", "mine.csv", "--gpu-memory", "24GiB")
        assert not Path("mine.yaml").exists()


def test_a_table_that_is_not_there_is_no_agent(tmp_path: Path) -> None:
    with inside(tmp_path):
        for name in ("missing.csv", "data/missing.csv"):
            said = sm("tune", name, "--no-supervisor", code=2)
            assert f"There is no file {name}." in said
            assert "agent" not in said


def test_an_encoding_that_is_given_stands_in_the_settings(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(csv("text,label", *notes(60)))
    with inside(tmp_path):
        sm("init", "mine.csv", "--encoding", "utf-8")
        assert Study.from_config("mine.yaml").settings.data.encoding == "utf-8"


def test_the_settings_of_a_table_are_found_by_any_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(csv("text,label", *notes(60)))
    (tmp_path / "below").mkdir()
    with inside(tmp_path):
        sm("init", "mine.csv")
        given = ("--trials", "1", "--epochs", "1", "--no-supervisor")
        assert "trial 0" in sm("tune", "below/../mine.csv", *given)


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_bytes(csv("\ufefftext,label", *notes(60)).encode("utf-16-le"))
    data = {"path": str(tmp_path / "mine.csv"), "columns": TEXT, "encoding": "utf-16-le"}
    assert data_of(Study.from_config({"data": data}, agent="criteria").settings)


def test_a_file_of_white_space_is_empty(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("\u00a0\n")
    with pytest.raises(UserError, match="has no rows"):
        data_of(Study.from_config(agent="criteria", data=str(tmp_path / "mine.csv")).settings)


def test_validation_rows_are_drawn_from_train_where_there_are_none(tmp_path: Path) -> None:
    """Test rows stay test rows; the share and the seed are those of the settings."""
    (file,) = [file for file in FILES if file.name == "train-and-test.csv"]
    write(tmp_path, file)
    with inside(tmp_path):
        sm("init", file.name)
        splits = read(tmp_path, "train-and-test.yaml")
        again = read(tmp_path, "train-and-test.yaml")
        said = planning.described(prepared(resolved("train-and-test.yaml", {})[0]))
    days = [{int(e.text.split()[2]) for e in part.examples} for part in splits.parts]
    assert days[2] == set(range(80, 100))
    assert (len(days[0]), len(days[1])) == (68, 12)
    assert days[0] | days[1] == set(range(80))
    assert splits.fingerprint == again.fingerprint
    assert "the file has no validation rows: they were drawn from train" in said
