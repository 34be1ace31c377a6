"""Settings of a search, as they are written in one YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from supermax._util.attributes import ALL_GPUS, CACHE, HUB, LEASE, STORAGE, STORED_DATA, TRUST
from supermax._util.text import mistyped_url
from supermax.agents import TASKS
from supermax.agents.validation import AgentName
from supermax.search.settings import units

Sampler = Literal["tpe", "prior", "random", "gp", "cmaes", "qmc", "nsgaii"]
Executor = Literal["local", "ray"]
Pruner = Literal["median", "promotion", "hyperband", "halving", "none"]
Stop = Literal["never", "when_no_gain"]
Seconds = Annotated[float, BeforeValidator(units.seconds)]
Bytes = Annotated[int, BeforeValidator(units.size)]
Workers = Annotated[int | Literal["auto"], BeforeValidator(units.workers)]


def _list(value: object) -> object:
    """Split text at its commas into a list; put a single number into a list."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return [value] if isinstance(value, int) and not isinstance(value, bool) else value


def _lists(value: object) -> object:
    """Split text at its commas, in a list too: --objective a,b --objective c."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = ",".join(value)
    return _list(value)


def _encoders(value: object) -> object:
    """Read encoders by name, or as {name, trust_remote_code}: the permission for an encoder to
    run its own code becomes part of its name, so that it is stored with every trial."""
    found = _list(value)
    if isinstance(found, Mapping):
        found = [found]
    return [_encoder(part) for part in found] if isinstance(found, list) else found


def _encoder(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    name, trusted = value.get("name"), value.get("trust_remote_code", False)
    if not isinstance(name, str) or not isinstance(trusted, bool) or len(value) > 2:
        raise ValueError(
            "an encoder is its name, or {name: NAME, trust_remote_code: true} to let its own code "
            "run"
        )
    return f"{TRUST}{name.removeprefix(TRUST)}" if trusted else name


Words = Annotated[list[str], BeforeValidator(_list)]
Encoders = Annotated[list[str], BeforeValidator(_encoders)]
Metrics = Annotated[list[str], BeforeValidator(_lists)]


def _switch(value: object) -> object:
    """Parse true, false or auto, as YAML, flags and the environment write them."""
    try:
        return value if value == "auto" else TypeAdapter(bool).validate_python(value)
    except ValidationError:
        raise ValueError(f"write true, false or auto instead of {value!r:.60}") from None


def _texts(value: object) -> object:
    """Put a single text into a list; paths and URLs may have commas."""
    return [value] if isinstance(value, str) else value


Texts = Annotated[list[str], BeforeValidator(_texts)]
TRACKERS = ("mlflow", "tensorboard", "wandb")


def _trackers(value: object) -> object:
    """Split text at its commas if each part names a tracker; addresses may have commas."""
    values = [] if value is None else _texts(value)
    if not isinstance(values, list):
        return values
    found: list[object] = []
    for each in values:
        parts = [part.strip() for part in each.split(",")] if isinstance(each, str) else []
        named = [part for part in parts if part.partition(":")[0] in TRACKERS]
        found += parts if parts and named == parts else [each]
    return found


Trackers = Annotated[list[str], BeforeValidator(_trackers)]
Compile = Annotated[bool | Literal["auto"], BeforeValidator(_switch)]


def _race(value: object) -> object:
    """Parse the size of a race: a number of configurations, true, false or auto."""
    if value == "auto" or isinstance(value, bool):
        return value
    try:
        found = TypeAdapter(int | bool).validate_python(value)
    except ValidationError:
        raise ValueError(f"write a number, true, false or auto instead of {value!r:.40}") from None
    if not isinstance(found, bool) and found < 2 and found != 0:
        raise ValueError(f"at least 2 configurations race, not {found}; 0 is no race")
    return found


RaceSize = Annotated[bool | int | Literal["auto"], BeforeValidator(_race)]


SYNTHETIC = "synthetic"
_NOT_STORED = {"notify", "space", "storage", "track", "warm_start"}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse `trials: true`, which pydantic reads as 1."""
        if isinstance(value, bool) and info.field_name is not None:
            annotation = cls.model_fields[info.field_name].annotation
            kinds = {annotation, *get_args(annotation)}
            if kinds & {int, float} and bool not in kinds:
                raise ValueError(f"write a number instead of {str(value).lower()}")
        return value


class ColumnSettings(_Part):
    """Columns of a table by role."""

    text: str = Field(description="the text that the encoder reads, or its tokens")
    question: str | None = Field(None, description="the question about the text")
    label: str | None = Field(
        None,
        description="the class, number, labels, tags or entities; empty for rows to predict",
    )
    answer: str | None = Field(None, description="the span of the text to extract")
    answer_start: str | None = Field(None, description="its first character, counted from 0")
    id: str | None = Field(None, description="identifier of a row")
    group: str | None = Field(None, description="rows with the same value stay in one split")
    split: str | None = Field(None, description="train, validation or test")
    labels: Words | None = Field(
        None, description="multilabel: columns of 0 and 1, whose names are the labels"
    )
    label_separator: str | None = Field(
        None,
        min_length=1,
        description="multilabel: text between the labels of a cell; detected by default",
    )


class DataSettings(_Part):
    path: str | None = Field(
        None,
        description="a CSV, JSONL, CoNLL or Parquet file; a folder of text files by class, of a "
        "saved dataset, or of ReDSM5; hub:NAME for a dataset of the Hugging Face Hub; or "
        "'synthetic'",
    )
    columns: ColumnSettings | None = Field(
        None, description="columns of the data, by role; guessed by default"
    )
    labels: Words | None = Field(None, description="the classes or labels, in their order")
    encoding: str | None = Field(
        None, description="encoding of the file, such as cp1252; detected by default"
    )
    on_bad: Literal["stop", "skip"] = Field(
        "stop", description="bad rows stop the search, or are skipped"
    )
    validation: float = Field(
        0.15, gt=0, lt=1, description="share of the data in the validation split"
    )
    test: float = Field(
        0.15, ge=0, lt=1, description="share in the test split, which only a refit uses"
    )
    split_seed: int = Field(0, description="random seed of the split")
    posts: int = Field(800, ge=20, description="synthetic data: number of posts")
    difficulty: float = Field(0.2, ge=0, le=1, description="synthetic data: difficulty")
    max_words: int | None = Field(24, ge=5, description="synthetic data: longest post, in words")
    seed: int = Field(2, ge=0, description="synthetic data: random seed")


class Settings(_Part):
    agent: AgentName = Field(description=TASKS)
    name: str | None = Field(None, min_length=1, description="name of the study; else the agent's")
    data: DataSettings = Field(DataSettings(), description="training data")
    preset: str = Field(
        "demo",
        description="demo (a tiny encoder), standard (pretrained encoders), modern (long texts), "
        "max or supermax",
    )
    trials: int = Field(ge=1, description="total number of finished trials of the study")
    models: Encoders | None = Field(None, description="encoders instead of the preset's")
    space: str | dict[str, object] | None = Field(
        None, description="a space file, or a space, instead of the preset's"
    )
    narrow: dict[str, object] = Field({}, description="parameters of the space with fewer values")
    epochs: int = Field(ge=1, description="most epochs of a trial")
    patience: int | None = Field(
        None, ge=1, description="early stopping: epochs without improvement"
    )
    min_delta: float = Field(
        0.0, ge=0, description="early stopping: least improvement that counts"
    )
    objectives: Metrics = Field([], description="metrics; the first decides, others are weighed")
    sampler: Sampler = Field("tpe", description=", ".join(get_args(Sampler)))
    pruner: Pruner = Field("median", description=", ".join(get_args(Pruner)))
    seed: int | None = Field(None, ge=0, description="random seed of the sampler")
    warm_start: Texts = Field(
        [],
        description="earlier studies of the agent, whose best configurations begin the search: "
        "STUDY, STORAGE#STUDY or STORAGE",
    )
    workers: Workers = Field(1, description="parallel trials, or auto: by the GPUs and cores")
    gpus: Words = Field(
        [], description="GPUs to distribute trials over: all, or numbers or UUIDs as CUDA has them"
    )
    gpu_memory: Bytes | None = Field(
        None, description="memory budget of a GPU, to emulate a smaller one: 24GiB"
    )
    executor: Executor = Field("local", description="local: on this machine; ray: on a cluster")
    address: str | None = Field(
        None, description="address of the Ray cluster; else RAY_ADDRESS, or that of this machine"
    )
    mps: bool = Field(False, description="share a GPU through CUDA's multi-process service")
    compile: Compile = Field(
        "auto", description="compile layers on a GPU (true, false); auto: where it saves time"
    )
    timeout: Seconds | None = Field(None, description="wall time after which the run pauses: 8h")
    stop: Stop = Field(
        "never",
        description="when_no_gain: the search ends by itself once further trials are expected to "
        "improve the best value by less than its noise",
    )
    trial_timeout: Seconds | None = Field(
        None, description="longest time of one attempt of a trial"
    )
    stall_timeout: Seconds | None = Field(
        None, description="longest time without a message of a trial, once it has reported"
    )
    retries: int = Field(
        2, ge=0, description="retries of a trial after a crash, a stall or out of memory"
    )
    lease: Seconds = Field(
        LEASE,
        description="time after which other machines take over the trials of a silent run",
    )
    run_dir: str | None = Field(None, description="folder of the run's files; else the study's")
    checkpoints: str | None = Field(
        None, description="folder or URL of checkpoints that several machines share"
    )
    outdir: str = Field(".", description="folder for storage and cache, unless these are set")
    storage: str | None = Field(
        None,
        description=f"a file (.journal or .log: a journal) or an Optuna URL; else {STORAGE}",
    )
    cache: str | None = Field(None, description=f"cache of tokenized data; else {CACHE}")
    top: int = Field(5, ge=1, description="number of best trials whose weights are kept")
    race: RaceSize = Field(
        "auto",
        union_mode="left_to_right",
        description="best configurations to train again with fresh seeds: a number, true, false; "
        "auto: with folds, or for 10 trials or more, except with the preset demo",
    )
    folds: int | None = Field(
        None,
        ge=2,
        le=20,
        description="folds of a cross-validation over which they race, instead of fresh seeds",
    )
    keep: Bytes | None = Field(None, description="disk space that kept weights may take")
    track: Trackers = Field(
        [],
        description="trackers: mlflow, tensorboard, wandb; with an address: mlflow:URI, "
        "tensorboard:FOLDER, wandb:PROJECT",
    )
    notify: Texts = Field(
        [],
        description="commands or webhooks (URLs) that are called when the search ends, halts or "
        "finds a better value",
    )

    @field_validator("gpus", mode="before")
    @classmethod
    def _as_unique_strings(cls, value: object) -> object:
        found = _list(value)
        if not isinstance(found, list):
            return found
        parts = list(dict.fromkeys(str(part) for part in found))
        if ALL_GPUS in parts and len(parts) > 1:
            raise ValueError(f"write {ALL_GPUS} alone, or name the GPUs")
        return parts

    @field_validator("address", "cache", "checkpoints", "outdir", "run_dir", "storage")
    @classmethod
    def _not_blank(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():  # as of a variable that is not set
            raise ValueError("it is empty: leave it out for the default")
        return value

    @field_validator("notify", "track")
    @classmethod
    def _not_empty(cls, values: list[str]) -> list[str]:
        if not all(value.strip() for value in values):
            raise ValueError("an empty value: leave it out")
        return values

    @field_validator("warm_start")
    @classmethod
    def _named(cls, values: list[str]) -> list[str]:
        if not all(value.strip() for value in values):
            raise ValueError("a study without a name: leave it out")
        return values

    @field_validator("checkpoints")
    @classmethod
    def _no_mistyped_url(cls, value: str | None) -> str | None:
        if value is not None and (why := mistyped_url(value)) is not None:
            raise ValueError(why)
        return value

    @field_validator("data", mode="before")
    @classmethod
    def _path_alone(cls, value: object) -> object:
        return {"path": value} if isinstance(value, str) else value

    @property
    def study(self) -> str:
        return self.name or self.agent

    @property
    def storage_address(self) -> str:
        return self.storage or str(Path(self.outdir).expanduser() / STORAGE)

    @property
    def cache_folder(self) -> Path:
        return Path(self.cache or Path(self.outdir) / CACHE).expanduser()

    @property
    def stored_data(self) -> Path:
        """Folder of data that a program gives in memory."""
        return (Path(self.outdir).expanduser() / STORED_DATA).absolute()

    @property
    def limits(self) -> dict[str, float | None]:
        """Limits of a trial's training that are not searched."""
        return {"epochs": self.epochs, "patience": self.patience, "min_delta": self.min_delta}

    def to_store(self) -> dict[str, object]:
        """Return the settings as JSON for the study: without secrets, with absolute paths."""
        stored = self.model_dump(mode="json", exclude=_NOT_STORED)
        if self.data.path is not None and not is_name_of_data(self.data.path):
            stored["data"]["path"] = str(Path(self.data.path).expanduser().absolute())
        stored["cache"] = str(self.cache_folder.absolute())
        return stored


def is_name_of_data(path: str) -> bool:
    """Return True if the data is named otherwise than by a path."""
    return path == SYNTHETIC or path.startswith(HUB)


def keys(kind: type[BaseModel] = Settings, before: str = "") -> dict[str, str]:
    """Return the description of every key; keys of nested parts are joined by dots."""
    found: dict[str, str] = {}
    for name, field in kind.model_fields.items():
        parts = [
            part
            for part in (field.annotation, *getattr(field.annotation, "__args__", ()))
            if isinstance(part, type) and issubclass(part, _Part)
        ]
        if not parts:
            found[before + name] = field.description or ""
        for part in parts:
            found |= keys(part, f"{before}{name}.")
    return found
