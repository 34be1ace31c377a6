"""`supermax clean | doctor`: what could go, and whether a run can start."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from supermax import cleaning
from supermax import doctor as checks
from supermax.cli.completing import among, preset_names, targets
from supermax.cli.opening import AsJson, Storage, print_json
from supermax.cli.printing import console, literal
from supermax.errors import EnvironmentFault, UserError
from supermax.naming import AGENTS, CACHE, STORAGE
from supermax.space import Space, choices
from supermax.space.presets import preset as preset_of
from supermax.study import all_studies, existing, file_of, refuse_while_running
from supermax.words import ended, listed, nearest, size_text

_MARKS = {checks.GOOD: ("✓", "green"), checks.WARNING: ("!", "yellow"), checks.BAD: ("✗", "red")}


def clean(
    storage: Storage = STORAGE,
    top: Annotated[int, typer.Option(min=0, help="Best trials that keep their weights.")] = 5,
    cache: Annotated[
        Path | None, typer.Option(help=f"The cache; default: {CACHE} beside the storage.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what of the run files could go and how much it frees; remove it when you agree.

    Studies, what trials came to, logs, and the weights of the best trials stay. --json says what
    could go and does not ask; with --yes, what was removed and how many bytes that freed.

    \b
    Examples:
      supermax clean --dry-run
      supermax clean --top 3 --yes
    """
    studies = all_studies(existing(storage))
    for study in studies:
        refuse_while_running(study, "be cleaned up")
    found = cleaning.leftovers(studies, top=top, cache=cache or _beside(storage))
    if as_json and (dry_run or not yes):
        print_json(_as_data(found))
        return
    if not as_json:
        _print_leftovers(found)
    if dry_run or not (found or as_json):
        return
    if not yes and not typer.confirm("Remove it?"):
        print("Nothing was removed.")
        raise typer.Exit(1)
    freed, failed = cleaning.remove(found)
    if as_json:
        removed = [item for item in found if not item.path.exists()]
        print_json({"removed": _as_data(removed), "freed": freed, "failed": failed})
    else:
        print(f"{size_text(freed)} freed.")
    if failed:
        raise EnvironmentFault(listed("Some could not be removed:", failed))


def _as_data(found: list[cleaning.Leftover]) -> list[dict[str, str | int]]:
    return [{"what": item.what, "path": str(item.path), "size": item.size} for item in found]


def _print_leftovers(found: list[cleaning.Leftover]) -> None:
    groups: dict[str, list[cleaning.Leftover]] = {}
    for item in found:
        groups.setdefault(item.what, []).append(item)
    for what, items in groups.items():
        print(f"{size_text(sum(i.size for i in items)):>10}  {len(items):>5}  {what}")
    if not found:
        print("Nothing could go.")
    else:
        print(f"{size_text(sum(item.size for item in found)):>10}  in all")


def doctor(
    target: Annotated[
        str | None,
        typer.Argument(
            help="A search as `tune` takes it, such as a YAML file: its encoders and data.",
            autocompletion=targets,
        ),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="Whose encoders to look for.", autocompletion=among(AGENTS))
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="demo, standard, max or supermax.", autocompletion=preset_names),
    ] = None,
    storage: Storage = STORAGE,
    as_json: AsJson = False,
) -> None:
    """Check this machine: device, memory, storage, disk, encoders, data.

    The exit code is 0 when a run can start, 1 when not.

    \b
    Examples:
      supermax doctor
      supermax doctor notes.yaml
      supermax doctor --preset demo --json
    """
    if target is not None and (agent or preset):
        raise UserError(f"--agent and --preset cannot go with {target}, which has its own.")
    agent = agent or "criteria"
    if agent not in AGENTS:
        raise UserError(ended(f"There is no agent {agent!r}{nearest(agent, AGENTS)}"))
    space = preset_of(agent, preset or "demo").space
    wanted: list[tuple[str, checks.Check]] = [
        ("python", checks.python),
        ("machine", checks.machine),
        ("device", checks.device),
        ("storage", partial(checks.storage, storage)),
        ("models", partial(_models, space, target)),
        ("models", checks.installed),
    ]
    if target is not None:
        wanted.append(("data", partial(_data, target)))
    found = checks.examine(wanted)
    if as_json:
        print_json([vars(finding) for finding in found])
    else:
        _print_findings(found)
    raise typer.Exit(checks.exit_code(found))


def _print_findings(found: list[checks.Finding]) -> None:
    screen = console()
    for finding in found:
        mark, colour = _MARKS[finding.state]
        line = literal(f"{mark} ", colour) + literal(f"{finding.about:<9}{finding.text}")
        screen.print(line)
        if finding.advice:
            screen.print(literal(f"           → {finding.advice}", "dim"))
    bad = sum(finding.state == checks.BAD for finding in found)
    screen.print("A run cannot start: see ✗ above." if bad else "A run can start.")


def _models(space: Space, target: str | None) -> Iterator[checks.Finding]:
    """Look for the encoders of a search, or else of a space."""
    spaces = [space]
    if target is not None:
        from supermax.cli.tune import resolved
        from supermax.spaces import space_of

        spaces = [space_of(each.settings) for each in resolved(target, {})]
    names = [str(name) for each in spaces for name in choices(each, "encoder.name")]
    yield from checks.models(list(dict.fromkeys(names)))


def _data(target: str) -> list[checks.Finding]:
    from supermax.cli.tune import resolved
    from supermax.planning import described
    from supermax.search import prepared

    found = []
    for each in resolved(target, {}):
        lines = described(prepared(each, tell=lambda _: None))
        found += [checks.Finding("data", checks.GOOD, line) for line in lines]
    return found


def _beside(storage: str) -> Path | None:
    file = file_of(storage)
    return None if file is None else file.parent / CACHE
