"""Typical user files, and what `init` and a search read from each: a table for tests."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field

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
    roles: dict[str, str] | dict[str, str | list[str]] = field(default_factory=dict)
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
        ("few values, each in many rows",),
        {"text": "a", "label": "b"},
        ("no", "yes"),
        6000,
    ),
    File(
        "titles.csv",
        csv("passage,asked,answer,start,title", *asked(6000, 16)),
        ("agent        question-answering (evidence)",),
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
        ("The column 'label' holds only one class; a search needs two.",),
        TEXT,
        unfit="one-class.csv: all rows have the same label; classes need at least two",
    ),
    File(
        "ragged.csv",
        csv("text,label", *notes(60), *(f"{row},more" for row in notes(2))),
        (
            "`tune` refuses 2 rows of this data as it is:",
            "ragged.csv, line 62: the row and the header have different numbers of fields",
        ),
        TEXT,
        unfit="different numbers of fields",
    ),
    File(
        "twice.csv",
        csv("text,label,label", *(f"{row},{'xy'[i % 2]}" for i, row in enumerate(notes(60)))),
        ("`tune` refuses this data as it is:", "line 1: the column 'label' occurs twice"),
        TEXT,
        unfit="the column 'label' occurs twice",
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
            "The column 'split' is not used, and `tune` splits all rows: besides train, "
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
        ("40 rows without a label: `tune` skips such rows",),
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
        ("by its name, numbers", "agent        regression"),
        {"text": "text", "label": "target"},
        rows=300,
    ),
    File(
        "multilabel.csv",
        csv("text,label", *SEVERAL),
        ("several labels in a row", "|  (between labels, detected)", "agent        multilabel"),
        TEXT | {"label_separator": "|"},
        ("anger", "joy"),
        90,
    ),
    File(
        "lists.jsonl",
        "".join(
            json.dumps({"note": f"{SECRET} number {i}", "topics": ["b", "a", "c"][: i % 4]}) + "\n"
            for i in range(60)
        ),
        ("several labels in a row", "agent        multilabel"),
        {"text": "note", "label": "topics"},
        ("a", "b", "c"),
        60,
    ),
    File(
        "zeros-and-ones.csv",
        csv(
            "comment,rude,threat,spam",
            *(
                f"{row.rsplit(',', 1)[0]},{i % 2},{int(i % 3 == 0)},{int(i % 5 == 0)}"
                for i, row in enumerate(notes(60))
            ),
        ),
        ("labels       rude, threat, spam  (columns of 0 and 1)", "agent        multilabel"),
        {"text": "comment", "labels": ["rude", "threat", "spam"]},
        ("rude", "threat", "spam"),
        60,
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
        ("few values, each in many rows",),
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
        ("few values, each in many rows",),
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
        ("by its name, numbers", "agent        regression"),
        {"text": "text", "label": "target"},
        rows=300,
    ),
    File(
        "names.conll",
        "".join(f"Anna{i} B-PER\nmet O\n{SECRET} O\nin O\nOslo B-LOC\n\n" for i in range(40)),
        ("names.conll (CoNLL) is read as", "a tag for each token", "agent        token-classi"),
        {"text": "tokens", "label": "tags"},
        ("LOC", "PER"),
        40,
    ),
    File(
        "marked.jsonl",
        "".join(
            json.dumps(
                {
                    "text": f"On day {i} the {SECRET} met Anna in Oslo",
                    "spans": [{"start": 23, "end": 27, "label": "PER"}] if i % 2 else [],
                }
            )
            + "\n"
            for i in range(10, 70)
        ),
        ("entities of the texts", "agent        token-classification"),
        {"text": "text", "label": "spans"},
        ("PER",),
        60,
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
        csv("text,label", *sorted(notes(20_000), key=lambda row: row.rsplit(",", 1)[1])),
        (),
        TEXT,
        ("no", "yes"),
        20_000,
    ),
]
