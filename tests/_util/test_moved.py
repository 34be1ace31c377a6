"""Former names of modules import the new ones, and say so."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from supermax import testing
from supermax._util.moved import MOVED
from supermax.engine.jobs.provision import DeviceUsage, Provision, Refusal


def current(former: str) -> str:
    package = next(name for name in MOVED if f"{former}.".startswith(f"{name}."))
    return MOVED[package] + former[len(package) :]


@pytest.mark.parametrize("former", [*MOVED, "supermax.report.figures", "supermax.tracking.source"])
def test_a_former_name_is_the_same_module(former: str) -> None:
    with pytest.warns(DeprecationWarning, match="is now") as seen:
        found = importlib.import_module(former)
    assert str(seen[-1].message).startswith(f"{former} is now {current(former)};")
    assert found is importlib.import_module(current(former))
    assert found.__spec__ is not None
    assert found.__spec__.name == current(former)
    for name in [
        name for name in sys.modules if f"{name}.".startswith(tuple(f"{m}." for m in MOVED))
    ]:
        del sys.modules[name]


@pytest.mark.slow
def test_names_are_imported_from_a_former_module() -> None:
    code = "from supermax.training.export import load_exported; print(load_exported.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "supermax.training.deploy.export"


def test_no_other_name_is_taken_for_a_former_one() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("supermax.nothing")


@pytest.mark.parametrize(
    ("former", "name"), [("VILLAINS", "FAILURES"), ("mischief", "failing_objective")]
)
def test_former_names_of_failures_are_the_same(former: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"supermax.testing.{former} is now {name};"):
        assert getattr(testing, former) is getattr(testing, name)
    with pytest.raises(AttributeError):
        testing.nothing  # noqa: B018


def test_the_former_name_of_a_search_works() -> None:
    with pytest.warns(DeprecationWarning, match="Tuning is now Search"):
        from supermax.search.search import Search, Tuning
    assert Tuning is Search


def test_the_former_name_of_a_plan_works() -> None:
    with pytest.warns(DeprecationWarning, match="how is now plan"):
        former = Provision(1, how={"micro_batch": 2})
    assert former == Provision(1, {"micro_batch": 2})
    with pytest.warns(DeprecationWarning, match="how is now plan"):
        assert former.how == {"micro_batch": 2}
    with pytest.warns(DeprecationWarning, match="Refused is now Refusal"):
        from supermax.engine.jobs.provision import Refused
    assert Refused is Refusal
    with pytest.warns(DeprecationWarning, match="Occupied is now DeviceUsage"):
        from supermax.engine.jobs.provision import Occupied
    assert Occupied is DeviceUsage
