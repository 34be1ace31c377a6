"""Model card of an exported model in the format of the Hugging Face Hub.

facts, description ──▶ metadata in YAML, then purpose, metrics, usage, configuration
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from supermax._util.attributes import public_name
from supermax._util.text import metric_title
from supermax.agents import agent_of
from supermax.training.deploy.exported import ONNX, Description, Facts, names_of_own_code

_METRICS = {
    "macro_f1": "f1",
    "auroc": "roc_auc",
    "mcc": "matthews_correlation",
    "micro_f1": "f1",
    "token_f1": "f1",
    "entity_f1": "f1",
    "entity_precision": "precision",
    "entity_recall": "recall",
    "spearman": "spearmanr",
    "pearson": "pearsonr",
}
"""Types of metrics on the Hub, where their names differ from those of Supermax."""
_OWN_DATA = "own-data"
_AFTER_LOADING = "## Configuration"
"""Section that follows the programs."""


def card(
    facts: Facts, description: Description, folders: Sequence[str], base_models: Sequence[str]
) -> str:
    """Return the model card. `folders` are those of the encoders, `base_models` their names on the
    Hub."""
    own_code = bool(names_of_own_code(facts))
    config = _with_titles(facts["config"])
    facts = {**facts, "config": config}
    sections = [
        f"---\n{_metadata(facts, description, base_models).to_yaml()}\n---",
        f"# {config['agent']} on {config['encoder']['name']}",
        f"A model that {agent_of(config['agent']).purpose}, trained with Supermax.",
        *_warnings(facts),
        "## Metrics",
        _metrics(description),
        *(f"**Note:** {caution}" for caution in description.cautions),
        "## How to load it",
        _loading(facts, folders, own_code),
        _AFTER_LOADING,
        "\n".join(_table(["Setting", "Value"], _settings(config))),
        "## Data and versions",
        "\n".join(_table(["What", "Value"], _origin(facts))),
    ]
    return "\n\n".join(sections) + "\n"


def _with_titles(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with the encoders' names for display."""
    named = dict(config)
    for part in ("encoder", "evidence_encoder"):
        if encoder := config.get(part):
            named[part] = {**encoder, "name": public_name(encoder["name"])}
    return named


def _metadata(facts: Facts, description: Description, base_models: Sequence[str]) -> ModelCardData:
    agent = agent_of(facts["config"]["agent"])
    task = agent.targets[0].task
    values = {n: v for n, v in description.metrics.items() if math.isfinite(v)}
    results = [
        EvalResult(
            task_type=task,
            dataset_type=_OWN_DATA,
            dataset_name=f"own data, fingerprint {facts['fingerprint']}",
            dataset_split="test" if description.estimates else None,
            metric_type="f1" if name.startswith("f1_") else _METRICS.get(name, name),
            metric_name=metric_title(name, description.label_names),
            metric_value=round(value, 6),
        )
        for name, value in values.items()
    ]
    one = agent.encoders == 1
    return ModelCardData(
        library_name="peft" if "base" in facts else "transformers",
        pipeline_tag=task if one else None,
        tags=["supermax", agent.usual_name],
        base_model=list(base_models) or None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        model_name=f"{agent.usual_name} on {facts['config']['encoder']['name']}",
        eval_results=results or None,
    )


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


def _loading(facts: Facts, folders: Sequence[str], own_code: bool) -> str:
    names = facts["columns"]
    roles = ["text", *(["question"] if facts["asks"] else []), *(["id"] if "id" in names else [])]
    columns = ", ".join(f"{role}={json.dumps(names.get(role, role))}" for role in roles)
    more = ", trust_remote_code=True" if own_code else ""
    return "\n".join(
        [
            *([_OWN_CODE] if own_code else []),
            "With Supermax, the whole model on a CSV or JSONL file:\n",
            "```python",
            "from supermax.training.data.columns import Columns",
            "from supermax.training.deploy.predict import predict_file",
            "",
            f"columns = Columns({columns})",
            f'predict_file("path/to/this/folder", "texts.csv", columns, "predictions.csv"{more})',
            "```\n",
            *_windows(facts),
            *(_base_and_adapter(more) if "base" in facts else ()),
            *(() if "base" in facts or own_code else _whole_model(facts)),
            *_encoders(facts, folders, more),
        ]
    )


_OWN_CODE = (
    "An encoder of this model comes with Python code of its own. Read it before you allow it to "
    "run with `trust_remote_code=True`.\n"
)


def _base_and_adapter(more: str) -> Iterator[str]:
    """Yield lines on an adapter with its heads. `more` are arguments of functions that load."""
    yield "With Supermax and peft, the whole model, to train it on:\n"
    yield "```python"
    yield "from peft import PeftModel"
    yield "from supermax.training.deploy.adapter import base_model\n"
    yield f'base = base_model("path/to/this/folder"{more})'
    yield 'model = PeftModel.from_pretrained(base, "path/to/this/folder")'
    yield "```\n"


def _encoders(facts: Facts, folders: Sequence[str], more: str) -> Iterator[str]:
    """Yield lines on the encoders alone. `more` are arguments of functions that load."""
    adapter = "base" in facts
    if adapter:
        yield "With peft, the encoder with its adapter:\n"
    else:
        yield "With transformers, the trained encoder without the heads:\n"
    yield "```python"
    if adapter:
        yield "from peft import PeftConfig, PeftModel"
    yield "from transformers import AutoModel, AutoTokenizer\n"
    for folder in folders:
        path = f'"path/to/this/folder/{folder}"'
        if adapter:  # AutoPeftModel fails where an encoder does not tell peft its embeddings
            yield f"base = PeftConfig.from_pretrained({path}).base_model_name_or_path"
            yield f"{folder} = AutoModel.from_pretrained(base{more})"
            yield f"{folder} = PeftModel.from_pretrained({folder}, {path})"
        else:
            yield f"{folder} = AutoModel.from_pretrained({path}{more})"
        tokenizer = folder.replace("encoder", "tokenizer")
        yield f"{tokenizer} = AutoTokenizer.from_pretrained({path}{more})"
    yield "```"


def _whole_model(facts: Facts) -> Iterator[str]:
    """Yield lines on the whole model in transformers, which cannot load encoders with own code."""
    agent, code = agent_of(facts["config"]["agent"]), facts.get("encoder_prefix") is None
    more = ", trust_remote_code=True" if code else ""
    task = agent.targets[0].task
    yield f"With transformers alone, the whole model{_HINTS.get(agent.targets[0].kind, '')}:\n"
    if code:
        yield "Read `modeling_supermax.py` before you allow it to run.\n"
    yield "```python"
    if agent.encoders > 1 or task == "question-answering":  # there is no pipeline
        name = "AutoModel" if agent.encoders > 1 else "AutoModelForQuestionAnswering"
        yield f"from transformers import {name}\n"
        yield f'model = {name}.from_pretrained("path/to/this/folder"{more})'
    elif task == "token-classification":
        more += ', aggregation_strategy="first"'
        yield "from transformers import pipeline\n"
        yield f'model = pipeline("{task}", model="path/to/this/folder"{more})'
        yield 'print(model("Words with spaces in between ."))'
    else:
        more += ", top_k=None" if agent.label_sets else ""
        given = '{"text": "A question?", "text_pair": "A text."}' if facts["asks"] else '"A text."'
        truncation = '"only_second"' if facts["asks"] else "True"
        yield "from transformers import pipeline\n"
        yield f'model = pipeline("{task}", model="path/to/this/folder"{more})'
        yield f"print(model({given}, truncation={truncation}))"
    yield "```\n"
    columns = facts["columns"]
    if facts["asks"] and {"question", "text"} <= columns.keys():
        yield (
            f"Trained on pairs of the columns `{columns['question']}` (the first text) and "
            f"`{columns['text']}`.\n"
        )


def with_onnx(card: str, facts: Facts, folders: Sequence[str], max_length: int) -> str:
    """Return a card with a program that runs the ONNX file; the card itself if it names the file.

    `folders` are those of the encoders; `max_length` is the model's maximum number of tokens.
    """
    if ONNX in card:
        return card
    lines = "\n".join(_onnx(facts, folders, max_length))
    begin, next_section, rest = card.partition(_AFTER_LOADING)
    return f"{begin.rstrip()}\n\n{lines}\n\n{next_section}{rest}".rstrip() + "\n"


def _onnx(facts: Facts, folders: Sequence[str], max_length: int) -> Iterator[str]:
    text = '["A question?"], ["A text."]' if facts["asks"] else '["A text."]'
    truncation = '"only_second"' if facts["asks"] else "True"
    how = f'truncation={truncation}, max_length={max_length}, return_tensors="np"'
    more = ", trust_remote_code=True" if names_of_own_code(facts) else ""
    yield "With ONNX Runtime, the whole model:\n"
    yield "```python"
    yield "from onnxruntime import InferenceSession"
    yield "from transformers import AutoTokenizer\n"
    yield "inputs = {}"
    for folder in folders:
        prefix = folder.removesuffix("encoder")
        path = f'"path/to/this/folder/{folder}"'
        yield f"tokenizer = AutoTokenizer.from_pretrained({path}{more})"
        yield f"batch = tokenizer({text}, {how})"
        name = f'f"{prefix}{{name}}"' if prefix else "name"
        yield f"inputs |= {{{name}: values for name, values in batch.items()}}"
    yield f'session = InferenceSession("path/to/this/folder/{ONNX}")'
    yield "names = [each.name for each in session.get_inputs()]"
    yield "outputs = session.run(None, {name: inputs[name] for name in names})"
    yield "print(outputs)"
    yield "```"


_HINTS = {
    "label_sets": (
        ". Its scores are probabilities; compare each with the threshold of its label "
        "(`labels.threshold` below, one for all or in their order)"
    ),
    "entities": ", on words that are separated by spaces",
}
"""Remarks on a pipeline's input or output, by kind of target."""


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
