"""`supermax track`: a study's trials sent to MLflow."""

from __future__ import annotations

from typing import Annotated

import typer

from supermax.cli.opening import Storage, Which, the_study
from supermax.naming import STORAGE
from supermax.tracking import send_missing
from supermax.words import counted


def track(
    name: Which = None,
    uri: Annotated[
        str | None,
        typer.Option(
            help="An MLflow server, a database's URL, or the name of an SQLite file. Default: "
            "mlflow.db beside the study's file.",
            envvar="MLFLOW_TRACKING_URI",
        ),
    ] = None,
    storage: Storage = STORAGE,
    run_dir: Annotated[
        str | None, typer.Option(help="The run folder, if it is not in its usual place.")
    ] = None,
    patience: Annotated[
        float, typer.Option(help="Seconds without an answer after which to give up.", min=0)
    ] = 30.0,
) -> None:
    """Send to MLflow what it does not have of a study yet: one run a trial.

    Whatever was sent before stays as it is and is not sent twice, so this may be called at any
    time, also after a kill, and as often as one likes.

    \b
    Examples:
      supermax track criteria
      supermax track criteria --uri tracking.db
    """
    study = the_study(storage, name)
    standing, shown = send_missing(study, uri, run_dir=run_dir, patience=patience)
    print(f"{counted(standing.sent, 'trial')} of '{study.study_name}' sent to {shown}.")
    if standing.trouble:
        print(standing.trouble)
    if standing.left:
        print(f"{counted(standing.left, 'trial')} left. Call again to go on.")
        raise typer.Exit(1)
