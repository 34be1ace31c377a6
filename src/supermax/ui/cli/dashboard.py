"""`supermax dashboard`: reports and Optuna's dashboard, served to browsers on this machine."""

from __future__ import annotations

import contextlib
import signal
from types import FrameType
from typing import Annotated, NoReturn

import typer

from supermax._util.attributes import STORAGE
from supermax.results.report.serving import make_site, server
from supermax.space.migration.versions import find_study
from supermax.studies import existing, without_password
from supermax.ui.cli.completing import studies
from supermax.ui.cli.opening import STUDY, Storage

Port = Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")]
Edit = Annotated[
    bool, typer.Option("--edit", help="Allow studies to be changed and deleted in the browser.")
]
Study = Annotated[
    str | None,
    typer.Argument(
        metavar=STUDY,
        help="Print the address of this study's report.",
        autocompletion=studies,
    ),
]


def dashboard(
    name: Study = None, storage: Storage = STORAGE, port: Port = 8080, edit: Edit = False
) -> None:
    """Serve reports and Optuna's dashboard to browsers on this machine, until Ctrl-C.

    The printed addresses contain a token: without it, other users of this machine see nothing.
    Studies are read-only unless --edit is given.

    \b
    Example:
      supermax dashboard --port 8080
    """
    backend = existing(storage)
    study = None if name is None else find_study(backend, name)
    site = make_site(backend, without_password(storage), edit=edit)
    previous = signal.signal(signal.SIGTERM, _interrupt)
    with contextlib.suppress(KeyboardInterrupt), server(site, port) as listening:
        port = listening.server_port
        print(f"Studies: {site.address(port)}")
        if study is not None:
            report = site.address(port, f"/report/{study._study_id}")
            print(f"Report of '{study.study_name}': {report}")
        print(f"Optuna's dashboard: {site.address(port, '/dashboard')}")
        print("Studies can be changed and deleted there." if edit else "Studies can only be read.")
        print("Press Ctrl-C to stop.", flush=True)
        listening.serve_forever(poll_interval=0.1)
    signal.signal(signal.SIGTERM, previous)
    print("Stopped.")


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
