"""`supermax push`: upload an exported model to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from supermax._util.text import counted, listed
from supermax.ui.cli.progress import Progress


def push(
    model: Annotated[Path, typer.Argument(help="Folder that `refit` exported.")],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Repository: NAME of your own, or OWNER/NAME.")
    ],
    private: Annotated[
        bool, typer.Option("--private", help="Create a repository that only you can see.")
    ] = False,
    endpoint: Annotated[
        str | None,
        typer.Option(help="Address of the hub. Default: HF_ENDPOINT, or huggingface.co."),
    ] = None,
) -> None:
    """Upload an exported model to the Hugging Face Hub.

    Uploaded are the files that the export wrote (configuration, weights, tokenizer, model card,
    its own code) and onnx/model.onnx. Other files in the folder are not. Log in first with
    `hf auth login`.

    \b
    Examples:
      supermax push criteria-model my-model --private
      supermax push criteria-model my-team/my-model
    """
    from supermax.training.deploy.push import parts_of
    from supermax.training.deploy.push import push as push_folder

    folder = model.expanduser()
    parts = parts_of(folder)
    with Progress() as progress:
        progress.step(f"Uploading {counted(len(parts.files), 'file')}, {parts.size / 1e6:,.1f} MB")
        pushed = push_folder(folder, parts, name, private=private, endpoint=endpoint)
    print(f"{'Private' if pushed.private else 'Public'} model {pushed.url}")
    print(listed("Uploaded:", parts.files))
    if parts.others:
        print(listed("Not uploaded, since the export did not write them:", parts.others))
