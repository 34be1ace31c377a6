"""Encodings are detected only where the bytes are clear."""

from __future__ import annotations

import pytest

from supermax.training.data.encodings import UTF8, detect, first_wrong_byte, is_utf8, utf16_of


def lines(text: str, encoding: str) -> bytes:
    return b"".join(f"{text} {i}\n".encode(encoding) for i in range(12))


@pytest.mark.parametrize(
    "text",
    [
        "on day, déjà vu,neg",
        "it\u2019s a \u201clong\u201d walk we\u2019ve had \u2013 a café",
        "Die Straße ist schön und für alle offen, über Nacht geschlossen",
        "Le garçon a été très déçu par la fenêtre fermée; où est-il allé après ça ?",
        "El niño comió una manzana mañana, ¿dónde está el señor?",
        "Hyvää päivää, sää on tänään hyvä",
        "På søen er der mange både, så æblerne er røde",
        "Não há ninguém aqui, a educação também",
        "it weighs 5 µg per m³, costs 5 € and has 20 °C ± 1°",
        "ÉTÉ À LA PLAGE, ÇA VA",
    ],
)
def test_western_texts_are_recognised_by_few_characters(text: str) -> None:
    assert detect(lines(text, "cp1252")) == "cp1252"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("это был долгий день для всех нас, и мы пошли домой", "cp1251"),
        ("on day the zebra went out for a это очень хорошо walk", "cp1251"),
        ("это был долгий день", "koi8_r"),
        ("今天天气很好，我们出去散步", "gb18030"),
        ("Σήμερα ήταν μια πολύ όμορφη μέρα για όλους", "cp1253"),
        ("היום היה יום יפה מאוד לכולם", "cp1255"),
        ("كان اليوم جميلا جدا للجميع", "cp1256"),
        ("今日はとてもいい天気でした", "cp932"),
    ],
)
def test_other_scripts_are_detected_where_they_are_clear(text: str, encoding: str) -> None:
    assert detect(lines(text, encoding)) == encoding


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("mały ląd i żółta łódź była tu wczoraj, więc poszedłem spać", "cp1250"),
        ("on day the mały ląd went out for a long walk", "cp1250"),
        ("příliš žluťoučký kůň úpěl ďábelské ódy", "cp1250"),
        ("Bugün hava çok güzel, şimdi dışarı çıkıyorum, ağaç", "cp1254"),
        ("Šiandien buvo labai gražus oras, ėjome į mišką", "cp1257"),
        ("Le garçon a été très déçu par la fenêtre", "mac_roman"),
        ("Le garçon a été très déçu par la fenêtre", "cp437"),
        ("it costs 5 € and more", "iso8859-15"),
        ("오늘은 날씨가 아주 좋았습니다", "cp949"),
    ],
)
def test_what_could_be_garbled_is_not_guessed(text: str, encoding: str) -> None:
    """As UTF-8, each of these lines is refused with the place of its byte."""
    data = lines(text, encoding)
    assert detect(data) == UTF8
    assert all(first_wrong_byte(line) for line in data.splitlines())


def test_a_few_damaged_lines_do_not_change_the_encoding() -> None:
    data = lines("déjà vu", UTF8) + "café\n".encode("cp1252")
    assert detect(data) == UTF8


def test_utf16_is_seen_by_its_null_bytes() -> None:
    assert utf16_of("some text".encode("utf-16-be")) == "utf-16-be"
    assert utf16_of("some text".encode("utf-16-le")) == "utf-16-le"
    assert utf16_of(b"some text") is None
    assert utf16_of(b"") is None
    assert is_utf8(b"some text")
