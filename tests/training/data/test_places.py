"""Places of rows in messages."""

from __future__ import annotations

from supermax.training.data.places import FILE, INDEX, Place, listed_places


def test_places_are_named_by_their_unit() -> None:
    assert str(Place("a.csv", 3)) == "a.csv, line 3"
    assert str(Place("a (train)", 0, INDEX)) == "a (train), row index 0"
    assert str(Place("a", 7, FILE, "pos/1.txt")) == "a, file pos/1.txt"
    assert str(Place("a", unit="")) == "a"
    assert Place("a", 7, FILE, "pos/my day.txt").id == "a:pos/my day.txt"
    assert Place("a", 7, FILE, "pos/my day.txt").short == "file number 7"


def test_a_place_is_named_in_short_within_its_source() -> None:
    first, same, other = Place("a (train)", 3), Place("a (train)", 4), Place("a (test)", 3)
    assert first.within(same) == "line 3"
    assert first.within(other) == "a (train), line 3"


def test_places_are_listed_in_their_order() -> None:
    places = [Place("a", n, INDEX) for n in (10, 9, 2)]
    assert listed_places(sorted(places), 2) == "row indices 2, 9, ..."
    assert listed_places(places[:1], 2) == "row index 10"
