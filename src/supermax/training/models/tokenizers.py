"""Tokenizers: the encoder's own, or for an untrained encoder one that is trained on the training
split and cached on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from supermax._util.files import make_private, write_whole
from supermax._util.text import in_short
from supermax.errors import UserError
from supermax.training.models.sources import Source

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tokenizer_for(source: Source, texts: Sequence[str], cache: Path) -> PreTrainedTokenizerFast:
    """Return the fast tokenizer of an encoder; for an untrained one, trained on `texts`. Raises
    UserError where there is none."""
    if source.place is not None:
        from transformers import AutoTokenizer  # imported late: takes seconds, not always needed

        try:
            tokenizer = AutoTokenizer.from_pretrained(
                source.place, use_fast=True, trust_remote_code=source.trusted
            )
        except (OSError, ValueError, ImportError) as error:
            raise UserError(
                f"The tokenizer of '{source.name}' cannot be loaded: {in_short(error)}."
            ) from None
        if not tokenizer.is_fast:
            raise UserError(
                f"'{source.name}' has no fast tokenizer, which is needed to find spans in texts."
            )
        if tokenizer.pad_token_id is None:  # decoders often have none; the mask hides padding
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer
    return _trained_on(source, texts, cache)


def _trained_on(source: Source, texts: Sequence[str], cache: Path) -> PreTrainedTokenizerFast:
    digest = hashlib.sha256(str(source.config.vocab_size).encode())
    for text in texts:
        digest.update(hashlib.sha256(text.encode()).digest())
    path = cache / "tokenizers" / f"{digest.hexdigest()[:16]}.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception:  # missing or damaged: the library raises nothing more specific
        tokenizer = _train(texts, source.config.vocab_size)
        # Atomically: processes that train it at the same time write the same one.
        make_private(path.parent)
        write_whole(path, tokenizer.to_str(pretty=True))
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
    """Train a tokenizer. The same texts give the same tokenizer: of the trainers of `tokenizers`
    only BPE without a prefix for continuing subwords is deterministic. The others break ties by
    the order of a hash table."""
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


def special_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int | None]:
    """Return the special ids of the tokenizer, for the configuration of an untrained encoder."""
    return {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
        "cls_token_id": tokenizer.cls_token_id,
        "sep_token_id": tokenizer.sep_token_id,
    }
