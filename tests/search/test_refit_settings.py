"""Settings of the study of a refit."""

from __future__ import annotations

import pytest

from supermax._util.attributes import race_name
from supermax.errors import UserError
from supermax.search.refit import stored_settings


@pytest.mark.parametrize("folds", [None, 5])
def test_a_race_names_the_study_that_has_the_settings(folds: int | None) -> None:
    with pytest.raises(UserError, match="Use the name 'notes': its winner is that of the race"):
        stored_settings(None, race_name("notes", folds))


def test_a_study_of_another_program_has_no_settings() -> None:
    with pytest.raises(UserError, match="'mine' was not made by `supermax tune`"):
        stored_settings(None, "mine")
