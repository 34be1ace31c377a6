"""Runs of a shared study by name: which run finished a trial, and from which it was taken over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from supermax._util.attributes import CLAIM, TAKEN_FROM
from supermax._util.text import one_line
from supermax.engine.sharing.shared_run import RunOfStudy
from supermax.results.records import StudyRecord, TrialRecord


def run_names(runs: Sequence[RunOfStudy]) -> dict[str, str]:
    """Return run → the name of its machine, with its run folder where a machine has several. The
    default folder bears the name of the machine."""
    count = Counter(run.info.host for run in runs)
    hosts = short_hosts(count)
    names = {}
    for run in runs:
        host, folder = hosts[run.info.host], Path(run.info.run_dir).name
        alone = count[run.info.host] == 1 or folder in {host, run.info.host}
        name = host if alone else f"{host} ({folder})"
        names[run.info.run] = one_line(name, 80)
    return names


def short_hosts(hosts: Iterable[str]) -> dict[str, str]:
    """Return host → its name without the domain, where that tells the hosts apart."""
    short = {host: host.partition(".")[0] for host in hosts}
    return short if len(set(short.values())) == len(short) else {host: host for host in short}


def at_work(runs: Iterable[RunOfStudy]) -> str:
    """Return where runs are at work: running on left, running on 3 machines; "" if none is."""
    hosts = {run.info.host for run in runs if run.info.alive}
    if len(hosts) > 1:
        return f"running on {len(hosts)} machines"
    return "".join(f"running on {one_line(host, 80)}" for host in short_hosts(hosts).values())


def owners_of(trial: TrialRecord) -> list[str]:
    """Return the runs that have had a trial, in order; the last one has it or has finished it."""
    attributes = trial.trial.system_attrs
    takeovers = sorted(
        (int(key.removeprefix(TAKEN_FROM)), str(run))
        for key, run in attributes.items()
        if key.startswith(TAKEN_FROM) and key.removeprefix(TAKEN_FROM).isdigit()
    )
    last = [str(attributes[CLAIM])] if CLAIM in attributes else []
    return [*(run for _, run in takeovers), *last]


def machine_text(record: StudyRecord, trial: TrialRecord) -> str | None:
    """Return the machine of a trial, and those it was taken over from; None: only one run has
    worked on the study."""
    if len(record.runs) < 2:
        return None
    names = run_names(record.runs)
    *former, last = [names.get(run, "unknown") for run in owners_of(trial)] or ["unknown"]
    return f"{last}, taken over from {', then '.join(former)}" if former else last
