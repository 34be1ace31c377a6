"""YAML and JSON with the line of every value: 5e-6 is a number, yes and on are words, and
duplicate keys are mistakes.

text ──tree()──▶ plain data, the line of every path, and mistakes
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any

import yaml

from supermax.errors import UserError

Path = tuple[str | int, ...]
"""Keys and positions that lead to a value in the data."""
_MAX_DEPTH = 10
_MAX_VALUES = 100_000
_MAX_DIGITS = 40


@dataclass
class Tree:
    """Parsed file."""

    data: Any
    lines: dict[Path, tuple[File, int]] = field(default_factory=dict)
    """File and line of every path."""
    problems: list[tuple[File, int, str]] = field(default_factory=list)
    """Mistakes: file, line and message."""

    def place(self, path: Path) -> tuple[File, int]:
        """Return file and line of a path, or of its nearest parent that has one."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, (File("the text"), 1))


def read_text(path: File) -> str:
    """Return the text of a UTF-8 file. Raises UserError."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}).") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None


def tree(text: str, path: File, *, packaged: bool = False) -> Tree:
    """Parse YAML. Raises UserError for a syntax error; `data` is None for an empty text. Files
    that are `packaged` with Supermax are parsed by libyaml: ten times faster, with worse
    messages."""
    try:
        node = yaml.compose(text, Loader=_FastLoader if packaged else _Loader)
    except RecursionError:
        raise UserError(f"{path.name}: it is nested too deeply.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        what = getattr(error, "problem", None) or "not YAML"
        raise UserError(f"{path.name}, line {line}: {what}.") from None
    result = Tree(None)
    if node is not None:
        result.data = _plain(node, (), path, result)
    return result


def scalar(text: str) -> object:
    """Parse a value as in a file: 3 is a number, [a, b] a list, word a string."""
    found = tree(text, File("the value"))
    if found.problems:
        raise UserError(f"{text[:60]!r} cannot be read: {found.problems[0][2]}.")
    return found.data


class _Loader(yaml.SafeLoader):
    pass


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag
        not in (
            "tag:yaml.org,2002:bool",
            "tag:yaml.org,2002:float",
            "tag:yaml.org,2002:timestamp",
            "tag:yaml.org,2002:int",
        )
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9][0-9_]*$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf)$|^\.nan$"
    ),
    list("-+.0123456789"),
)


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


_BOOLS = {"true": True, "false": False}


def _plain(node: yaml.Node, path: Path, file: File, tree: Tree) -> object:
    """Return a node as plain data; add the line of every path to `tree`."""
    tree.lines[path] = (file, node.start_mark.line + 1)
    if len(path) > _MAX_DEPTH or len(tree.lines) > _MAX_VALUES:
        raise UserError(
            f"{file.name}, line {node.start_mark.line + 1}: it is nested too deeply or too large."
        )
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, file, tree)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*path, i), file, tree) for i, item in enumerate(node.value)]
    text = str(node.value)
    try:
        return _scalar(node.tag.rsplit(":", 1)[-1], text)
    except (ValueError, KeyError):
        line = node.start_mark.line + 1
        tree.problems.append((file, line, f"{text[:40]!r} is not what its tag says"))
        return None


def _scalar(kind: str, text: str) -> bool | int | float | str | None:
    match kind:
        case "null":
            return None
        case "bool":
            return _BOOLS[text.lower()]
        case "int":
            if len(text) > _MAX_DIGITS:
                raise ValueError(text)
            return int(text.replace("_", ""))
        case "float":
            return float(text.replace(".inf", "inf").replace(".nan", "nan").replace(".Inf", "inf"))
    return text


def _mapping(node: yaml.MappingNode, path: Path, file: File, tree: Tree) -> dict[str, object]:
    result: dict[str, object] = {}
    for key_node, value_node in node.value:
        key = _plain(key_node, path, file, tree)
        line = key_node.start_mark.line + 1
        if not isinstance(key, str):
            tree.problems.append((file, line, f"the key {key_node.value!r} is not a word"))
            continue
        if key in result:
            tree.problems.append((file, line, f"the key {key!r} is given twice"))
        result[key] = _plain(value_node, (*path, key), file, tree)
        tree.lines[(*path, key)] = (file, line)
    tree.lines[path] = (file, node.start_mark.line + 1)
    return result
