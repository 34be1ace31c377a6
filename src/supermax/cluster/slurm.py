"""Job script of Slurm for a job array of runs on one study. Pure, except for `submit`.

    SlurmJob ──script()──▶ text ──submit()──▶ id of the job

Each task of the array is one run, started by `slurm_task`. The script holds no secret: the URL of
the storage is in a file of the job's folder that only its owner can read.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from supermax._util.text import in_short
from supermax.errors import EnvironmentFault, UserError

NOTICE = 120
"""Seconds before the time limit at which Slurm sends TERM: a run takes about 35 s to pause trials
that do not react."""
_MIN_TIME = 5 * 60
_MANY, _HOUR, _SIXTIETH = "[0-9]{1,6}", "(?:[01]?[0-9]|2[0-3])", "[0-5]?[0-9]"
_TIMES = (
    rf"(?P<minutes>{_MANY})(:(?P<seconds>{_SIXTIETH}))?",
    rf"(?P<hours>{_MANY}):(?P<minutes>{_SIXTIETH}):(?P<seconds>{_SIXTIETH})",
    rf"(?P<days>{_MANY})-(?P<hours>{_HOUR})"
    rf"(:(?P<minutes>{_SIXTIETH})(:(?P<seconds>{_SIXTIETH}))?)?",
)
_SECONDS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
_VALUE = r"[^\s\x00-\x1f\x7f\"']+"
_OPTION = re.compile(rf"[a-z][a-z0-9-]*(={_VALUE})?")
_OWN = (
    *("array", "chdir", "error", "no-requeue", "ntasks", "ntasks-per-core", "ntasks-per-gpu"),
    *("ntasks-per-node", "ntasks-per-socket", "ntasks-per-tres", "open-mode", "output", "requeue"),
    "signal",
)
"""Options of sbatch that the script sets itself."""
_FLAGS = ("account", "gpus-per-node", "nodes", "partition", "time")
"""Options of sbatch that `supermax slurm` has as well."""
_COMPLETE = ("gpus",)
"""Options of sbatch whose name is the start of another one's."""


@dataclass(frozen=True)
class JobFolder:
    """Folder of a job on a disk that all nodes share. All its file names are here."""

    path: Path

    @property
    def script(self) -> Path:
        return self.path / "job.sh"

    @property
    def storage(self) -> Path:
        """File with the URL of the storage."""
        return self.path / "storage"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    def run_dir(self, job: str, task: int, copy: int = 0) -> Path:
        """Return the run folder of a task: the same whenever Slurm starts it again. `copy`: other
        folders, for while a node that Slurm has lost still runs the task."""
        return self.runs / (f"{job}_{task}-{copy}" if copy else f"{job}_{task}")


@dataclass(frozen=True)
class SlurmJob:
    name: str
    nodes: int
    time: str
    """Time limit, as Slurm writes it."""
    folder: JobFolder
    working_directory: Path
    python: str
    tune: tuple[str, ...]
    """Arguments of `supermax tune`."""
    gpus_per_node: int | None = None
    use_all_gpus: bool = False
    """Pass the GPUs that Slurm has allocated on to the run."""
    database: Path | None = None
    """Folder of a PostgreSQL server that the first task runs; None: there is a server."""
    sbatch: tuple[str, ...] = ()
    """Further options of sbatch, without the leading dashes."""
    service_file: Path | None = None
    """File that defines the service in the URL of the storage; None: the default one, or none."""


def script(job: SlurmJob) -> str:
    """Return the job script."""
    options = [
        f"job-name={_quoted(job.name)}",
        f"array=0-{job.nodes - 1}",
        "nodes=1",
        "ntasks=1",
        f"time={job.time}",
        *([f"gpus-per-node={job.gpus_per_node}"] if job.gpus_per_node else []),
        "requeue",
        f"signal=B:TERM@{NOTICE}",
        "open-mode=append",
        f"chdir={_quoted(job.working_directory)}",
        f"output={_quoted(str(job.folder.logs).replace('%', '%%') + '/%A_%a.log')}",
        *job.sbatch,
    ]
    runner = [job.python, "-P", "-m", "supermax.cluster.slurm_task", str(job.folder.path)]
    runner += ["--database", str(job.database)] if job.database else []
    runner += ["--gpus"] if job.use_all_gpus else []
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{option}" for option in options),
        "",
        "# Each task of the array runs this, again after it was preempted or requeued.",
        "# Commands that prepare a node go here, such as: module load cuda",
        "",
        *([f"export PGSERVICEFILE={shlex.quote(str(job.service_file))}"] * bool(job.service_file)),
        f"exec {shlex.join(runner)} -- {shlex.join(job.tune)}",
        "",
    ]
    return "\n".join(lines)


def _quoted(value: object) -> str:
    """Return a value as sbatch reads it from a script. Raises UserError."""
    if re.search(r'[\x00-\x1f\x7f"]', str(value)):  # a new line would end the comment
        raise UserError(
            f"A job script cannot hold {str(value)!r}: use names without control characters and "
            f"double quotes."
        )
    return f'"{value}"' if re.search(r"\s", str(value)) else str(value)


def parse_time(text: str) -> int:
    """Return the seconds of a time limit of Slurm. Raises UserError."""
    for pattern in _TIMES:
        if match := re.fullmatch(pattern, text.strip()):
            parts = {unit: int(part) for unit, part in match.groupdict().items() if part}
            found = sum(_SECONDS[unit] * part for unit, part in parts.items())
            if found < _MIN_TIME:
                raise UserError(f"--time {text}: a job needs at least {_MIN_TIME // 60} minutes.")
            return found
    raise UserError(
        f"--time {text}: write it as Slurm does: minutes, hours:minutes:seconds or "
        f"days-hours:minutes, such as 90, 12:00:00 or 2-12:00."
    )


def checked_value(name: str, value: str) -> str:
    """Return the value of an option of `supermax slurm` for the script. Raises UserError."""
    if not re.fullmatch(_VALUE, value):
        raise UserError(f"--{name} {value!r}: write a name without spaces and quotation marks.")
    return value


def check_job_options(options: Sequence[str]) -> None:
    """Raise UserError for an option that sbatch cannot take from the script."""
    for option in options:
        name = option.partition("=")[0]
        if not _OPTION.fullmatch(option):
            raise UserError(
                f"--sbatch {option}: write an option of sbatch without dashes and spaces, such as "
                f"--sbatch qos=low or --sbatch exclusive."
            )
        if name in _OWN:
            raise UserError(f"--sbatch {option}: Supermax sets {name} itself. Leave it out.")
        if name in _FLAGS:
            raise UserError(f"--sbatch {option}: use the option --{name} instead.")
        longer = [known for known in (*_OWN, *_FLAGS) if known.startswith(name)]
        if longer and name not in _COMPLETE:  # sbatch would take it for one of these
            raise UserError(f"--sbatch {option}: write the name of the option in full.")


def submit(path: Path) -> str:
    """Submit a job script and return the id of the job. Raises UserError, EnvironmentFault."""
    if (program := shutil.which("sbatch")) is None:
        raise UserError(
            f"sbatch was not found: submit on a login node of the cluster, with `sbatch {path}`."
        )
    done = subprocess.run(
        [program, "--parsable", path], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise EnvironmentFault(
            f"sbatch refused {path}: {in_short(done.stderr or done.stdout)}. Change the options, "
            f"or the script, and submit it again."
        )
    job = done.stdout.strip().partition(";")[0]  # job;cluster
    if not job.isdecimal():
        said = in_short(done.stderr or done.stdout) or "nothing"
        raise EnvironmentFault(
            f"sbatch has not submitted {path}. It said: {said}. Change the options, or the script."
        )
    return job
