"""`supermax plan`: memory by item, as JSON too, and errors for wrong options."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from supermax._util.text import size_text
from supermax.errors import UserError
from supermax.results.records import AttemptRecord, TrialRecord
from supermax.training.models.sources import find
from supermax.ui.cli.inspect import _memory, _planned
from tests.ui.cli.helping import sm

LARGE = ("plan", "--model", "bert-large-uncased", "--batch", "48", "--accum", "4")


def data(*args: str, code: int = 0) -> Any:
    return json.loads(sm(*args, "--json", code=code))


def test_a_batch_that_does_not_fit_is_split_into_micro_batches() -> None:
    found = data(*LARGE, "--length", "480", "--gpu-memory", "24GiB")
    assert found["effective_batch"] == 192
    assert found["asked"]["total"] > 24 << 30
    assert found["planned"]["total"] <= 24 << 30
    plan = found["plan"]
    assert plan["micro_batch"] * plan["micro_batches"] >= 192
    assert sum(v for k, v in found["asked"].items() if k != "total") == found["asked"]["total"]


def test_an_unsplit_plan_needs_the_memory_that_was_asked_for() -> None:
    for batch, length in (("1", "8"), ("4", "32"), ("16", "256")):
        size = ("--batch", batch, "--length", length, "--gpu-memory", "24GiB")
        found = data("plan", "--model", "bert-base-uncased", "--optimizer", "adafactor", *size)
        assert found["plan"]["micro_batch"] == int(batch)
        assert found["asked"] == found["planned"]


def test_json_names_what_the_plan_is_for() -> None:
    size = ("--gpu-memory", "24GiB", "--optimizer", "lion", "--agent", "share", "--device", "cpu")
    for name in ("bert-base-uncased", "tiny"):
        found = data("plan", "--model", name, *size)
        said = [found[key] for key in ("model", "agent", "optimizer", "device", "budget")]
        assert said == [name, "share", "lion", "cpu", 24 << 30]


def test_a_joint_trial_has_two_encoders() -> None:
    joint = ("plan", "--agent", "joint", "--gpu-memory", "80GiB", "--model")
    base, large = "bert-base-uncased", "bert-large-uncased"
    twice = data(*joint, base)
    both = data(*joint, base, "--evidence-model", large)
    assert (both["model"], both["evidence_model"]) == (base, large)
    assert twice["evidence_model"] == base
    totals = [found["asked"]["total"] for found in (twice, both, data(*joint, large))]
    assert totals == sorted(set(totals))
    for wrong, words in (
        (("plan", "--model", base, "--evidence-model", large), "--agent joint"),
        ((*joint, base, "--evidence-model", "a,b"), "one encoder"),
        (
            (*joint, "answerdotai/ModernBERT-base", "--evidence-model", base, "--length", "600"),
            "bert-base-uncased takes at most 512",
        ),
    ):
        assert words in sm(*wrong, "--gpu-memory", "8GiB", code=2)


def test_more_memory_allows_larger_micro_batches() -> None:
    sizes = [
        data(*LARGE, "--length", "128", "--gpu-memory", f"{gib}GiB")["plan"]["micro_batch"]
        for gib in (24, 40, 80)
    ]
    assert sizes == sorted(sizes)
    assert sizes[-1] == 192


def test_a_device_that_is_too_small_gets_advice() -> None:
    assert "needs 6." in sm(*LARGE, "--length", "480", "--gpu-memory", "4GiB", code=1)


def test_a_larger_micro_batch_than_asked_for_is_explained() -> None:
    base = ("plan", "--model", "bert-base-uncased", "--batch", "16")
    whole = sm(*base, "--accum", "4", "--gpu-memory", "24GiB")
    assert "64 sequences at once. The accumulated batches fit at once, which is faster" in whole
    some = sm(*base, "--accum", "64", "--gpu-memory", "12GiB")
    assert "More than 16 fit at once, which is faster" in some
    assert "4 such trials fit side by side." in sm(*base, "--gpu-memory", "24GiB")
    assert data(*base, "--gpu-memory", "24GiB")["side_by_side"] == 4
    assert data(*base, "--gpu-memory", "1GiB", code=1)["side_by_side"] == 0
    for asked in ((*base, "--gpu-memory", "24GiB"), (*base, "--gpu-memory", "4GiB")):
        assert "which is faster" not in sm(*asked)


def test_the_columns_of_a_space_are_explained() -> None:
    said = sm("plan", "--space", "demo", "--gpu-memory", "24GiB")
    assert "The largest: memory of the largest combination as is. All fit from:" in said


def test_the_overlap_of_gradients_and_activations_is_explained() -> None:
    plan = ("plan", "--gpu-memory", "24GiB", "--model")
    less = sm(*plan, "bert-large-uncased", "--batch", "16", "--length", "128")
    assert "less: not all allocated at once" in less
    assert "frees activations while it allocates gradients" in less
    small = ("--batch", "1", "--length", "8", "--optimizer", "lion")
    more = sm(*plan, "bert-base-uncased", *small)
    assert "more for the optimizer step or evaluation" in more
    assert "less:" not in more
    assert "frees activations" not in more


def test_what_is_left_of_the_memory_is_shown() -> None:
    found = data(*LARGE, "--length", "480", "--gpu-memory", "24GiB")
    said = sm(*LARGE, "--length", "480", "--gpu-memory", "24GiB")
    (line,) = [line for line in said.splitlines() if "left of 24.0 GiB" in line]
    assert f"-{size_text(found['asked']['total'] - (24 << 30))}" in line
    assert size_text((24 << 30) - found["planned"]["total"]) in line


@pytest.mark.slow
def test_every_encoder_of_a_space_has_its_share() -> None:
    found = data("plan", "--space", "supermax", "--gpu-memory", "24GiB")
    assert len(found["encoders"]) == 7
    assert (found["agent"], found["device"], found["budget"]) == ("criteria", "cuda", 24 << 30)
    for share in found["encoders"].values():
        assert share["whole"] + share["split"] + share["never"] == share["combinations"]
        assert share["never"] == 0
        assert share["whole"] > 0
        assert share["split"] > 0


@pytest.mark.slow
def test_a_search_is_planned_as_its_file_says(tmp_path: Path) -> None:
    file = tmp_path / "notes.yaml"
    file.write_text(
        "agent: share\npreset: max\ngpu_memory: 8GiB\nmodels: [bert-base-uncased]\n"
        "narrow: {text.max_length: 128}\ndata: {path: not/there.csv}\n"
    )
    found = data("plan", str(file))
    assert (found["agent"], found["budget"]) == ("share", 8 << 30)
    ((name, share),) = found["encoders"].items()
    every = data("plan", "--space", "max", "--agent", "share", "--gpu-memory", "24GiB")
    assert name == "bert-base-uncased"
    assert share["largest"] < every["encoders"][name]["largest"]  # its lengths are shorter
    assert "on a device with 24.0 GiB" in sm("plan", str(file), "--gpu-memory", "24GiB")


@pytest.mark.parametrize("command", ["plan", "tune"])
def test_a_space_without_an_encoder_is_a_user_error(tmp_path: Path, command: str) -> None:
    file = tmp_path / "notes.yaml"
    file.write_text("agent: share\nspace: {parameters: {optim.name: {choices: [adamw, lion]}}}\n")
    more = ("--no-supervisor", "--storage", f"{tmp_path}/a.db") if command == "tune" else ()
    said = sm(command, str(file), "--gpu-memory", "24GiB", *more, code=2)
    assert "The space 'share' has no encoder to train. Give it some" in said


def test_an_agent_is_planned_as_tune_would_search_it() -> None:
    found = data("plan", "joint", "--gpu-memory", "24GiB")
    assert found == data("plan", "--space", "demo", "--agent", "joint", "--gpu-memory", "24GiB")


@pytest.mark.parametrize("name", ["bert-base-uncased", "untrained/bert-base-uncased", "tiny"])
def test_an_encoder_goes_by_the_name_that_was_asked_for(name: str) -> None:
    said = sm("plan", "--model", name, "--gpu-memory", "100MiB", code=1)
    assert said.startswith(f"{name}, an effective batch of 16")
    assert f"No plan: {name} at 256 tokens" in said
    long = sm("plan", "--model", name, "--gpu-memory", "24GiB", "--length", "9999", code=2)
    assert long.startswith(f"{name} takes ")


BERT = {"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def folder_of(folder: Path, config: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_a_configuration_alone_is_enough_to_plan(tmp_path: Path) -> None:
    name = folder_of(tmp_path, BERT)
    assert "Plan: 16 sequences at once." in sm("plan", "--model", name, "--gpu-memory", "24GiB")
    with pytest.raises(UserError, match="it has no weights"):
        find(name)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "gpt2"}, "cannot be used: it is a decoder with causal attention (gpt2)"),
        (BERT | {"hidden_size": 65}, "makes no encoder: The hidden size (65)"),
        (BERT | {"hidden_size": -64}, "makes no encoder"),
        (BERT | {"num_attention_heads": 0}, "makes no encoder"),
        (BERT | {"num_hidden_layers": 0}, "makes no encoder"),
        (BERT | {"num_hidden_layers": "two"}, "cannot be used"),
        ({"model_type": "no such"}, "cannot be used"),
        ({}, "cannot be used"),
    ],
)
def test_a_configuration_that_makes_no_encoder_is_a_user_error(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    name = folder_of(tmp_path, config)
    said = sm("plan", "--model", name, "--gpu-memory", "24GiB", code=2)
    assert words in said
    assert "Traceback" not in said


def test_the_exit_code_is_1_where_nothing_fits() -> None:
    small = ("--gpu-memory", "100MiB")
    assert "No plan: tiny" in sm("plan", "--model", "tiny", *small, code=1)
    assert data("plan", "--model", "tiny", *small, code=1)["plan"] is None
    assert "No combination fits into 100 MiB" in sm("plan", "--space", "demo", *small, code=1)
    data("plan", "--space", "demo", *small, code=1)
    assert "Nothing" not in sm("plan", "--space", "demo", "--gpu-memory", "24GiB")


@pytest.mark.parametrize(
    ("notes", "reserved", "words"),
    [
        ({"peak_rss": 378 << 20}, 286 << 20, "378 MiB host (the whole process; reservations"),
        ({"peak_rss": 378 << 20}, None, "378 MiB host"),
        ({"peak_rss": 1 << 30, "device_reserved": 2 << 30}, 3 << 30, "1.0 GiB host, 2.0 GiB res"),
    ],
)
def test_a_cpu_peak_is_distinguished_from_the_reservation(
    notes: dict[str, int], reserved: int | None, words: str
) -> None:
    attempt = AttemptRecord(1, 0, 0.0, 1.0, "COMPLETE", reserved=reserved)
    (line,) = _memory(cast(TrialRecord, SimpleNamespace(notes=notes, attempts=[attempt])))
    assert line.startswith(f"Peak memory: {words}")
    assert ("(" in line) == ("(" in words)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "Name one encoder"),
        (("--model", "tiny", "--space", "demo"), "Name one encoder"),
        (("criteria", "--space", "demo"), "Name one encoder"),
        (("criteria", "--model", "tiny"), "Name one encoder"),
        (("criteria", "--batch", "16"), "--batch cannot go with criteria"),
        (("criteria", "--agent", "joint"), "--agent cannot go with criteria"),
        (("criteria", "--gpu-memory", "24"), "24 what? Write 24GiB or 500MB."),
        (("criteria", "--evidence-model", "tiny"), "--evidence-model goes with --model"),
        (("criterai",), "did you mean 'criteria'"),
        (("all",), "one search at a time"),
        (("not/there.yaml",), "There is no file not/there.yaml"),
        (("--space", "demo", "--batch", "16"), "--batch cannot go with --space"),
        (("--space", "demo", "--frozen", "0", "--accum", "2"), "--accum and --frozen cannot go"),
        (("--space", "demo", "--length", "64"), "--length cannot go with --space"),
        (("--space", "demo", "--optimizer", "lion"), "--optimizer cannot go with --space"),
        (("--space", "demo/joint", "--agent", "share"), "which is for the agent joint"),
        (("--space", "demo", "--agent", "joit"), "did you mean 'joint'"),
        (("--model", "tiny,tiny-bert"), "plan takes one encoder; --space shows several"),
        (("--model", "bert-bse-uncased", "--gpu-memory", "1GiB"), "bert-base-uncased"),
        (("--model", "tiny", "--gpu-memory", "much"), "no size"),
        (("--model", "tiny", "--gpu-memory", "24"), "24 what? Write 24GiB or 500MB."),
        (("--model", "tiny", "--gpu-memory", "0.5"), "0.5 what?"),
        (("--model", "tiny", "--gpu-memory", "1GiB", "--length", "9999"), "at most 514 tokens"),
        (("--model", "tiny", "--batch", "1000000000"), "100000"),
        (("--model", "tiny", "--accum", "1000000"), "10000"),
        (("--model", "tiny-bert", "--gpu-memory", "1GiB", "--frozen", "7"), "has only 2 layers"),
        (("--model", "tiny", "--gpu-memory", "1GiB", "--agent", "criterai"), "criteria"),
        (("--model", "tiny", "--gpu-memory", "1GiB", "--optimizer", "adam"), "adamw"),
        (("--model", "tiny", "--gpu-memory", "1GiB", "--device", "tpu"), "cpu"),
    ],
)
def test_wrong_options_are_user_errors(args: tuple[str, ...], words: str) -> None:
    said = sm("plan", *args, code=2)
    assert words in said
    assert "Traceback" not in said


def test_show_explains_why_a_batch_was_split() -> None:
    why = "the whole batch would need 9.0 GiB, and 8.0 GiB are available"
    attempt = AttemptRecord(
        1, 1, 0.0, 1.0, "COMPLETE", reserved=2 << 30, plan={"micro_batch": 4}, why=why
    )
    assert _planned(attempt) == f", micro-batches of 4 ({why}), 2.0 GiB reserved"
