"""`supermax database`: run a PostgreSQL server for shared studies, without root."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from supermax.cluster.database import DatabaseFolder, prepare_server, run_server


def database(
    folder: Annotated[Path, typer.Argument(help="Folder of the data and of the password.")],
    host: Annotated[
        str | None,
        typer.Option(help="Name of this machine for others. Default: its host name."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="TCP port. Default: a free one.")
    ] = None,
) -> None:
    """Run a PostgreSQL server in the foreground, for studies that several machines share.

    The first call creates the database and its password, which only you can read. The command
    prints a line for your shell; after it, all commands find the database, also once it has moved
    to another machine. Ctrl-C stops the server.

    \b
    Examples:
      supermax database /shared/me/database
    """
    place = DatabaseFolder(folder.absolute())
    command = prepare_server(place, host=host, port=port)
    service = place.service()
    assert service is not None
    print(f"PostgreSQL on {service.host}, port {service.port}. To use it:", flush=True)
    print(place.export_line(), flush=True)
    run_server(command)
