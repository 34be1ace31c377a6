"""Data of a search: read from its settings, split, and columns guessed where not given."""

from __future__ import annotations

from pathlib import Path

from supermax.agents import agent_of
from supermax.errors import UserError
from supermax.search.settings import DataSettings, Resolved, Settings
from supermax.search.settings.model import ColumnSettings
from supermax.search.settings.resolving import GUESSES
from supermax.training.data.columns import Columns
from supermax.training.data.examples import Corpus
from supermax.training.data.guessing import guess_file
from supermax.training.data.redsm5 import is_redsm5, not_redsm5, read_redsm5
from supermax.training.data.splits import Splits, read_splits, split, with_validation
from supermax.training.data.synthetic import synthetic
from supermax.training.data.synthetic_ratings import synthetic_ratings
from supermax.training.data.tables import read_table


def data_of(settings: Settings) -> Splits:
    """Read the data and split it. Raises UserError where there is none, or it cannot be read."""
    data, seed, agent = settings.data, settings.data.split_seed, agent_of(settings.agent)
    if data.path is None and settings.preset not in ("demo", "standard"):
        raise UserError(
            f"No data is named for the agent '{settings.agent}'. Name a CSV or JSONL file or a "
            f"folder of ReDSM5 with --data or in the settings, or try --data synthetic."
        )
    if data.path is None or data.path == "synthetic":
        generate = synthetic_ratings if agent.numbers else synthetic
        corpus = generate(
            data.posts, difficulty=data.difficulty, seed=data.seed, max_words=data.max_words
        )
    elif Path(data.path).expanduser().is_dir():
        folder = Path(data.path).expanduser()
        if not is_redsm5(folder):
            raise UserError(not_redsm5(folder))
        if not agent.redsm5:
            raise UserError(
                f"ReDSM5 holds nothing that the agent '{agent.name}' learns from. Name a CSV or "
                f"JSONL file, or another agent."
            )
        corpus = read_redsm5(folder, on_bad=data.on_bad, located=agent.spans)
    else:
        columns = Columns(**(data.columns or guessed_columns(data)[0]).model_dump())
        read = read_table if columns.split is None else read_splits
        found = read(
            data.path,
            columns,
            labels=data.labels,
            on_bad=data.on_bad,
            encoding=data.encoding,
            numeric=agent.numbers,
        )
        if isinstance(found, Splits):
            return with_validation(found, data.validation, seed)
        corpus = found
    return split(corpus, validation=data.validation, test=data.test, seed=seed)


def with_columns(resolved: Resolved) -> Resolved:
    """Return the settings, with the columns of a table guessed where they are not given."""
    data = resolved.settings.data
    if data.columns is not None or not _is_table(data):
        return resolved
    columns, reasons = guessed_columns(data)
    filled = {"data": data.model_copy(update={"columns": columns})}
    sources = {f"data.columns.{role}": f"guessed, {reason}" for role, reason in reasons.items()}
    return Resolved(
        resolved.settings.model_copy(update=filled),
        resolved.sources | sources,
        resolved.layers | dict.fromkeys(sources, GUESSES),
    )


def guessed_columns(data: DataSettings) -> tuple[ColumnSettings, dict[str, str]]:
    """Return the columns as `supermax init` guesses them, and the reason of each by its role."""
    guessed = guess_file(Path(str(data.path)).expanduser(), data.encoding)
    if guessed.unfit and guessed.role("label") is None and guessed.role("answer") is None:
        column, reason = guessed.unfit[0]
        raise UserError(f"{data.path}: the column '{column}' {reason}.")
    columns = ColumnSettings(**{guess.role: guess.column for guess in guessed.columns})
    return columns, {guess.role: guess.why for guess in guessed.columns}


def _is_table(data: DataSettings) -> bool:
    """Return True if the data is a CSV or JSONL file: neither synthetic nor a folder."""
    named = data.path is not None and data.path != "synthetic"
    return named and not Path(str(data.path)).expanduser().is_dir()


def join_splits(splits: Splits) -> Corpus:
    """Return the examples of all splits as one corpus."""
    return splits.train.with_more(splits.validation).with_more(splits.test)
