"""Space files in YAML or JSON, with the line of every mistake.

    file ──tree()──▶ plain data + line of every place ──examined()──▶ Space, or one UserError

`extends: criteria` (a space of the package), `extends: other.yaml` (beside the file), or a list
of these, inherits from them: parameters and constraints of the same name are replaced; a parameter
that is null, and a constraint with only a name, are removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as File

from supermax._util.text import ended, listed, mistakes, nearest
from supermax._util.yaml_lines import Path, Tree, read_text
from supermax._util.yaml_lines import tree as parsed
from supermax.errors import UserError
from supermax.space.checking import examined
from supermax.space.model import Space

CATALOG = File(__file__).parent / "catalog"
TEMPLATE = "_agent.yaml"
"""Space of the agents that have no file in a folder of the catalog; `{agent}` is the name."""
_MAX_DEPTH = 10  # of extends


def load(source: str | File) -> Space:
    """Load a space from a file, or one of the package by its name ("classic/criteria")."""
    return _built(_file(source))


def loads(text: str, name: str = "the text") -> Space:
    """Load a space from YAML or JSON text."""
    return _built(_read(text, File(name), ()))


def shipped() -> list[str]:
    """Return the names of the spaces of the package."""
    agents = [path.stem for path in CATALOG.glob("[!_]*.yaml")]
    folders = [path.parent.name for path in CATALOG.glob(f"*/{TEMPLATE}")]
    return sorted([*agents, *(f"{folder}/{agent}" for folder in folders for agent in agents)])


def _built(tree: Tree) -> Space:
    found = list(tree.problems)
    for problem in examined(tree.data, slips=True)[1]:
        file, line = tree.place(problem.path)
        found.append((file, line, str(problem)))
    if found:
        found.sort(key=lambda item: (str(item[0]), item[1]))
        texts = [f"{file.name}, line {line}: {text}" for file, line, text in found]
        head = f"The space cannot be read: {mistakes(len(found))}."
        raise UserError(listed(head, dict.fromkeys(texts)))
    return Space(**tree.data)


def _file(source: str | File, above: tuple[File, ...] = ()) -> Tree:
    path = _find(str(source), above[-1].parent if above else File())
    if path in above or len(above) > _MAX_DEPTH:
        chain = " extends ".join(p.name for p in (*above, path))
        raise UserError(f"The spaces extend each other in a circle: {chain}.")
    text = read_text(path)
    if path.name == TEMPLATE and path.is_relative_to(CATALOG):
        text = text.replace("{agent}", File(source).name)
    return _read(text, path, above)


def _find(source: str, beside: File) -> File:
    named = CATALOG / f"{source}.yaml"
    if source in shipped():
        return named if named.is_file() else named.with_name(TEMPLATE)
    if File(source).name.startswith("_") and named.is_file() and named.name != TEMPLATE:
        return named
    path = beside / File(source).expanduser()
    if path.exists():
        return path.absolute()
    near = nearest(source, shipped())
    text = f"There is no space file {path}, and the package has none of that name{near}"
    raise UserError(ended(text))


def _read(text: str, path: File, above: tuple[File, ...]) -> Tree:
    tree = parsed(text, path, packaged=path.is_relative_to(CATALOG))
    if not isinstance(tree.data, dict):
        raise UserError(f"{path.name} holds no space: it needs a mapping with 'parameters'.")
    if "agent" in tree.data and not {"parameters", "extends"} & set(tree.data):
        own = tree.data.get("space")
        other = own if isinstance(own, str) else f"a space of the package: {tree.data['agent']}"
        raise UserError(
            f"{path.name} holds the settings of a search, not a space. Name its space file, or "
            f"{other}."
        )
    return _extended(tree, path, above)


def _extended(tree: Tree, path: File, above: tuple[File, ...]) -> Tree:
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
        base = _merged(base, _file(other, (*above, path)))
    return _merged(base, tree)


def _merged(base: Tree, tree: Tree) -> Tree:
    """Return `base` with the parameters and constraints of `tree` merged into it."""
    own = tree.data
    merged = {**base.data, **{k: v for k, v in own.items() if k not in _MERGED}}
    lines = {**base.lines, **{p: at for p, at in tree.lines.items() if p[:1] != ("constraints",)}}
    merged["parameters"] = _merge_parameters(base, tree)
    _merge_constraints(base, tree, merged, lines)
    return Tree(merged, lines, base.problems + tree.problems)


_MERGED = ("parameters", "constraints")


def _merge_parameters(base: Tree, tree: Tree) -> object:
    ours = tree.data.get("parameters") or {}
    theirs = base.data.get("parameters") or {}
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        return ours or theirs
    for name, written in ours.items():
        if written is None and name not in theirs:
            text = f"{name} is not there to be removed{nearest(str(name), theirs)}"
            tree.problems.append((*tree.lines[("parameters", name)], text))
    return {n: written for n, written in {**theirs, **ours}.items() if written is not None}


def _merge_constraints(
    base: Tree, tree: Tree, merged: dict[str, object], lines: dict[Path, tuple[File, int]]
) -> None:
    ours = tree.data.get("constraints") or []
    theirs = base.data.get("constraints") or []
    if not isinstance(ours, list) or not isinstance(theirs, list):
        merged["constraints"] = ours or theirs
        return
    own_names, base_names = ([_name_of(item) for item in items] for items in (ours, theirs))
    kept = [
        (item, base, i)
        for i, item in enumerate(theirs)
        if base_names[i] is None or base_names[i] not in own_names
    ]
    for position, (item, name) in enumerate(zip(ours, own_names, strict=True)):
        if name is None or set(item) != {"name"}:
            kept.append((item, tree, position))
        elif name not in base_names:  # a name alone removes the constraint
            near = nearest(str(name), map(str, base_names))
            text = f"the constraint {name!r} is not there to be removed{near}"
            tree.problems.append((*tree.lines[("constraints", position)], text))
    merged["constraints"] = [item for item, _, _ in kept]
    for path in [path for path in lines if path[:1] == ("constraints",)]:
        del lines[path]
    for position, (_, source, i) in enumerate(kept):
        for path, at in source.lines.items():
            if path[:2] == ("constraints", i):
                lines[("constraints", position, *path[2:])] = at


def _name_of(constraint: object) -> object:
    return constraint.get("name") if isinstance(constraint, Mapping) else None
