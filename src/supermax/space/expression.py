"""Expression language of conditions and constraints: parsed once, evaluated without eval.

    text ──parse──▶ Expression ──value(lookup)──▶ True, False, or None where it does not apply

It has parameter names (with dots), numbers, strings in quotes, true, false and null, lists,
+ - * / // % **, comparisons (chained ones too), in, not in, and, or, not, and a few functions.

Logic is three-valued. A comparison with an inactive parameter does not apply, which is neither
true nor false; `and` and `or` then depend on their other operand. A condition holds when it is
true; a constraint is broken when it is false. A comparison that cannot be computed (a division by
zero, a root of a negative number) is false.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

Lookup = Callable[[str], object]
"""Returns the value of a parameter; raises LookupError where it is inactive."""

MAX_CHARACTERS = 2000
_MAX_NUMBER = 1e300
_MAX_DEPTH = 50
_LITERALS: dict[str, bool | None] = {
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    "null": None,
    "None": None,
}
_ARITHMETIC: dict[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: lambda a, b: float(a) ** b,
}
_COMPARISONS: dict[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Eq: lambda a, b: same_value(a, b),
    ast.NotEq: lambda a, b: not same_value(a, b),
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: any(same_value(a, item) for item in b),
    ast.NotIn: lambda a, b: not any(same_value(a, item) for item in b),
}
_FUNCTIONS: dict[str, Callable[..., float]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "sqrt": math.sqrt,
    "log": math.log,
    "log2": math.log2,
    "floor": math.floor,
    "ceil": math.ceil,
}


class BadExpression(ValueError):
    """Raised for text that is not an expression; the message says why."""


class Compared(NamedTuple):
    """Literals that a parameter is compared with by ==, !=, in or not in."""

    name: str
    values: tuple[object, ...]


@dataclass(frozen=True)
class Expression:
    """Parsed condition or constraint."""

    text: str
    names: frozenset[str]
    """Parameters that it refers to."""
    numeric: frozenset[str] = field(compare=False, repr=False)
    """Parameters that are operands of arithmetic or of an ordering."""
    compared: tuple[Compared, ...] = field(compare=False, repr=False)
    """Comparisons with literals, to find typing errors."""
    _tree: ast.expr = field(compare=False, repr=False)

    def value(self, lookup: Lookup) -> bool | None:
        """Return True or False; None where it depends on an inactive parameter."""
        try:
            return _three_valued(self._tree, lookup)
        except (ArithmeticError, ValueError, TypeError):
            return False

    def __str__(self) -> str:
        return self.text


def same_value(one: object, other: object) -> bool:
    """Return True if both are equal and of the same truth type: true is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


@lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Parse an expression. Raises BadExpression."""
    if len(text) > MAX_CHARACTERS:
        raise BadExpression(f"longer than {MAX_CHARACTERS} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = getattr(error, "offset", None)
        raise BadExpression(
            f"not understood{f' from character {where} on' if where else ''}: {text.strip()!r}"
        ) from None
    names: set[str] = set()
    compared: list[Compared] = []
    try:
        _check(tree, names, compared)
    except RecursionError:
        raise BadExpression("nested too deeply") from None
    numeric = frozenset(_dotted(node) for node in _numeric_operands(tree)) - set(_LITERALS)
    return Expression(text.strip(), frozenset(names), numeric, tuple(compared), tree)


def _numeric_operands(tree: ast.expr) -> list[ast.expr]:
    """Return the names that are operands of arithmetic, functions or orderings."""
    operands: list[ast.expr] = []
    for node in ast.walk(tree):
        match node:
            case ast.BinOp(left, _, right):
                operands += [left, right]
            case ast.Call(_, args):
                operands += args
            case ast.UnaryOp(ast.USub() | ast.UAdd(), operand):
                operands.append(operand)
            case ast.Compare(left, ops, comparators):
                sides = [left, *comparators]
                for sign, one, other in zip(ops, sides, comparators, strict=False):
                    if isinstance(sign, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
                        operands += [one, other]
    return [node for node in operands if isinstance(node, (ast.Name, ast.Attribute))]


def _check(node: ast.expr, names: set[str], compared: list[Compared], depth: int = 0) -> None:
    """Raise BadExpression for anything outside the language; collect the parameters' names and the
    literals they are compared with."""
    if depth > _MAX_DEPTH:
        raise BadExpression("nested too deeply")

    def inside(*parts: ast.expr) -> None:
        for part in parts:
            _check(part, names, compared, depth + 1)

    match node:
        case ast.Constant(value) if value is None or isinstance(value, (bool, int, float, str)):
            pass
        case ast.Name() | ast.Attribute():
            name = _dotted(node)
            if name not in _LITERALS:
                names.add(name)
        case ast.List(items) | ast.Tuple(items):
            inside(*items)
        case ast.UnaryOp(ast.Not() | ast.USub() | ast.UAdd(), operand):
            inside(operand)
        case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
            inside(left, right)
        case ast.BoolOp(_, values):
            inside(*values)
        case ast.Compare(left, ops, comparators) if all(type(op) in _COMPARISONS for op in ops):
            inside(left, *comparators)
            for sign, one, other in zip(ops, [left, *comparators], comparators, strict=False):
                is_list = isinstance(other, (ast.List, ast.Tuple))
                if isinstance(sign, (ast.In, ast.NotIn)) and not is_list:
                    raise BadExpression("'in' needs a list, like x in ['a', 'b']")
                _note_compared(sign, one, other, compared)
        case ast.Call(ast.Name(function), args, []) if function in _FUNCTIONS:
            low, high = (2, 99) if function in ("min", "max") else (1, 1)
            if not low <= len(args) <= high:
                wanted = "two values or more" if low == 2 else "one value"
                raise BadExpression(f"{function}() takes {wanted}, not {len(args)}")
            inside(*args)
        case ast.Call(function):
            raise BadExpression(
                f"no function {ast.unparse(function)!r}: there are {', '.join(_FUNCTIONS)}"
            )
        case _:
            raise BadExpression(f"{ast.unparse(node)!r} is not part of the language")


def _note_compared(
    op: ast.cmpop, one: ast.expr, other: ast.expr, compared: list[Compared]
) -> None:
    if not isinstance(op, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)):
        return
    for name, against in ((one, other), (other, one)):
        if isinstance(name, (ast.Name, ast.Attribute)) and _dotted(name) not in _LITERALS:
            items = against.elts if isinstance(against, (ast.List, ast.Tuple)) else [against]
            values = [_literal(item) for item in items]
            if all(is_literal for is_literal, _ in values):
                compared.append(Compared(_dotted(name), tuple(value for _, value in values)))


def _literal(node: ast.expr) -> tuple[bool, object]:
    match node:
        case ast.Constant(value):
            return True, value
        case ast.Name(name) if name in _LITERALS:
            return True, _LITERALS[name]
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return True, -value
    return False, None


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(value, attribute):
            return f"{_dotted(value)}.{attribute}"
    raise BadExpression(f"{ast.unparse(node)!r} is not a parameter's name")


class _NotActive(Exception):
    """Raised where an expression does not apply."""


def _evaluate(node: ast.expr, lookup: Lookup) -> object:
    match node:
        case ast.Constant(value):
            return value
        case ast.Name() | ast.Attribute():
            name = _dotted(node)
            if name in _LITERALS:
                return _LITERALS[name]
            try:
                return lookup(name)
            except LookupError:
                raise _NotActive from None
        case ast.List(items) | ast.Tuple(items):
            return [_evaluate(item, lookup) for item in items]
        case ast.UnaryOp(op, operand):
            return _unary(op, operand, lookup)
        case ast.BinOp(left, op, right):
            one, other = _evaluate(left, lookup), _evaluate(right, lookup)
            return _number(_ARITHMETIC[type(op)](_number(one), _number(other)))
        case ast.BoolOp(op, values):
            return _logic(isinstance(op, ast.And), values, lookup)
        case ast.Compare(left, ops, comparators):
            return _compare(left, ops, comparators, lookup)
        case ast.Call(ast.Name(function), args):
            return _number(_FUNCTIONS[function](*(_number(_evaluate(a, lookup)) for a in args)))
    raise AssertionError(ast.dump(node))


def _unary(op: ast.unaryop, operand: ast.expr, lookup: Lookup) -> bool | float:
    if not isinstance(op, ast.Not):
        value = _number(_evaluate(operand, lookup))
        return -value if isinstance(op, ast.USub) else value
    truth = _three_valued(operand, lookup)
    if truth is None:
        raise _NotActive
    return not truth


def _logic(is_and: bool, values: list[ast.expr], lookup: Lookup) -> bool:
    """Evaluate `and` or `or`: one false operand makes `and` false, one true operand makes `or`
    true. Otherwise an operand that does not apply makes the whole not apply."""
    not_active = False
    for value in values:
        truth = _three_valued(value, lookup)
        if truth is None:
            not_active = True
        elif truth is not is_and:
            return truth
    if not_active:
        raise _NotActive
    return is_and


def _three_valued(node: ast.expr, lookup: Lookup) -> bool | None:
    try:
        return _truth(_evaluate(node, lookup))
    except _NotActive:
        return None


def _compare(
    left: ast.expr, ops: list[ast.cmpop], comparators: list[ast.expr], lookup: Lookup
) -> bool:
    try:
        one = _evaluate(left, lookup)
        for op, node in zip(ops, comparators, strict=True):
            other = _evaluate(node, lookup)
            if not _COMPARISONS[type(op)](one, other):
                return False
            one = other
    except (ArithmeticError, ValueError, TypeError):
        return False
    return True


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    if abs(value) > _MAX_NUMBER:
        raise OverflowError("too large")
    return value
