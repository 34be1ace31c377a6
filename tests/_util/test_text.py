"""Text of messages: durations, masked secrets, printable text."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supermax._util.text import (
    clock,
    in_short,
    masked,
    masked_addresses,
    masked_url,
    metric_title,
    mistyped_url,
    nearest,
    one_line,
    printable,
    took,
)
from supermax.errors import UserError

ANY_TEXT = st.text(st.characters(categories=None))


@given(ANY_TEXT)
def test_printable_text_can_always_be_encoded(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert all(char.isprintable() or char in "\n\t" for char in shown)
    assert one_line(text).isprintable()


def test_terminal_sequences_are_removed_and_the_rest_stays() -> None:
    assert printable("a\x00b\ud800\x1b[31mred\x1b[0m") == "a\ufffdb\ufffdred"
    assert printable("x\x1b(By\r\nz\u00a0w\u2028") == "xy\nz w\ufffd"
    assert printable("\x1b\x1b[31m[31mred") == "\ufffd[31mred"  # what is left is no sequence


def test_one_line_is_limited() -> None:
    assert one_line("x" * 10_000_000) == "x" * 999 + "…"
    assert one_line(" a\n\tb  c ", 5) == "a b c"
    assert one_line("abcdef", 5) == "abcd…"


@pytest.mark.parametrize(
    ("said", "shown", "abroad"),
    [
        ("mysql://u:p@w@host/x", "mysql://u:***@host/x", "mysql://***@host/x"),
        ("mysql://u:p/w@host/x", "mysql://u:***@host/x", "mysql://***@host/x"),
        ("at http://name@host/", "at http://name@host/", "at http://***@host/"),
        ("see https://host/a:b@c", "see https://host/a:b@c", "see https://host/a:b@c"),
        ("x?password=a&b", "x?password=***", "x?password=***"),
        ("my_secret: abc d", "my_secret: *** d", "my_secret: *** d"),
        ("HF_TOKEN = hf_1", "HF_TOKEN = ***", "HF_TOKEN = ***"),
        ("17 tokens: fine", "17 tokens: fine", "17 tokens: fine"),
        ("no such key: x", "no such key: x", "no such key: x"),
        ("api_key=1 x", "api_key=*** x", "api_key=*** x"),
        ("AWS_SECRET_ACCESS_KEY=1", "AWS_SECRET_ACCESS_KEY=***", "AWS_SECRET_ACCESS_KEY=***"),
        ("PWD%3Dabc", "PWD%3D***", "PWD%3D***"),
        ("password='a b' x", "password=*** x", "password=*** x"),
        ("{'password': 'x'", "{'password': ***", "{'password': ***"),
        ("at bob:s3@cr@h/db", "at bob:***@h/db", "at ***@h/db"),
        ("/x/bob:s3cr3t@h/db", "/x/bob:***@h/db", "/x/***@h/db"),
    ],
)
def test_passwords_are_masked(said: str, shown: str, abroad: str) -> None:
    assert masked(said) == shown
    assert masked(said, users=False) == abroad


def test_an_invalid_url_is_shown_without_its_login() -> None:
    assert masked_url("what://u:p w@x:y?api_key=1&a=2") == "what://***@x:y?api_key=***&a=2"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("bob:s3cr3t@h/db", "***@h/db"),
        ("x://h/?sslkey=1&sslpassword=2&a=3", "x://h/?sslkey=***&sslpassword=***&a=3"),
        ("x://?odbc_connect=DRIVER%3Dd%3BPWD%3Dabc&a=3", "x://?odbc_connect=***&a=3"),
        ("x://h/?options=pwd%3Dabc&key=1", "x://h/?options=pwd%3D***&key=***"),
        ("x://h/?pass%77ord=1&user=2", "x://h/?pass%77ord=***&user=2"),
        ("x://h/?passwd=1&pwd=2&token=3", "x://h/?passwd=***&pwd=***&token=***"),
        ("x://h/?pass=1&auth_token=2&sig=3&db=4", "x://h/?pass=***&auth_token=***&sig=***&db=4"),
    ],
)
def test_no_secret_of_a_url_is_shown(url: str, shown: str) -> None:
    assert masked_url(url) == shown


@pytest.mark.parametrize(
    ("folder", "start"),
    [
        ("s3:/bucket/x", "s3://"),
        ("s3//bucket/x", "s3://"),
        ("S3:bucket", "s3://"),
        ("gs:/me:hunter2@bucket", "gs://"),
        ("file:/shared", "file://"),
        ("s3://bucket/x", None),
        ("s4://bucket", None),
        ("/shared/s3:/x", None),
        ("./s3:/bucket/x", None),
        ("s3/bucket", None),
        ("run:1", None),
        ("checkpoints", None),
    ],
)
def test_a_folder_that_is_meant_as_a_url(folder: str, start: str | None) -> None:
    why = mistyped_url(folder)
    assert (why is None) == (start is None)
    if why is not None:
        assert f"write {start}… for the URL, or ./" in why
        assert "hunter2" not in why


def test_code_in_a_traceback_is_unchanged() -> None:
    said = "token = tokenizer(x)\nOSError: x://u:p@h/?password=1&a=2 'x://h/?key=3'"
    shown = "token = tokenizer(x)\nOSError: x://u:***@h/?password=***&a=2 'x://h/?key=***'"
    assert masked_addresses(said) == shown


def test_errors_show_no_password() -> None:
    address = "postgresql://bob:s3cr3t@host/db?sslpassword=s3cr3t"
    for text in (str(UserError(f"no {address}")), in_short(OSError(address))):
        assert "s3cr3t" not in text
        assert "host" in text


def test_a_long_text_is_masked_quickly() -> None:
    began = time.monotonic()
    masked("a" * 200_000 + ":" + "b:" * 2_000)
    masked_addresses("a" * 200_000 + ":" + "b:" * 2_000)
    assert time.monotonic() - began < 60  # hours, if it grew with the square


def test_suggested_names_contain_no_terminal_sequences() -> None:
    assert nearest("zz", ["a\x1b[2Jb", "c\nd"]) == "; there are ab, c d"
    assert nearest("ab", ["a\x1b[2Jb"]) == "; did you mean 'ab'?"


def test_errors_of_sqlalchemy_come_without_a_link() -> None:
    said = "(x) no table (Background on this error at: https://sqlalche.me/e/20/e3q8)"
    assert in_short(said) == "(x) no table"


def test_the_metric_of_a_class_is_named_after_it() -> None:
    labels = ["no", "yes\x1b[31m\n!"]
    shown = [metric_title(name, labels) for name in ("f1_0", "f1_1", "f1_2", "macro_f1", "f1_x")]
    assert shown == ["f1 of no", "f1 of yes !", "f1_2", "macro_f1", "f1_x"]


def test_durations() -> None:
    ticking = [0.4, 61, 3723, -1, math.inf]
    assert [clock(seconds) for seconds in ticking] == ["0:00", "1:01", "1:02:03", "0:00", "?"]
    lengths = [0.0123, 0.5, 12.34, 99.96, 123.4, 3723, 216_000, -1]
    shown = ["0.012 s", "0.5 s", "12.3 s", "100.0 s", "2:03", "1:02:03", "2.5 days", "0 s"]
    assert [took(seconds) for seconds in lengths] == shown
    assert [took(nothing) for nothing in (None, math.nan, math.inf)] == ["–"] * 3
