"""`supermax clean | doctor`: remove leftover run files; check whether a run can start."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from supermax._util.attributes import CACHE, STORAGE
from supermax._util.text import listed, size_text
from supermax.agents import AGENT_NAMES, agent_of
from supermax.agents.criteria import CRITERIA
from supermax.errors import EnvironmentFault, UserError
from supermax.search import cleanup
from supermax.search import doctor as checks
from supermax.search.settings import Resolved
from supermax.space import Space, choices
from supermax.space.presets import preset as preset_of
from supermax.studies import all_studies, existing, file_of, refuse_while_running
from supermax.ui.cli.completing import among, preset_names, targets
from supermax.ui.cli.opening import AsJson, Storage, print_json
from supermax.ui.cli.printing import console, literal

_MARKS = {checks.GOOD: ("✓", "green"), checks.WARNING: ("!", "yellow"), checks.BAD: ("✗", "red")}


def clean(
    storage: Storage = STORAGE,
    top: Annotated[int, typer.Option(min=0, help="Best trials that keep their weights.")] = 5,
    cache: Annotated[
        Path | None, typer.Option(help=f"Cache folder. Default: {CACHE} beside the storage.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list, remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """List run files that are no longer needed and their size, and remove them if you agree.

    Studies, results of trials, logs and the weights of the best trials are kept. --json lists the
    files without asking; with --yes it lists what was removed and how many bytes that freed.

    \b
    Examples:
      supermax clean --dry-run
      supermax clean --top 3 --yes
    """
    studies = all_studies(existing(storage), races=True)
    for study in studies:
        refuse_while_running(study, "be cleaned up")
    found = cleanup.leftovers(studies, top=top, cache=cache or _default_cache(storage))
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
    freed, failed = cleanup.remove(found)
    if as_json:
        removed = [item for item in found if not item.path.exists()]
        print_json({"removed": _as_data(removed), "freed": freed, "failed": failed})
    else:
        print(f"{size_text(freed)} freed.")
    if failed:
        raise EnvironmentFault(listed("Some files could not be removed:", failed))


def _as_data(found: list[cleanup.Leftover]) -> list[dict[str, str | int]]:
    return [{"what": item.what, "path": str(item.path), "size": item.size} for item in found]


def _print_leftovers(found: list[cleanup.Leftover]) -> None:
    groups: dict[str, list[cleanup.Leftover]] = {}
    for item in found:
        groups.setdefault(item.what, []).append(item)
    for what, items in groups.items():
        print(f"{size_text(sum(i.size for i in items)):>10}  {len(items):>5}  {what}")
    if not found:
        print("Nothing to remove.")
    else:
        print(f"{size_text(sum(item.size for item in found)):>10}  in total")


def doctor(
    target: Annotated[
        str | None,
        typer.Argument(
            help="Search whose encoders and data are checked: an agent or a YAML file.",
            autocompletion=targets,
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(help="Agent whose encoders are checked.", autocompletion=among(AGENT_NAMES)),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="demo, standard, modern, max or supermax.", autocompletion=preset_names),
    ] = None,
    storage: Storage = STORAGE,
    as_json: AsJson = False,
) -> None:
    """Check whether a run can start here: device, memory, storage, disk, encoders, data.

    Exit codes: 0 if a run can start, 1 if not.

    \b
    Examples:
      supermax doctor
      supermax doctor notes.yaml
      supermax doctor --preset demo --json
    """
    if target is not None and (agent or preset):
        raise UserError(f"--agent and --preset cannot go with {target}, which has its own.")
    agent = agent_of(agent or CRITERIA.name).name
    space = preset_of(agent, preset or "demo").space
    to_run: list[tuple[str, checks.Check]] = [
        ("python", checks.python),
        ("machine", checks.machine),
        ("device", checks.device),
        ("storage", partial(checks.storage, storage)),
        *([("models", partial(_models, space))] if target is None else _checks_of(target)),
        ("models", checks.installed_encoder_findings),
    ]
    found = checks.examine(to_run)
    if as_json:
        print_json([vars(finding) for finding in found])
    else:
        _print_findings(found)
    raise typer.Exit(checks.doctor_exit_code(found))


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


def _checks_of(target: str) -> list[tuple[str, checks.Check]]:
    """Return the checks of a search: its encoders and data, or why its settings are wrong."""
    try:
        from supermax.search.spaces import space_for
        from supermax.ui.cli.tune import resolved

        searches = resolved(target, {})
        spaces = [space_for(each.settings) for each in searches]
    except Exception as error:  # reported like that of any other check
        return [("settings", partial(_raise, error))]
    return [("models", partial(_models, *spaces)), ("data", partial(_data, searches))]


def _raise(error: Exception) -> NoReturn:
    raise error


def _models(*spaces: Space) -> Iterator[checks.Finding]:
    names = [str(name) for space in spaces for name in choices(space, "encoder.name")]
    yield from checks.models(list(dict.fromkeys(names)))


def _data(searches: list[Resolved]) -> Iterator[checks.Finding]:
    from supermax.search.prepare import prepare_search
    from supermax.search.preview import describe_data

    for each in searches:
        for line in describe_data(prepare_search(each, tell=lambda _: None)):
            yield checks.Finding("data", checks.GOOD, line)


def _default_cache(storage: str) -> Path | None:
    """Return the cache folder beside a storage file; None for a database server."""
    file = file_of(storage)
    return None if file is None else file.parent / CACHE
