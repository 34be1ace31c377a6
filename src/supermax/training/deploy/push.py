"""Upload of an exported model to the Hugging Face Hub.

    folder ──parts_of()──▶ files of the export ──push()──▶ repository

Only files that the export wrote are uploaded. This module imports no torch.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import (  # type: ignore[attr-defined]
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # of the HTTP client, also where there is no answer
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from supermax._util.text import in_short
from supermax.errors import EnvironmentFault, UserError
from supermax.training.deploy.exported import CARD, FACTS, ONNX, check_files, read_facts

_LOGIN = (
    "Log in with `hf auth login`, or set HF_TOKEN, with a token that may write: "
    "{endpoint}/settings/tokens"
)


@dataclass(frozen=True)
class Parts:
    """Files of a folder, relative to it."""

    files: tuple[str, ...]
    """Those of the export, which are uploaded."""
    others: tuple[str, ...]
    """All others, which are not."""
    size: int
    """Bytes of the uploaded files."""


@dataclass(frozen=True)
class Pushed:
    """Uploaded model."""

    url: str
    private: bool


def parts_of(folder: Path) -> Parts:
    """Return what belongs to the export. Raises UserError if the folder holds none, or not all."""
    facts = read_facts(folder)
    check_files(folder, facts["files"])
    known = {FACTS, CARD, ONNX, f"{ONNX}.data", *facts["files"]}
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = {path.relative_to(folder).as_posix(): path.stat().st_size for path in found}
    return Parts(
        tuple(name for name in names if name in known),
        tuple(name for name in names if name not in known),
        sum(size for name, size in names.items() if name in known),
    )


def push(
    folder: Path, parts: Parts, name: str, *, private: bool, endpoint: str | None = None
) -> Pushed:
    """Create the repository if there is none, and upload the files in one commit.

    `name` is NAME, or OWNER/NAME. Raises UserError without a login or without the right to write,
    and if `private` is asked for a repository that is public.
    """
    api = HfApi(endpoint=endpoint)
    if not api.endpoint.startswith(("https://", "http://")):
        raise UserError(
            f"{api.endpoint!r} is not the address of a hub. Name one that begins with https:// "
            f"with --endpoint or in HF_ENDPOINT, such as https://huggingface.co."
        )
    with _explained(api.endpoint, name):
        validate_repo_id(name)
        user = str(api.whoami()["name"])
        name = name if "/" in name else f"{user}/{name}"
        try:
            is_private = bool(api.model_info(name).private)
        except RepositoryNotFoundError:
            api.create_repo(name, private=private)
            is_private = private
        if private and not is_private:
            raise UserError(
                f"{name} exists and is public, so nothing was uploaded. Make it private at "
                f"{api.endpoint}/{name}/settings, choose another name, or leave out --private."
            )
        api.upload_folder(
            repo_id=name,
            folder_path=folder,
            allow_patterns=[glob.escape(each) for each in parts.files],
            commit_message="Upload a model trained with Supermax",
        )
    return Pushed(f"{api.endpoint}/{name}", is_private)


@contextmanager
def _explained(endpoint: str, name: str) -> Iterator[None]:
    """Turn errors of the hub into messages that say what to do."""
    try:
        yield
    except (UserError, EnvironmentFault):
        raise
    except Exception as error:
        # A failed upload of one file is a RuntimeError whose cause says why.
        inner = error.__cause__ if type(error) is RuntimeError and error.__cause__ else error
        if (explained := _explanation(inner, endpoint, name)) is None:
            raise
        raise explained from None


def _explanation(
    error: BaseException, endpoint: str, name: str
) -> UserError | EnvironmentFault | None:
    """Return the error with what to do about it; None: it is a bug."""
    if isinstance(error, LocalTokenNotFoundError):
        return UserError(
            f"You are not logged in to {endpoint}. {_LOGIN.format(endpoint=endpoint)}"
        )
    if isinstance(error, HFValidationError):
        return UserError(f"{name!r} is not a name of a repository: {in_short(error)}.")
    if isinstance(error, OfflineModeIsEnabled):
        return UserError(
            "Nothing is uploaded while HF_HUB_OFFLINE is set. Unset it, and run the command again."
        )
    if isinstance(error, HfHubHTTPError):
        return _refusal(error, endpoint, name)
    if isinstance(error, HTTPError | OSError):
        return EnvironmentFault(
            f"{endpoint} cannot be reached: {in_short(error)}. Check the network and the proxy "
            f"(HTTPS_PROXY), and run the command again: the upload continues."
        )
    return None


def _refusal(error: HfHubHTTPError, endpoint: str, name: str) -> UserError | EnvironmentFault:
    status, login = error.response.status_code, _LOGIN.format(endpoint=endpoint)
    if status == 401:
        return UserError(f"{endpoint} refused the token. {login}")
    if status == 403:
        return UserError(
            f"You may not write to {name}: it belongs to somebody else, or your token may only "
            f"read. Name another repository (NAME alone is one of your own). {login}"
        )
    if status >= 500:
        return EnvironmentFault(
            f"{endpoint} has a problem (HTTP {status}). Run the command again later."
        )
    return UserError(f"{endpoint} refused the upload (HTTP {status}): {in_short(error)}.")
