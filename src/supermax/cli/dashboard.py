"""`supermax dashboard`: reports and Optuna's dashboard in a browser."""

from __future__ import annotations

import contextlib
import signal
from types import FrameType
from typing import Annotated, NoReturn

import typer

from supermax.cli.completing import studies
from supermax.cli.opening import STUDY, Storage, find_study
from supermax.naming import STORAGE
from supermax.report.serving import make_site, server
from supermax.study import existing, without_password

Port = Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.")]
Edit = Annotated[bool, typer.Option("--edit", help="Let studies be changed and deleted.")]
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

    The addresses that are printed hold a token: without it, other users of this machine see
    nothing. Studies can be read and, with --edit, changed and deleted.

    \b
    Example:
      supermax dashboard --port 8080
    """
    backend = existing(storage)
    study = None if name is None else find_study(backend, name)
    site = make_site(backend, without_password(storage), edit=edit)
    before = signal.signal(signal.SIGTERM, _end)
    with contextlib.suppress(KeyboardInterrupt), server(site, port) as listening:
        port = listening.server_port
        print(f"Studies: {site.address(port)}")
        if study is not None:
            report = site.address(port, f"/report/{study._study_id}")
            print(f"Report of '{study.study_name}': {report}")
        print(f"Optuna's dashboard: {site.address(port, '/dashboard')}")
        print("Studies can be changed and deleted there." if edit else "Studies can only be read.")
        print("Ctrl-C ends it.", flush=True)
        listening.serve_forever(poll_interval=0.1)
    signal.signal(signal.SIGTERM, before)
    print("Ended.")


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
