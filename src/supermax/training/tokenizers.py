"""Tokenizers: the encoder's own, or for an untrained encoder one that is learnt from the training
split and kept on disk."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from supermax.errors import UserError
from supermax.files import make_private
from supermax.training.sources import Source
from supermax.words import in_short

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tokenizer_for(source: Source, texts: Sequence[str], cache: Path) -> Any:
    """The fast tokenizer of an encoder. `texts` is what one is learnt from if it needs one."""
    if source.place is not None:
        from transformers import AutoTokenizer  # imported late: takes seconds, not always needed

        try:
            tokenizer = AutoTokenizer.from_pretrained(source.place, use_fast=True)
        except (OSError, ValueError, ImportError) as error:
            raise UserError(
                f"The tokenizer of '{source.name}' cannot be loaded: {in_short(error)}."
            ) from None
        if not tokenizer.is_fast:
            raise UserError(
                f"'{source.name}' has no fast tokenizer, which is needed to find spans in texts."
            )
        return tokenizer
    return _learnt(source, texts, cache)


def _learnt(source: Source, texts: Sequence[str], cache: Path) -> Any:
    digest = hashlib.sha256(str(source.config.vocab_size).encode())
    for text in texts:
        digest.update(hashlib.sha256(text.encode()).digest())
    path = cache / "tokenizers" / f"{digest.hexdigest()[:16]}.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception:  # not there, or damaged; the library raises nothing finer
        tokenizer = _train(texts, source.config.vocab_size)
        _keep(tokenizer, path)
    has_segments = (getattr(source.config, "type_vocab_size", 0) or 0) > 1
    segments = ["token_type_ids"] if has_segments else []
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", *segments, "attention_mask"],
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        bos_token="[CLS]",
        eos_token="[SEP]",
    )


def _train(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """The same texts give the same tokenizer. (Of the trainers of `tokenizers` only BPE without
    marks on continuing pieces does: the others break ties by the order of a hash table.)"""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Metaspace()]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=_SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    cls, sep = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", cls), ("[SEP]", sep)],
    )
    return tokenizer


def _keep(tokenizer: Tokenizer, path: Path) -> None:
    """Atomic: cells that learn it at the same time learn the same one."""
    make_private(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".json")
    os.close(handle)
    tokenizer.save(temporary)
    Path(temporary).replace(path)


def special_ids(tokenizer: Any) -> dict[str, int | None]:
    """What the configuration of an untrained encoder must agree on with its tokenizer."""
    return {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
        "cls_token_id": tokenizer.cls_token_id,
        "sep_token_id": tokenizer.sep_token_id,
    }
