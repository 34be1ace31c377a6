"""`supermax track`: log the trials of a study to a tracker."""

from __future__ import annotations

from typing import Annotated

import typer

from supermax._util.attributes import STORAGE
from supermax._util.text import counted
from supermax.results.tracking import send_missing
from supermax.ui.cli.opening import Storage, Which, the_study


def track(
    name: Which = None,
    uri: Annotated[
        str | None,
        typer.Option(
            help="mlflow, tensorboard[:FOLDER], wandb[:PROJECT], or the address of MLflow: a "
            "server, database URL or SQLite file. Default: mlflow.db beside the study's file.",
            envvar="MLFLOW_TRACKING_URI",
        ),
    ] = None,
    storage: Storage = STORAGE,
    run_dir: Annotated[
        str | None, typer.Option(help="Run folder, if it is not at its default place.")
    ] = None,
    patience: Annotated[
        float, typer.Option(help="Seconds to wait for a server that does not answer.", min=0)
    ] = 30.0,
) -> None:
    """Log the trials of a study to a tracker that does not have them yet, one run per trial.

    Trials that were sent before are not sent again, so the command is safe to repeat at any time,
    also after it was killed.

    \b
    Examples:
      supermax track criteria
      supermax track criteria --uri tracking.db
      supermax track criteria --uri tensorboard:logs
    """
    study = the_study(storage, name)
    standing, shown = send_missing(study, uri, run_dir=run_dir, patience=patience)
    print(f"{counted(standing.sent, 'trial')} of '{study.study_name}' sent to {shown}.")
    if standing.trouble:
        print(standing.trouble)
    if standing.left:
        print(f"{counted(standing.left, 'trial')} left. Run the same command again to send them.")
        raise typer.Exit(1)
