"""Feasible configurations, or the constraints that exclude them all.

    Space ──witness()──▶ a feasible point, or UserError naming the constraints that conflict
    Space ──search()───▶ a feasible point by backtracking, or None: there is none

Feasibility depends only on parameters in constraints, and on those in the conditions of these.
Where they are few and finite, the answer is exact; otherwise it is based on random samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from supermax._util.attributes import ParamValue
from supermax._util.text import listed
from supermax.errors import UserError
from supermax.space.checking import parameters_needed_by
from supermax.space.domains import Branch, Categorical, Constraint, Float
from supermax.space.model import Flat, Space, nest

DRAWS = 10_000
"""Samples of the prior before an infinite space is reported to have no feasible point."""
_FUNCTION_CHECKS = 200  # samples on which functions of constraints are tried
_VARYING_DRAWS = 100
_MAX_DEPTH = 400  # parameters of a search
LARGEST = 300_000
"""Steps of a search, at most, for an exact answer."""


class TooLarge(Exception):
    """Raised when a search is given up: the space may or may not have feasible points."""


def prior(branch: Branch, rng: np.random.RandomState) -> ParamValue:
    """Draw a value of the domain as Optuna's RandomSampler does."""
    if isinstance(branch, Categorical):
        return branch.choices[rng.randint(len(branch.choices))]
    low, high = branch.low, branch.high
    if isinstance(branch, Float):
        if branch.log:
            return min(max(math.exp(rng.uniform(math.log(low), math.log(high))), low), high)
        if branch.step is None:
            return rng.uniform(low, high)
        return min(low + branch.step * rng.randint(round((high - low) / branch.step) + 1), high)
    if branch.log:
        value = math.exp(rng.uniform(math.log(low - 0.5), math.log(high + 0.5)))
        return min(max(round(value), branch.low), branch.high)
    return branch.low + branch.step * int(
        rng.randint((branch.high - branch.low) // branch.step + 1)
    )


def draw_from_prior(
    space: Space, rng: np.random.RandomState, fixed: Mapping[str, ParamValue] | None = None
) -> Flat:
    """Draw a configuration from the prior; values in `fixed` are used where they are in the
    domain."""

    def choose(name: str, _: int, branch: Branch) -> ParamValue:
        if fixed is not None and name in fixed and branch.contains(fixed[name]):
            return fixed[name]
        return prior(branch, rng)

    return space.walk(choose)


def varying(space: Space) -> int:
    """Return the number of parameters that vary among samples of the prior. Parameters with a
    single value, or with a condition that never holds, do not."""
    rng = np.random.RandomState(0)
    drawn = [draw_from_prior(space, rng) for _ in range(_VARYING_DRAWS)]
    return sum(len({repr(p[name]) for p in drawn if name in p}) > 1 for name in space.parameters)


def witness(space: Space, seed: int = 0) -> Flat:
    """Return a feasible point. Raises UserError with the conflicting constraints if there is none,
    or if none was found among DRAWS samples."""
    _check_functions(space, np.random.RandomState(seed))
    defaults = space.defaults()
    if defaults is not None and not space.broken(defaults):
        return defaults
    rng = np.random.RandomState(seed)
    drawn: list[set[str]] = []  # the constraints each draw broke
    for _ in range(DRAWS // 10):
        values = draw_from_prior(space, rng)
        if not (broken := space.broken(values)):
            return values
        drawn.append({constraint.name for constraint in broken})
    try:
        found = search(space)
    except TooLarge:
        return _witness_by_sampling(space, rng, drawn)
    if found is not None:
        return draw_from_prior(space, rng, fixed=found)
    core = _core(space.constraints, lambda some: possible(space, some))
    raise UserError(_conflict(core, "This is certain: all combinations were tried."))


def _check_functions(space: Space, rng: np.random.RandomState) -> None:
    """Raise UserError where a constraint's function fails on a sample, which would otherwise
    exclude the configuration silently."""
    functions = [constraint for constraint in space.constraints if constraint.python is not None]
    for _ in range(_FUNCTION_CHECKS if functions else 0):
        values = draw_from_prior(space, rng)
        for constraint in functions:
            if all(name in values for name in constraint.over or ()):
                seen = (
                    values if constraint.over is None else {n: values[n] for n in constraint.over}
                )
                try:
                    constraint.function(nest(seen))
                except Exception as error:
                    raise UserError(
                        f"The function of the constraint {constraint.name!r} failed with "
                        f"{type(error).__name__}: {error}. It is called with every configuration, "
                        f"in which inactive parameters are absent; with 'over' it is called "
                        f"only when the parameters named there are active."
                    ) from error


def _witness_by_sampling(space: Space, rng: np.random.RandomState, drawn: list[set[str]]) -> Flat:
    while len(drawn) < DRAWS:
        values = draw_from_prior(space, rng)
        if not (broken := space.broken(values)):
            return values
        drawn.append({constraint.name for constraint in broken})

    def met_together(some: Sequence[Constraint]) -> bool:
        names = {constraint.name for constraint in some}
        return any(not names & broken for broken in drawn)

    core = _core(space.constraints, met_together)
    raise UserError(
        _conflict(
            core,
            f"No point met {'them' if len(core) > 1 else 'it'} in {DRAWS:,} samples. If there are "
            f"some, narrow the ranges towards them, or give defaults that are feasible.",
        )
    )


def _core(
    constraints: Sequence[Constraint], are_possible: Callable[[Sequence[Constraint]], bool]
) -> list[Constraint]:
    """Return a minimal set of constraints that cannot be met together."""
    core = list(constraints)
    for constraint in constraints:
        rest = [other for other in core if other is not constraint]
        if not are_possible(rest):
            core = rest
    return core


def possible(space: Space, constraints: Sequence[Constraint]) -> bool:
    """Return False if it is certain that these constraints cannot be met together."""
    try:
        return search(space, constraints) is not None
    except TooLarge:
        return True


def _conflict(core: Sequence[Constraint], how: str) -> str:
    what = "these constraints contradict each other" if len(core) > 1 else "one is never met"
    return listed(f"The space has no feasible point: {what}. {how}", map(str, core))


def relevant(space: Space, constraints: Iterable[Constraint]) -> set[str]:
    """Return the parameters that the constraints depend on, directly or through conditions."""
    names: set[str] = set()
    for constraint in constraints:
        if constraint.expression is not None:
            names |= constraint.expression.names
        else:
            names |= set(space.parameters) if constraint.over is None else set(constraint.over)
    waiting = list(names)
    while waiting:
        for needed in parameters_needed_by(space.parameters[waiting.pop()].branches) - names:
            names.add(needed)
            waiting.append(needed)
    return names


def search(
    space: Space,
    constraints: Sequence[Constraint] | None = None,
    rng: np.random.RandomState | None = None,
    fixed: Mapping[str, ParamValue] | None = None,
    limit: int | None = None,
) -> Flat | None:
    """Return values of the relevant parameters that meet the constraints; None: there are none.

    With `rng`, values are tried in random order; those in `fixed` are given. Raises TooLarge where
    the relevant parameters are not finite or more than `limit` steps would be needed.
    """
    limit = LARGEST if limit is None else limit
    fixed = fixed or {}
    constraints = space.constraints if constraints is None else constraints
    names = relevant(space, constraints)
    if space.broken({}, [c for c in constraints if c.expression and not c.expression.names]):
        return None
    order = [name for name in space.order if name in names]
    index = {name: position for position, name in enumerate(order)}
    due: list[list[Constraint]] = [[] for _ in order]  # to check once this parameter has a value
    for constraint in constraints:
        if constraint.expression is not None:
            # Some of its parameters may be enough to evaluate an expression to false.
            for name in constraint.expression.names:
                due[index[name]].append(constraint)
        else:
            due[max((index[name] for name in constraint.over or order), default=0)].append(
                constraint
            )
    if len(order) > _MAX_DEPTH:
        raise TooLarge
    steps = 0
    values: Flat = {}

    def complete(position: int) -> bool:
        nonlocal steps
        if position == len(order):
            return True
        name = order[position]
        branch_at = space.active(name, values)
        if branch_at is None:
            return _holds(space, due[position], values) and complete(position + 1)
        branch = space.parameters[name].branches[branch_at]
        given = name in fixed and branch.contains(fixed[name])
        for value in [fixed[name]] if given else all_values(branch, rng):
            steps += 1
            if steps > limit:
                raise TooLarge
            values[name] = value
            if _holds(space, due[position], values) and complete(position + 1):
                return True
            del values[name]
        return False

    return values if complete(0) else None


def _holds(space: Space, constraints: Sequence[Constraint], values: Flat) -> bool:
    return not (constraints and space.broken(values, constraints))


def all_values(branch: Branch, rng: np.random.RandomState | None) -> Iterator[ParamValue]:
    """Yield all values of a domain, in random order with `rng`. Raises TooLarge where there are
    too many, or it is continuous."""
    if isinstance(branch, Categorical):
        values: Sequence[ParamValue] = branch.choices
    elif isinstance(branch, Float):
        if branch.low == branch.high:
            values = [branch.low]
        elif branch.step is None or (branch.high - branch.low) / branch.step > LARGEST:
            raise TooLarge
        else:
            count = round((branch.high - branch.low) / branch.step) + 1
            values = [min(branch.low + i * branch.step, branch.high) for i in range(count)]
    else:
        values = range(branch.low, branch.high + 1, branch.step)
    if rng is None:
        yield from values
    elif len(values) <= LARGEST:
        yield from (values[int(i)] for i in rng.permutation(len(values)))
    else:
        raise TooLarge
