"""Pickling of the objective for other processes, with errors that name the unpicklable part."""

from __future__ import annotations

import functools
import importlib
import inspect
import io
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import IO

import cloudpickle
from optuna.study import Study

from supermax.engine.processes.remote_trial import current_study
from supermax.engine.storage.locations import find_location
from supermax.errors import UserError

_MAX_DEPTH = 6


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickler that stores by value what a cell cannot import, and the study as a RemoteStudy."""

    def __init__(self, file: IO[bytes], study: Study) -> None:
        super().__init__(file)
        self._study = study
        modules = sys.modules.copy()
        self._registered = {id(modules[name]): name for name in reversed(modules)}

    def reducer_override(self, obj: object) -> object:
        if type(obj) is not ModuleType and (name := self._module_name(obj)) is not None:
            return importlib.import_module, (name,)
        if isinstance(obj, Study) and _is_same(obj, self._study):
            return current_study, ()
        return super().reducer_override(obj)

    def _module_name(self, obj: object) -> str | None:
        """Return the name by which a cell imports a module; None: `obj` is none.

        cloudpickle handles instances of ModuleType alone. Lazy modules have other classes (those
        of Optuna, transformers, six); reading their attributes here would import them.
        """
        if (name := self._registered.get(id(obj))) is not None:
            return name
        if not isinstance(obj, ModuleType):
            return None
        try:  # a placeholder for a module that may not have been imported yet
            known = obj.__name__ in sys.modules or find_spec(obj.__name__) is not None
        except (ImportError, ValueError):
            return None
        return obj.__name__ if known else None


def _is_same(one: Study, other: Study) -> bool:
    """Return whether two objects stand for the same study, in whichever storage object."""
    if one is other or one._storage is other._storage:
        return one._study_id == other._study_id
    location = find_location(one)
    return not location.volatile and location.run_dir == find_location(other).run_dir


class NotPicklable(UserError):
    """Error: the objective, or something that it refers to, cannot be pickled."""


def pickle_objective(objective: Callable[..., object], study: Study) -> bytes:
    """Return the pickled objective. Raise NotPicklable, which names the part."""
    try:
        return _dumps(objective, study)
    except Exception as error:
        path, culprit = _unpicklable_part(objective, study)
        raise NotPicklable(
            f"The objective cannot be sent to another process: {path} is "
            f"{_a(type(culprit).__name__)}, which cannot be pickled ({error}). Create it inside "
            f"the objective, or load it there from a file."
        ) from error


def _dumps(obj: object, study: Study) -> bytes:
    if (script := sys.modules.get("__mp_main__")) is not None:  # `__main__` of a spawned process
        cloudpickle.register_pickle_by_value(script)
    buffer = io.BytesIO()
    _Pickler(buffer, study).dump(obj)
    return buffer.getvalue()


def _unpicklable_part(obj: object, study: Study) -> tuple[str, object]:
    """Return the smallest part of `obj` that cannot be pickled, and the path to it."""
    path = "the objective"
    for _ in range(_MAX_DEPTH):
        for label, part in _parts(obj):
            try:
                _dumps(part, study)
            except Exception:
                path, obj = (f"{label}" if path == "the objective" else f"{path} → {label}"), part
                break
        else:
            break
    return path, obj


def _parts(obj: object) -> Iterator[tuple[str, object]]:
    """Yield what pickling `obj` by value includes, each part with a label."""
    if inspect.ismodule(obj):
        return
    if inspect.ismethod(obj):
        yield f"{type(obj.__self__).__name__} object", obj.__self__
    if inspect.isfunction(obj):
        names = _names(obj.__code__)
        globals_used = {n: v for n, v in obj.__globals__.items() if n in names}
        nonlocals = inspect.getclosurevars(obj).nonlocals
        defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(obj).parameters.items()
            if parameter.default is not parameter.empty
        }
        yield from ((f"the global '{name}'", value) for name, value in globals_used.items())
        yield from ((f"the variable '{name}'", value) for name, value in nonlocals.items())
        yield from ((f"the default of '{name}'", value) for name, value in defaults.items())
    elif isinstance(obj, dict):
        yield from ((f"item {key!r}", value) for key, value in obj.items())
    elif isinstance(obj, (list, tuple, set, frozenset)):
        yield from ((f"item {i}", value) for i, value in enumerate(obj))
    elif isinstance(obj, functools.partial):
        yield "the function", obj.func
        yield from ((f"argument {i + 1}", value) for i, value in enumerate(obj.args))
        yield from ((f"argument '{k}'", v) for k, v in obj.keywords.items())
    elif hasattr(obj, "__dict__"):
        yield from ((f"attribute '{name}'", value) for name, value in vars(obj).items())
        if not inspect.isclass(obj):
            yield f"class {type(obj).__name__}", type(obj)


def _names(code: CodeType) -> set[str]:
    """Return the global names that a function uses, inner functions included."""
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _a(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"
