"""Model card of an exported model: purpose, metrics, usage, configuration."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from supermax._util.text import metric_title
from supermax.agents import agent_of
from supermax.training.deploy.exported import Description, Facts


def card(
    facts: Facts, description: Description, folders: Sequence[str], *, classifier: bool = False
) -> str:
    """Return the model card in Markdown. `folders` are those of the encoders; `classifier`:
    transformers can load the whole model from the first one."""
    config = facts["config"]
    sections = [
        f"# {config['agent']} on {config['encoder']['name']}",
        f"A model that {agent_of(config['agent']).purpose}, trained with Supermax.",
        *_warnings(facts),
        "## Metrics",
        _metrics(description),
        *(f"**Note:** {caution}" for caution in description.cautions),
        "## How to load it",
        _loading(facts, folders, _pipeline(facts, folders[0]) if classifier else []),
        "## Configuration",
        "\n".join(_table(["Setting", "Value"], _settings(config))),
        "## Data and versions",
        "\n".join(_table(["What", "Value"], _origin(facts))),
    ]
    return "\n\n".join(sections) + "\n"


def _warnings(facts: Facts) -> Iterator[str]:
    if facts["clinical"]:
        yield (
            "**A research tool.** It makes no diagnosis and is no help in making one. Its "
            "predictions can be wrong, and say nothing about the health of the author of a text."
        )
    if facts["untrained"]:
        yield (
            "**The encoder was not pretrained.** It was made from its configuration with random "
            "weights, so results say little about what its architecture can do. Its tokenizer "
            "was trained on the training texts: the vocabulary holds single words of them."
        )


def _metrics(description: Description) -> str:
    metrics, estimates = description.metrics, description.estimates
    labels = description.label_names
    if not metrics:
        return "None were given."
    if not estimates:
        values = [(metric_title(n, labels), _number(v)) for n, v in metrics.items()]
        return "\n".join(_table(["Metric", "Value"], values))
    seeds = len(next(iter(estimates.values())).values)
    head = ["Metric", "This model", f"Mean of {seeds} {'seed' if seeds == 1 else 'seeds'}", "95 %"]
    rows = [
        (metric_title(name, labels), _number(value), _number(e.mean), e.interval)
        for name, value in metrics.items()
        if (e := estimates.get(name)) is not None
    ]
    note = (
        "On the test split, which was used neither for training nor to choose a setting. This "
        "model is the median of its seeds there. Intervals are from a bootstrap over groups of "
        "examples and over seeds."
    )
    return "\n".join([*_table(head, rows), "", note])


def _windows(facts: Facts) -> list[str]:
    """Return the sentence that a card needs if the model pools windows of long texts."""
    text = facts["config"].get("text", {})
    if text.get("long_texts") != "windows":
        return []
    return [
        f"Supermax splits a text of more than {text['max_length']} tokens into windows that share "
        f"{text['doc_stride']} tokens, and predicts from the {text['window_pooling']} of their "
        f"outputs. transformers does not: split long texts there too, and pool the outputs.\n"
    ]


def _loading(facts: Facts, folders: Sequence[str], pipeline: Sequence[str]) -> str:
    names = facts["columns"]
    roles = ["text", *(["question"] if facts["asks"] else []), *(["id"] if "id" in names else [])]
    columns = ", ".join(f"{role}={json.dumps(names.get(role, role))}" for role in roles)
    encoders = [
        f'encoder = AutoModel.from_pretrained("path/to/this/folder/{name}")\n'
        f'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder/{name}")'
        for name in folders
    ]
    load, what = "AutoModel", "the trained encoder without the heads"
    if "base" in facts:
        load, what = "AutoPeftModelForFeatureExtraction", "the encoder with its adapter"
        encoders = [text.replace("AutoModel.", f"{load}.") for text in encoders]
    return "\n".join(
        [
            "With Supermax, the whole model on a CSV or JSONL file:\n",
            "```python",
            "from supermax.training.data.columns import Columns",
            "from supermax.training.deploy.predict import predict_file",
            "",
            f"columns = Columns({columns})",
            'predict_file("path/to/this/folder", "texts.csv", columns, "predictions.csv")',
            "```\n",
            *_windows(facts),
            *pipeline,
            *(_PEFT if "base" in facts else ()),
            f"With {'peft' if 'base' in facts else 'transformers'}, {what}:\n",
            "```python",
            *(
                [f"from peft import {load}", "from transformers import AutoTokenizer"]
                if "base" in facts
                else [f"from transformers import {load}, AutoTokenizer"]
            ),
            "",
            *encoders,
            "```",
        ]
    )


_PEFT = [
    "With Supermax and peft, the whole model, to train it on:\n",
    "```python",
    "from peft import PeftModel",
    "from supermax.training.deploy.adapter import base_model",
    "",
    'base = base_model("path/to/this/folder")',
    'model = PeftModel.from_pretrained(base, "path/to/this/folder")',
    "```\n",
]
"""How to load an adapter with its heads."""


def _pipeline(facts: Facts, folder: str) -> list[str]:
    """Return how a pipeline of transformers loads the whole model from a folder."""
    if agent_of(facts["config"]["agent"]).entities:
        what = "the whole model on words that are separated by spaces"
        calls = [
            'find = pipeline("token-classification", model, aggregation_strategy="first")',
            'print(find("Words with spaces in between ."))',
        ]
    else:
        what = (
            "the whole model. These are the probabilities; compare each with the threshold of its "
            "label (`labels.threshold` below, in their order)"
        )
        calls = [
            'classify = pipeline("text-classification", model, top_k=None)',
            'print(classify("A text.", truncation=True))',
        ]
    return [
        f"With transformers, {what}:\n",
        "```python",
        "from transformers import pipeline",
        "",
        f'model = "path/to/this/folder/{folder}"',
        *calls,
        "```\n",
    ]


def _settings(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", "none" if value is None else str(value)


def _origin(facts: Facts) -> Iterator[tuple[str, str]]:
    yield "data fingerprint", facts["fingerprint"]
    yield "labels", ", ".join(facts["label_names"]) or "none"
    if facts["epochs"] is not None:
        yield "epochs trained", str(facts["epochs"])
    yield "precision", facts["precision"]
    if facts["threshold"] is not None:
        yield "calibrated no-answer threshold", _number(facts["threshold"])
    yield from facts["versions"].items()


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", r"\|").split())


def _number(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "not defined"
