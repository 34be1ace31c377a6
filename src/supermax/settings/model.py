"""Everything that a search can be told, as one YAML file has it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
)

from supermax.naming import CACHE, STORAGE, Agent
from supermax.settings import units

Sampler = Literal["tpe", "random", "gp", "cmaes", "qmc", "nsgaii"]
Pruner = Literal["median", "hyperband", "halving", "none"]
Seconds = Annotated[float, BeforeValidator(units.seconds)]
Bytes = Annotated[int, BeforeValidator(units.size)]
Workers = Annotated[int | Literal["auto"], BeforeValidator(units.workers)]


def _list(value: Any) -> Any:
    """One thing, or several with commas, where a list is meant."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return [value] if isinstance(value, int) and not isinstance(value, bool) else value


Words = Annotated[list[str], BeforeValidator(_list)]


def _switch(value: Any) -> Any:
    """true, false or auto, as YAML, flags and the environment say it."""
    try:
        return value if value == "auto" else TypeAdapter(bool).validate_python(value)
    except ValidationError:
        raise ValueError(f"write true, false or auto instead of {value!r:.60}") from None


Compile = Annotated[bool | Literal["auto"], BeforeValidator(_switch)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ColumnSettings(_Part):
    """Which column of a table holds what."""

    text: str = Field(description="what is read")
    question: str | None = Field(None, description="what is asked of the text")
    label: str | None = Field(None, description="the class; empty for rows to predict")
    answer: str | None = Field(None, description="the part of the text that is sought")
    answer_start: str | None = Field(None, description="its first character, counted from 0")
    id: str | None = Field(None, description="names a row")
    group: str | None = Field(None, description="rows that must not be torn apart by a split")
    split: str | None = Field(None, description="train, validation or test")


class DataSettings(_Part):
    path: str | None = Field(
        None, description="a CSV or JSONL file, a folder of ReDSM5, or 'synthetic'"
    )
    columns: ColumnSettings | None = Field(None, description="for a CSV or JSONL file")
    labels: Words | None = Field(None, description="the classes, in their order")
    encoding: str | None = Field(
        None, description="encoding of the file, such as cp1252; detected by default"
    )
    on_bad: Literal["stop", "skip"] = Field("stop", description="what bad rows do")
    validation: float = Field(0.15, gt=0, lt=1, description="share of the data to judge trials by")
    test: float = Field(0.15, ge=0, lt=1, description="share that only a refit looks at")
    split_seed: int = Field(0, description="deals the rows anew")
    posts: int = Field(800, ge=20, description="of synthetic data: how many posts")
    difficulty: float = Field(0.2, ge=0, le=1, description="of synthetic data")
    max_words: int | None = Field(24, ge=5, description="of a synthetic post")
    seed: int = Field(2, ge=0, description="of synthetic data")


class Settings(_Part):
    agent: Agent = Field(description="criteria, evidence, share or joint")
    name: str | None = Field(None, min_length=1, description="of the study; else the agent's")
    data: DataSettings = Field(DataSettings(), description="what is learnt from")
    preset: str = Field(
        "demo",
        description="demo (a tiny encoder), standard (pretrained encoders), max or supermax",
    )
    trials: int = Field(ge=1, description="finished trials the study shall hold in all")
    models: Words | None = Field(None, description="encoders instead of the preset's")
    space: str | dict[str, Any] | None = Field(
        None, description="a space file, or a space, instead of the preset's"
    )
    narrow: dict[str, Any] = Field({}, description="parameters of the space with fewer values")
    epochs: int = Field(ge=1, description="of a trial, at most")
    patience: int | None = Field(None, ge=1, description="epochs without a better value")
    min_delta: float = Field(0.0, ge=0, description="by how much a value must be better")
    objectives: Words = Field([], description="metrics; the first decides, others are weighed")
    sampler: Sampler = Field("tpe", description=", ".join(get_args(Sampler)))
    pruner: Pruner = Field("median", description=", ".join(get_args(Pruner)))
    seed: int | None = Field(None, ge=0, description="of the sampler")
    workers: Workers = Field(1, description="trials at a time, or auto: as many as pay")
    gpus: Words = Field([], description="to spread trials over, as CUDA numbers them")
    gpu_memory: Bytes | None = Field(
        None, description="budget of a device, to emulate a smaller one: 24GiB"
    )
    mps: bool = Field(False, description="share a GPU through CUDA's multi-process service")
    compile: Compile = Field(
        "auto", description="compile layers on a GPU (true, false); auto: where that pays"
    )
    timeout: Seconds | None = Field(None, description="when the run pauses: 8h")
    trial_timeout: Seconds | None = Field(None, description="for one attempt at a trial")
    stall_timeout: Seconds | None = Field(None, description="for a trial that says nothing")
    retries: int = Field(2, ge=0, description="after a fault of the machine")
    outdir: str = Field(".", description="where storage and cache are by default")
    storage: str | None = Field(
        None,
        description=f"a file (.journal or .log: a journal) or an Optuna URL; else {STORAGE}",
    )
    cache: str | None = Field(None, description=f"of tokens; else {CACHE}")
    top: int = Field(5, ge=1, description="trials whose weights are kept")
    keep: Bytes | None = Field(None, description="that kept weights may take")
    track: str | None = Field(
        None, description="to MLflow: a URI, a file, or 'mlflow' for mlflow.db beside the study"
    )

    @field_validator("gpus", mode="before")
    @classmethod
    def _numbers_too(cls, value: Any) -> Any:
        found = _list(value)
        if not isinstance(found, list):
            return found
        return list(dict.fromkeys(str(part) for part in found))  # each once

    @field_validator("data", mode="before")
    @classmethod
    def _path_alone(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @property
    def study(self) -> str:
        return self.name or self.agent


def keys(kind: type[BaseModel] = Settings, before: str = "") -> dict[str, str]:
    """Every key, with those of the parts behind a dot, and what it means."""
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
