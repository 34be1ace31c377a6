"""`supermax slurm`: write, and submit, a job array of runs on one study."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from supermax._util.files import make_private, make_trusted, write_whole, writing
from supermax._util.text import counted, masked_url
from supermax.cluster import slurm as jobs
from supermax.cluster.database import DatabaseFolder, find_binaries
from supermax.engine.storage.locations import file_name
from supermax.errors import UserError
from supermax.search.settings import Resolved
from supermax.search.settings.resolving import Value
from supermax.training.data.inputs.reading import is_table
from supermax.ui.cli.completing import targets
from supermax.ui.cli.outcome import VARIABLE
from supermax.ui.cli.tune import ALL, assigned, check_names, is_data, resolved

_SERVERS = ("postgresql", "mysql", "mariadb")
Text = str | None


def slurm(
    target: Annotated[
        str,
        typer.Argument(
            help="criteria, evidence, share, joint, or a YAML file.", autocompletion=targets
        ),
    ],
    nodes: Annotated[int, typer.Option(min=1, help="Runs, each on a node of its own.")],
    time: Annotated[str, typer.Option(help="Time limit of a task, as Slurm writes it: 12:00:00.")],
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="GPUs of each task; its run uses all of them.")
    ] = None,
    partition: Annotated[Text, typer.Option(help="Partition of the cluster.")] = None,
    account: Annotated[Text, typer.Option(help="Account to charge.")] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(help="Further option of sbatch: qos=low, mem=64G, exclusive."),
    ] = None,
    storage: Annotated[
        Text, typer.Option(help="URL of the database. Default: the setting storage.")
    ] = None,
    database: Annotated[
        Path | None,
        typer.Option(help="Folder of a PostgreSQL server that the first task runs."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder of the job on a shared disk. Default: slurm-STUDY."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Script. Default: job.sh in the folder.")
    ] = None,
    assign: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE: any setting of the search.")
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Submit the job with sbatch.")] = False,
) -> None:
    """Write a Slurm job script that runs a search on several nodes, on one database.

    Each task of the job array is one `supermax tune`. A task that is preempted, or is about to
    reach its time limit, pauses with checkpoints, is requeued, and goes on. The script holds no
    password.

    \b
    Examples:
      supermax slurm notes.yaml --nodes 2 --time 1:00:00 --database database
    """
    seconds = jobs.parse_time(time)
    options = _options(partition, account, sbatch or [])
    found = _search(target, storage, assign or [], has_database=database is not None)
    url = _server_url(found, database)
    place = _job_folder(folder or Path(f"slurm-{file_name(found.settings.study)}"), url)
    job = jobs.SlurmJob(
        name=found.settings.study,
        nodes=nodes,
        time=time.strip(),
        folder=place,
        working_directory=Path.cwd(),
        python=sys.executable,
        tune=_tune_arguments(target, found, assign or [], place, gpus_per_node),
        gpus_per_node=gpus_per_node,
        use_all_gpus=gpus_per_node is not None and "gpus" not in found.sources,
        database=database.absolute() if database is not None else None,
        sbatch=options,
        service_file=_service_file(url),
    )
    path = (output or place.script).absolute()
    with writing(path, "Name another file with --output."):
        write_whole(path, jobs.script(job), shared=True)
        path.chmod(path.stat().st_mode | 0o100)
    print(f"Job script: {path}")
    print(f"{counted(nodes, 'task')} of at most {seconds / 3600:.3g} h each. Logs: {place.logs}")
    submitted = jobs.submit(path) if submit else None
    for line in _next_steps(job, path, url, submitted):
        print(line)


def _options(partition: Text, account: Text, more: list[str]) -> tuple[str, ...]:
    """Return the options of sbatch. Raises UserError."""
    named = {"partition": partition, "account": account}
    jobs.check_job_options(more)
    own = (f"{n}={jobs.checked_value(n, v)}" for n, v in named.items() if v is not None)
    return (*own, *more)


def _search(target: str, storage: Text, assign: list[str], *, has_database: bool) -> Resolved:
    """Return the settings of the search. Raises UserError. `has_database`: the job runs a database
    of its own, whichever storage this shell names: users paste the line of an earlier job."""
    if target == ALL or is_table(Path(target)) or is_data(target):
        raise UserError(
            f"{target}: name one agent, or a YAML file. `supermax init` writes one for a table."
        )
    flags = {"storage": Value(storage, "--storage")} if storage is not None else {}
    ignored = (VARIABLE,) if has_database else ()
    (found,) = resolved(target, flags | assigned(assign), without=ignored)
    check_names(found.settings)
    return found


def _job_folder(path: Path, url: str | None) -> jobs.JobFolder:
    """Create the folder of the job, with the URL of the storage in it."""
    place = jobs.JobFolder(path.absolute())
    with writing(place.path, "Name another folder with --folder."):
        make_trusted(place.path)  # it may hold the user's own files
        make_private(place.logs)
        if url is not None:
            write_whole(place.storage, url)
    return place


def _server_url(found: Resolved, database: Path | None) -> str | None:
    """Return the URL of the database server; None: the job runs one in `database`."""
    url = found.settings.storage or ""
    if database is not None:
        if "storage" in found.sources:
            raise UserError(
                f"--database runs a server of its own, but {found.sources['storage']} names a "
                f"storage: leave one of them out."
            )
        find_binaries()
        DatabaseFolder(database.absolute()).create()
        return None
    if "://" in url and url.partition(":")[0].partition("+")[0] in _SERVERS:
        return url
    named = f"{masked_url(url)} is not one" if url else "none is named"
    raise UserError(
        f"The runs share a study on a database server, and {named}: add --storage "
        f"postgresql+psycopg://USER@HOST/NAME, or --database FOLDER to run one in the job."
    )


def _service_file(url: str | None) -> Path | None:
    """Return the file of this shell that defines the service of a URL: the shell of a later
    `sbatch` may not name it."""
    file = os.environ.get("PGSERVICEFILE")
    return Path(file).expanduser().absolute() if file and url and "service=" in url else None


def _tune_arguments(
    target: str, found: Resolved, pairs: list[str], place: jobs.JobFolder, gpus: int | None
) -> tuple[str, ...]:
    """Return the arguments of `supermax tune`, except those that differ between tasks."""
    path = Path(target).expanduser()
    words = [str(path.absolute()) if path.is_file() else target]
    for pair in pairs:
        if pair.partition("=")[0].strip() != "storage":  # it is in a file of its own
            words += ["--set", pair]
    if found.settings.checkpoints is None:
        words += ["--set", f"checkpoints={place.checkpoints}"]
    if gpus is not None and "workers" not in found.sources:
        words += ["--workers", "auto"]
    return tuple(words)


def _next_steps(
    job: jobs.SlurmJob, path: Path, url: str | None, submitted: str | None
) -> list[str]:
    """Return the commands to use next."""
    lines, status = [], f"supermax status {shlex.quote(job.name)}"
    if job.database is not None:
        folder = DatabaseFolder(job.database)
        lines.append(f"Find the database: {folder.export_line()}")
        if os.environ.get(VARIABLE, folder.url) != folder.url:
            lines.append(f"Until then, {VARIABLE} names another storage in this shell.")
    elif url is not None:
        lines.append(f"Storage: {masked_url(url)}")
        status = f'SUPERMAX_STORAGE="$(cat {shlex.quote(str(job.folder.storage))})" {status}'
        if job.service_file is not None:
            status = f"PGSERVICEFILE={shlex.quote(str(job.service_file))} {status}"
    if submitted is None:
        lines.append(f"Submit it: sbatch {shlex.quote(str(path))}")
    else:
        lines.append(f"Submitted as job {submitted}. End it: scancel {submitted}")
    return [*lines, f"See all runs: {status}"]
