"""Space files: YAML or JSON, every mistake reported with its line.

    file ──tree()──▶ plain data + line of every place ──examined()──▶ Space, or one UserError

`extends: criteria` (a space of the package), `extends: other.yaml` (beside the file), or a list
of these, starts from there: parameters and constraints of the same name take their place, null
for a parameter and a constraint of nothing but its name remove.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any

import yaml

from supermax.errors import UserError
from supermax.space.checking import Path, Problem, examined
from supermax.space.model import Space
from supermax.words import ended, listed, mistakes, nearest

CATALOG = File(__file__).parent / "catalog"
_DEEPEST = 10
_LARGEST = 100_000
_LONGEST_NUMBER = 40  # digits


def load(source: str | File) -> Space:
    """A space from a file, or one of the package by its name ("criteria", "classic/criteria")."""
    return _built(_file(source))


def loads(text: str, name: str = "the text") -> Space:
    """A space from YAML or JSON text."""
    return _built(_read(text, File(name), ()))


def shipped() -> list[str]:
    """The spaces that come with the package."""
    files = sorted(CATALOG.rglob("*.yaml"))
    names = [str(path.relative_to(CATALOG).with_suffix("")) for path in files]
    return [name for name in names if not name.rsplit("/", 1)[-1].startswith("_")]


@dataclass
class _Tree:
    data: dict[str, Any]
    lines: dict[Path, tuple[File, int]] = field(default_factory=dict)
    problems: list[tuple[File, int, str]] = field(default_factory=list)


def _built(tree: _Tree) -> Space:
    found = list(tree.problems)
    for problem in examined(tree.data, slips=True)[1]:
        file, line = _place(tree, problem)
        found.append((file, line, str(problem)))
    if found:
        found.sort(key=lambda item: (str(item[0]), item[1]))
        texts = [f"{file.name}, line {line}: {text}" for file, line, text in found]
        head = f"The space cannot be read: {mistakes(len(found))}."
        raise UserError(listed(head, dict.fromkeys(texts)))
    return Space(**tree.data)


def _place(tree: _Tree, problem: Problem) -> tuple[File, int]:
    path = problem.path
    while path not in tree.lines and path:
        path = path[:-1]
    return tree.lines.get(path, (File("space"), 1))


def _file(source: str | File, above: tuple[File, ...] = ()) -> _Tree:
    path = _find(str(source), above[-1].parent if above else File())
    if path in above or len(above) > _DEEPEST:
        chain = " extends ".join(p.name for p in (*above, path))
        raise UserError(f"The spaces extend each other in a circle: {chain}.")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}).") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    return _read(text, path, above)


def _find(source: str, beside: File) -> File:
    named = CATALOG / f"{source}.yaml"
    if source in shipped() or (File(source).name.startswith("_") and named.is_file()):
        return named
    path = beside / File(source).expanduser()
    if path.exists():
        return path.absolute()
    near = nearest(source, shipped())
    text = f"There is no space file {path}, and the package has none of that name{near}"
    raise UserError(ended(text))


def _read(text: str, path: File, above: tuple[File, ...]) -> _Tree:
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        what = getattr(error, "problem", None) or "not YAML"
        raise UserError(f"{path.name}, line {line}: {what}.") from None
    tree = _Tree({})
    data = _plain(node, (), path, tree) if node is not None else None
    if not isinstance(data, dict):
        raise UserError(f"{path.name} holds no space: it needs a mapping with 'parameters'.")
    tree.data = data
    return _extended(tree, path, above)


def _extended(tree: _Tree, path: File, above: tuple[File, ...]) -> _Tree:
    if "extends" not in tree.data:
        return tree
    bases = tree.data.pop("extends")
    many = [bases] if isinstance(bases, str) else bases
    if not (isinstance(many, list) and many and all(isinstance(base, str) for base in many)):
        line = tree.lines[("extends",)][1]
        tree.problems.append((path, line, f"extends names a space or a file, not {bases!r}"))
        return tree
    base = _file(many[0], (*above, path))
    for other in many[1:]:
        base = _laid_over(base, _file(other, (*above, path)))
    return _laid_over(base, tree)


def _laid_over(base: _Tree, tree: _Tree) -> _Tree:
    """`tree` on top of `base`."""
    own = tree.data
    merged = {**base.data, **{k: v for k, v in own.items() if k not in _MERGED}}
    lines = {**base.lines, **{p: at for p, at in tree.lines.items() if p[:1] != ("constraints",)}}
    merged["parameters"] = _merge_parameters(base, tree)
    _merge_constraints(base, tree, merged, lines)
    return _Tree(merged, lines, base.problems + tree.problems)


_MERGED = ("parameters", "constraints")


def _merge_parameters(base: _Tree, tree: _Tree) -> Any:
    ours = tree.data.get("parameters") or {}
    theirs = base.data.get("parameters") or {}
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        return ours or theirs
    for name, written in ours.items():
        if written is None and name not in theirs:
            file, line = tree.lines[("parameters", name)]
            text = f"{name} is not there to be removed{nearest(str(name), theirs)}"
            tree.problems.append((file, line, text))
    return {n: written for n, written in {**theirs, **ours}.items() if written is not None}


def _merge_constraints(
    base: _Tree, tree: _Tree, merged: dict[str, Any], lines: dict[Path, tuple[File, int]]
) -> None:
    ours = tree.data.get("constraints") or []
    theirs = base.data.get("constraints") or []
    if not isinstance(ours, list) or not isinstance(theirs, list):
        merged["constraints"] = ours or theirs
        return
    named = [item.get("name") for item in ours if isinstance(item, Mapping)]
    kept = [
        (item, base, i)
        for i, item in enumerate(theirs)
        if not (isinstance(item, Mapping) and item.get("name") in named)
    ]
    kept += [
        (item, tree, i)
        for i, item in enumerate(ours)
        if not (isinstance(item, Mapping) and set(item) == {"name"})  # a name alone removes
    ]
    for position, item in enumerate(ours):
        theirs_named = [t.get("name") for t in theirs if isinstance(t, Mapping)]
        if (
            isinstance(item, Mapping)
            and set(item) == {"name"}
            and item["name"] not in theirs_named
        ):
            file, line = tree.lines[("constraints", position)]
            near = nearest(str(item["name"]), map(str, theirs_named))
            text = f"the constraint {item['name']!r} is not there to be removed{near}"
            tree.problems.append((file, line, text))
    merged["constraints"] = [item for item, _, _ in kept]
    for path in [path for path in lines if path[:1] == ("constraints",)]:
        del lines[path]
    for position, (_, source, i) in enumerate(kept):
        for path, at in source.lines.items():
            if path[:2] == ("constraints", i):
                lines[("constraints", position, *path[2:])] = at


# YAML as people expect it: 5e-6 is a number, yes and on are words, a key stands once.


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
_BOOLS = {"true": True, "false": False}


def _plain(node: yaml.Node, path: Path, file: File, tree: _Tree) -> Any:
    """Plain values of a YAML tree; notes the line of every place."""
    tree.lines[path] = (file, node.start_mark.line + 1)
    if len(path) > _DEEPEST or len(tree.lines) > _LARGEST:
        raise UserError(f"{file.name}, line {node.start_mark.line + 1}: this is no space.")
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


def _scalar(kind: str, text: str) -> Any:
    match kind:
        case "null":
            return None
        case "bool":
            return _BOOLS[text.lower()]
        case "int":
            if len(text) > _LONGEST_NUMBER:
                raise ValueError(text)
            return int(text.replace("_", ""))
        case "float":
            return float(text.replace(".inf", "inf").replace(".nan", "nan").replace(".Inf", "inf"))
    return text


def _mapping(node: yaml.MappingNode, path: Path, file: File, tree: _Tree) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = _plain(key_node, path, file, tree)
        line = key_node.start_mark.line + 1
        if not isinstance(key, str):
            tree.problems.append((file, line, f"the key {key_node.value!r} is not a word"))
            continue
        if key in result:
            tree.problems.append((file, line, f"the key {key!r} stands twice"))
        result[key] = _plain(value_node, (*path, key), file, tree)
        tree.lines[(*path, key)] = (file, line)
    tree.lines[path] = (file, node.start_mark.line + 1)
    return result
