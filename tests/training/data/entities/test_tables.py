"""Tables whose rows have entities: tokens with tags, and texts with marked characters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from supermax.errors import UserError
from supermax.search.data import data_of, with_columns
from supermax.search.settings.resolving import resolve
from supermax.space.presets import presets
from supermax.training.data.columns import Columns
from supermax.training.data.entities.tables import known_entities, open_entities, read_entities
from supermax.training.data.examples import Corpus, Example
from supermax.training.data.guessing import guess_file
from supermax.training.data.read_options import ReadOptions
from supermax.training.data.splits import split

TAGGED = Columns(text="tokens", label="ner_tags")
MARKED = Columns(text="text", label="entities")
SECRET = "zanzibarquux"


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def found(corpus: Corpus) -> list[list[tuple[str, str]]]:
    """Return text and type of the entities of each example."""

    def named(e: Example) -> list[tuple[str, str]]:
        return [(e.text[a:b], corpus.label_names[kind]) for a, b, kind in e.entities or ()]

    return [named(example) for example in corpus.entities]


def test_tokens_with_tags(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"tokens": ["Anna", "Berg", "left", "Oslo"], "ner_tags": ["I-PER", "E-PER", "O", "S-LOC"]},
        {"tokens": ["it", "rained"], "ner_tags": ["O", "O"]},
        {"tokens": ["to", "predict"], "ner_tags": None},
    ]
    corpus = read_entities(write(tmp_path / "a.jsonl", rows), TAGGED)
    assert corpus.label_names == ("LOC", "PER")
    assert found(corpus) == [[("Anna Berg", "PER"), ("Oslo", "LOC")], []]
    assert corpus.entities[0].words == ((0, 4), (5, 9), (10, 14), (15, 19))
    assert (corpus.classes, corpus.unlabelled[0].rows, corpus.remarks) == ((), 1, ())
    unmapped = read_entities(tmp_path / "a.jsonl", Columns(text="tokens"))
    assert [example.entities for example in unmapped.entities] == [None] * 3


def test_texts_with_entities(tmp_path: Path) -> None:
    text = "Née Anna, in EUR50 notes"
    marks: list[Any] = [{"start": 3, "end": 8, "label": "PER"}, [13, 16, "CUR"]]
    rows = [{"text": text, "entities": marks}, {"text": "no one", "entities": []}]
    corpus = read_entities(write(tmp_path / "a.jsonl", rows), MARKED)
    assert found(corpus) == [[("Anna", "PER"), ("EUR", "CUR")], []]
    assert corpus.entities[0].words == ()
    (remark,) = corpus.remarks
    assert remark.startswith("1 entity of a.jsonl begins or ends within a word")
    ordered = read_entities(tmp_path / "a.jsonl", MARKED, labels=["PER", "CUR"])
    assert ordered.label_names == ("PER", "CUR")


def test_classes_of_datasets_have_their_names() -> None:
    datasets = pytest.importorskip("datasets")
    names = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    tags = datasets.Sequence(datasets.ClassLabel(names=names))
    features = datasets.Features({"tokens": datasets.Sequence(datasets.Value("string")),
                                  "pos_tags": datasets.Sequence(datasets.Value("int64")),
                                  "ner_tags": tags})  # fmt: skip
    rows = {
        "tokens": [["Anna", "Berg", "left"], ["in", "Oslo"]],
        "pos_tags": [[1, 1, 2], [3, 1]],
        "ner_tags": [[1, 2, 0], [0, 3]],
    }
    data = datasets.Dataset.from_dict(rows, features=features)
    guessed = guess_file(data)
    assert guessed.agent == "token-classification"
    assert (guessed.role("text"), guessed.role("label")) == ("tokens", "ner_tags")
    assert found(read_entities(data, TAGGED)) == [[("Anna Berg", "PER")], [("Oslo", "LOC")]]


BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"tokens": [SECRET, "b"], "ner_tags": ["O"]},
        "there are not as many tags as tokens (1 tags, 2 tokens)",
    ),
    ({"tokens": [SECRET, " "], "ner_tags": ["O", "O"]}, "empty or no text (token 2)"),
    ({"tokens": [SECRET, 1.5, None], "ner_tags": ["O"] * 3}, "empty or no text (token 3)"),
    ({"tokens": [SECRET], "ner_tags": "O"}, "the tags are not a list"),
    ({"tokens": [SECRET], "ner_tags": ["NNP"]}, "is neither O nor a type after B-"),
    ({"tokens": [SECRET], "ner_tags": [3]}, "the tags are numbers without names (token 1)"),
    ({"tokens": SECRET, "ner_tags": ["O"]}, "tags need a list of tokens"),
    ({"tokens": {SECRET: 1}, "ner_tags": ["O"]}, "neither a text nor a list of tokens"),
    ({"tokens": SECRET, "ner_tags": SECRET}, "the entities are not a list"),
    ({"tokens": SECRET, "ner_tags": [{"start": 0, "end": 2}]}, "is not {start, end, label}"),
    ({"tokens": SECRET, "ner_tags": [[0, True, "X"]]}, "is not {start, end, label}"),
    (
        {"tokens": SECRET, "ner_tags": [[0, 99, "X"]]},
        f"outside the text (characters 0 to 99 of {len(SECRET)})",
    ),
    ({"tokens": SECRET, "ner_tags": [[-1, 2, "X"]]}, "an entity is outside the text"),
    ({"tokens": SECRET, "ner_tags": [[2, 2, "X"]]}, "an entity is empty or white space"),
    (
        {"tokens": SECRET, "ner_tags": [[2, 5, "X"], [0, 3, "Y"]]},
        "two entities overlap (0 to 3, and 2 to 5)",
    ),
    ({"tokens": [], "ner_tags": []}, "the text is missing"),
]


@pytest.mark.parametrize(("row", "said"), BAD)
def test_mistakes_are_named_by_row(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    good = {"tokens": ["Anna"], "ner_tags": ["B-PER"]}
    path = write(tmp_path / "a.jsonl", [good, row, *[good] * 19])
    with pytest.raises(UserError) as error:
        read_entities(path, TAGGED)
    assert f"a.jsonl, line 2: {said}" in str(error.value) or said in str(error.value)
    assert "a.jsonl, line 2: " in str(error.value)
    assert SECRET not in str(error.value)
    skipped = read_entities(path, TAGGED, on_bad="skip")
    assert (skipped.skipped, len(skipped.entities)) == (1, 20)


def test_a_mistake_in_conll_names_the_line_of_the_token(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("# a comment\nAnna B-PER\nleft PER\n\nOslo B-LOC\n")
    columns = Columns(text="tokens", label="tags")
    with pytest.raises(UserError, match=r"a.conll, line 3: the tag is .* \('PER', token 2\)"):
        read_entities(path, columns)


def test_what_cannot_be_learned_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"tokens": ["it"], "ner_tags": ["O"], "q": "who?"}])
    with pytest.raises(UserError, match="no row has an entity in the column 'ner_tags'"):
        read_entities(path, TAGGED)
    with pytest.raises(UserError, match="leave the column of the question unmapped"):
        read_entities(path, Columns(text="tokens", label="ner_tags", question="q"))
    with pytest.raises(UserError, match="the same one twice"):
        read_entities(path, TAGGED, labels=["A", "A"])
    write(path, [{"tokens": ["it"], "ner_tags": ["B-X"]}])
    with pytest.raises(UserError, match="the type of an entity is none of PER") as error:
        read_entities(path, TAGGED, labels=["PER"])
    assert "Remove data.labels" in str(error.value)
    assert read_entities(path, TAGGED, labels=["X"]).label_names == ("X",)


def test_known_entities_of_a_file_with_mistakes(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "a", "tokens": ["Anna"], "ner_tags": ["B-PER"]},
        {"id": "b", "tokens": ["Anna"], "ner_tags": ["?"]},
        {"id": "c", "tokens": ["Anna"], "ner_tags": None},
    ]
    columns = Columns(text="tokens", label="ner_tags", id="id")
    known = known_entities(write(tmp_path / "a.jsonl", rows), columns)
    assert {name: [e.type for e in each] for name, each in known.items()} == {"a": ["PER"]}


def test_splits_keep_the_types_and_documents_together(tmp_path: Path) -> None:
    rows = [
        {"tokens": [f"{kind}{i}", "it"], "ner_tags": [f"B-{kind}", "O"], "doc": f"d{i // 4}"}
        for i, kind in enumerate(["A"] * 160 + ["B"] * 20 + ["C"] * 20)
    ]
    columns = Columns(text="tokens", label="ner_tags", group="doc")
    parts = split(read_entities(write(tmp_path / "a.jsonl", rows), columns), test=0.2).parts
    groups = [{e.group for e in part.entities} for part in parts]
    assert not groups[0] & groups[1] | groups[0] & groups[2] | groups[1] & groups[2]
    for part in parts:
        kinds = {e.type for example in part.entities for e in example.entities or ()}
        assert kinds == {0, 1, 2}


def test_the_fingerprint_depends_on_entities_and_words(tmp_path: Path) -> None:
    def fingerprint(**row: Any) -> str:
        rows = [{"tokens": ["a b", "c"], "ner_tags": ["B-X", "O"], **row}]
        return read_entities(write(tmp_path / "a.jsonl", rows), TAGGED).fingerprint

    other_words = fingerprint(tokens=["a", "b", "c"], ner_tags=["B-X", "I-X", "O"])
    assert len({fingerprint(), fingerprint(ner_tags=["O", "B-X"]), other_words}) == 3


GUESSES: list[tuple[dict[str, Any], dict[str, str]]] = [
    (
        {"words": ["Anna", "left"], "labels": ["B-PER", "O"], "id": "x"},
        {"text": "words", "label": "labels"},
    ),
    (
        {"tokens": ["Anna", "left"], "chunk_tags": ["B-NP", "B-VP"], "ner_tags": ["B-PER", "O"]},
        {"text": "tokens", "label": "ner_tags"},
    ),
    ({"tokens": ["Anna", "left"]}, {"text": "tokens"}),
    (
        {"note": "Anna left Oslo for good", "marks": [{"start": 0, "end": 4, "label": "PER"}]},
        {"text": "note", "label": "marks"},
    ),
]


@pytest.mark.parametrize(("row", "roles"), GUESSES)
def test_columns_are_guessed(tmp_path: Path, row: dict[str, Any], roles: dict[str, str]) -> None:
    guessed = guess_file(write(tmp_path / "a.jsonl", [row] * 30))
    assert guessed.agent == "token-classification"
    assert {guess.role: guess.column for guess in guessed.columns} == roles
    assert guessed.unlabelled == 0
    if "label" in roles:
        assert guessed.labels == ("PER",)


def test_a_search_reads_the_columns_that_are_guessed(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    documents = (f"-DOCSTART- O\n\nAnna{i} B-PER\n\nOslo{i} B-LOC\n\n" for i in range(25))
    path.write_text("".join(documents))
    guessed = guess_file(path)
    assert (guessed.unused, guessed.labels) == (("document",), ("LOC", "PER"))
    resolved = resolve("token-classification", flags={}, presets=presets())
    data = resolved.settings.data.model_copy(update={"path": str(path)})
    settings = resolved.settings.model_copy(update={"data": data})
    filled = with_columns(type(resolved)(settings, resolved.sources, resolved.layers))
    splits = data_of(filled.settings)
    assert sum(len(part.entities) for part in splits.parts) == 50
    assert all(part.entities for part in splits.parts)


def test_predefined_splits(tmp_path: Path) -> None:
    rows = [
        {"tokens": [f"n{i}"], "ner_tags": ["B-X"], "split": part}
        for i, part in enumerate(["train", "train", "dev", "test"])
    ]
    columns = Columns(text="tokens", label="ner_tags", split="split")
    table = open_entities(write(tmp_path / "a.jsonl", rows), columns, ReadOptions())
    assert [len(table.part(name).entities) for name in ("train", "validation", "test")] == [
        2,
        1,
        1,
    ]
