"""Leak detection: memory cached on purpose is not a leak."""

from __future__ import annotations

import pytest

from supermax._util import system
from supermax.engine.processes import leaks

MIB = 1 << 20


@pytest.mark.parametrize(("kept", "leaks_"), [(900, False), (0, True)])
def test_cached_bytes_are_not_a_leak(
    monkeypatch: pytest.MonkeyPatch, kept: int, leaks_: bool
) -> None:
    size, on_purpose = [1000 * MIB], [0]
    monkeypatch.setattr(system, "resident_size", lambda: size[0])
    baseline = leaks.Baseline(lambda: on_purpose[0])
    assert baseline.leaked() is None
    size[0], on_purpose[0] = 1900 * MIB, kept * MIB
    found = baseline.leaked()
    assert (found is not None) == leaks_
    if leaks_:
        assert "grown by 900 MiB" in str(found)
