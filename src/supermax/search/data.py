"""Data of a search: read from its settings, split, and columns guessed where not given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from supermax.agents import agent_of
from supermax.agents.agent import CLASSES, ENTITIES, LABEL_SETS, NUMBERS, SPANS, Agent
from supermax.errors import UserError
from supermax.search.settings import DataSettings, Resolved, Settings
from supermax.search.settings.model import ColumnSettings
from supermax.search.settings.resolving import GUESSES
from supermax.training.data.bad_rows import BadRows
from supermax.training.data.columns import Columns
from supermax.training.data.entities.tables import open_entities
from supermax.training.data.examples import Corpus
from supermax.training.data.guessing import guess_file
from supermax.training.data.inputs.reading import is_in_memory, read_rows
from supermax.training.data.inputs.stored import StoredTable, stored
from supermax.training.data.read_options import ReadOptions
from supermax.training.data.redsm5 import is_redsm5, read_redsm5
from supermax.training.data.splits import Splits, split, splits_of, with_validation
from supermax.training.data.synthetic import (
    synthetic,
    synthetic_entities,
    synthetic_ratings,
    synthetic_requests,
)
from supermax.training.data.tables import open_table

_GENERATORS = {
    CLASSES: synthetic,
    SPANS: synthetic,
    NUMBERS: synthetic_ratings,
    LABEL_SETS: synthetic_requests,
    ENTITIES: synthetic_entities,
}
"""Generator of synthetic data, by the first target of an agent."""


def data_of(settings: Settings) -> Splits:
    """Read the data and split it. Raises UserError where there is none, or it cannot be read."""
    data, seed, agent = settings.data, settings.data.split_seed, agent_of(settings.agent)
    if data.path is None and settings.preset not in ("demo", "standard", "modern"):
        raise UserError(
            f"No data is named for the agent '{settings.agent}'. Name a file or a folder (CSV, "
            f"JSONL, Parquet, texts by class, ReDSM5) with --data or in the settings, or try "
            f"--data synthetic."
        )
    if data.path is None or data.path == "synthetic":
        generate = _GENERATORS[agent.targets[0]]
        corpus = generate(
            data.posts, difficulty=data.difficulty, seed=data.seed, max_words=data.max_words
        )
    elif is_redsm5(Path(data.path).expanduser()):
        if not agent.redsm5:
            raise UserError(
                f"ReDSM5 holds nothing that the agent '{agent.name}' learns from. Name other "
                f"data, or another agent."
            )
        corpus = read_redsm5(data.path, on_bad=data.on_bad, located=agent.spans)
    else:
        columns = columns_of(data.columns or guessed_columns(data, agent.name)[0], agent)
        opened = open_entities if agent.entities else partial(open_table, numeric=agent.numbers)
        options = ReadOptions(None, data.labels, data.on_bad, data.encoding, own_splits=True)
        table = opened(data.path, columns, options)
        if table.part_of:
            return with_validation(splits_of(table), data.validation, seed)
        corpus = table.corpus
    return split(corpus, validation=data.validation, test=data.test, seed=seed)


def columns_of(settings: ColumnSettings, agent: Agent) -> Columns:
    """Return the mapping of columns for an agent."""
    given = settings.model_dump()
    labels = None if settings.labels is None else tuple(settings.labels)
    return Columns(**{**given, "labels": labels, "several": agent.label_sets})


def taken_from_memory(given: dict[str, Any]) -> StoredTable | None:
    """Take a data frame or a dataset out of settings, where `data` or `data.path` names it, and
    put the name of its file in its place. Return its rows; None: the data is not in memory.

    Raises UserError for data of another type, and where it cannot be read.
    """
    source, whole = _source_of(given)
    if source is None or isinstance(source, str):
        return None
    if isinstance(source, Path):
        path, table = str(source), None
    else:
        bad = BadRows()
        rows = read_rows(source, bad)
        bad.settle("stop", len(rows.rows), rows.file)
        table = stored(rows)
        path = table.name
    if "data.path" in given:
        given["data.path"] = path
    else:
        given["data"] = path if whole is None else {**whole, "path": path}
    return table


def _source_of(given: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any] | None]:
    """Return the data that settings name, and the mapping that names it; None: it stands alone."""
    data = given.get("data")
    whole = data if isinstance(data, Mapping) and not is_in_memory(data) else None
    return (given.get("data.path", data) if whole is None else whole.get("path")), whole


def guessed_agent(given: Mapping[str, Any]) -> str | None:
    """Return the agent that fits the data of settings, as `supermax init` guesses it; None: they
    name no table, or its columns, whose agent is for the user to say.

    Raises UserError where the data cannot be read.
    """
    source, whole = _source_of(given)
    keys = {*given, *(f"data.{key}" for key in whole or ())}
    if source is None or any(key.startswith("data.columns") for key in keys):
        return None
    named = isinstance(source, str | Path)
    if named and not _is_table(DataSettings(path=str(source))):
        return None
    encoding = (whole or {}).get("encoding", given.get("data.encoding"))
    return guess_file(source, encoding).agent


def with_stored(resolved: Resolved, table: StoredTable) -> Resolved:
    """Return the settings with the path at which the table will be written."""
    settings = resolved.settings
    path = str(settings.stored_data / table.name)
    data = settings.data.model_copy(update={"path": path})
    return replace(resolved, settings=settings.model_copy(update={"data": data}))


def with_columns(resolved: Resolved) -> Resolved:
    """Return the settings, with the columns of a table guessed where they are not given."""
    data = resolved.settings.data
    if data.columns is not None or not _is_table(data):
        return resolved
    columns, reasons = guessed_columns(data, resolved.settings.agent)
    filled = {"data": data.model_copy(update={"columns": columns})}
    sources = {f"data.columns.{role}": f"guessed, {reason}" for role, reason in reasons.items()}
    return Resolved(
        resolved.settings.model_copy(update=filled),
        resolved.sources | sources,
        resolved.layers | dict.fromkeys(sources, GUESSES),
    )


def guessed_columns(data: DataSettings, agent: str) -> tuple[ColumnSettings, dict[str, str]]:
    """Return the columns as `supermax init` guesses them, and the reason of each by its role."""
    guessed = guess_file(str(data.path), data.encoding, agent)
    if guessed.unfit and not {"label", "labels", "answer"} & set(guessed.mapped):
        column, reason = guessed.unfit[0]
        raise UserError(f"{data.path}: the column '{column}' {reason}.")
    columns = ColumnSettings.model_validate(guessed.mapped)
    return columns, {role: guessed.reasons[role] for role in guessed.mapped}


def _is_table(data: DataSettings) -> bool:
    """Return True if the data has columns: it is neither synthetic nor a folder of ReDSM5."""
    if data.path is None or data.path == "synthetic":
        return False
    return not is_redsm5(Path(data.path).expanduser())


def join_splits(splits: Splits) -> Corpus:
    """Return the examples of all splits as one corpus."""
    return splits.train.with_more(splits.validation).with_more(splits.test)
