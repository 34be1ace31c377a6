"""Detection of files on network disks, on which SQLite is not safe.

SQLite's write-ahead log needs memory that all its processes share, and locks that hold for all
of them. Network file systems offer neither between machines. Only types that are surely on a
network are listed: overlayfs, 9p and virtiofs are mostly disks of one machine (containers,
virtual machines, WSL), and most FUSE types are local.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from supermax.errors import UserError

MOUNTS = Path("/proc/self/mountinfo")
"""Table of the mounts of this process. Only Linux has it; elsewhere nothing is detected."""
# fmt: off
_TYPES = frozenset((
    "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre",
    "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2", "smb2", "smb3", "smbfs", "wekafs",
))
_FUSE_TYPES = frozenset((
    "beegfs", "blobfuse", "blobfuse2", "ceph", "ceph-fuse", "curlftpfs", "davfs", "gcsfuse",
    "glusterfs", "goofys", "hf-mount", "juicefs", "mount-s3", "mountpoint-s3", "objectivefs",
    "rclone", "s3fs", "seaweedfs", "smbnetfs", "sshfs",
))
# fmt: on
_ESCAPED = re.compile(r"\\([0-7]{3})")


def network_type(mounts: str, path: str) -> str | None:
    """Return the type of the network file system that holds an absolute path without links; None:
    it is on a local disk. `mounts`: the text of /proc/self/mountinfo."""
    found, longest = "", -1
    for line in mounts.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split()
        if not separator or len(fields) < 5:
            continue
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:  # of two at one point, the later one is visible
            found, longest = right.split()[0], len(point)
    fuse, _, subtype = found.partition(".")
    is_network = found in _TYPES or (fuse == "fuse" and subtype in _FUSE_TYPES)
    return found if is_network else None


def refuse_sqlite_on_network_disk(file: Path) -> None:
    """Raise UserError for the file of a database, existing or not, that is on a network disk."""
    try:
        mounts = MOUNTS.read_text(errors="replace")
    except OSError:
        return
    if (kind := network_type(mounts, os.path.realpath(file))) is not None:
        raise UserError(
            f"{file} is on a network disk ({kind}), where SQLite can lose or damage a study. Put "
            f"it on a local disk, or use a journal, which is safe there (--storage "
            f"{file.with_suffix('.journal')}), or a database server (postgresql+psycopg://…)."
        )
