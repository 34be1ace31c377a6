"""Hypothesis strategies of encoders and trials, for tests of memory."""

from __future__ import annotations

from hypothesis import strategies as st

from supermax.memory.facts import EncoderSizes, Spec

MIB, GIB = 1 << 20, 1 << 30
BERT_LARGE = EncoderSizes(
    name="bert-large",
    family="bert",
    fingerprint="bert-large",
    hidden=1024,
    inner=4096,
    heads=16,
    embeddings=31_782_912,
    by_layer=(12_596_224,) * 24,
    after=0,
    matrices=12_582_912,
    largest=31_254_528,
)
families = st.sampled_from(["bert", "roberta", "electra", "distilbert", "modernbert", "other"])


@st.composite
def encoders(draw: st.DrawFn) -> EncoderSizes:
    heads = draw(st.sampled_from([2, 4, 12, 16]))
    hidden = 64 * heads
    inner = draw(st.sampled_from([2, 4])) * hidden
    matrices = 4 * hidden * hidden + 2 * hidden * inner
    relative = draw(st.booleans())
    return EncoderSizes(
        name="made up",
        family="deberta-v2" if relative else draw(families),
        fingerprint=draw(st.sampled_from("abc")),
        hidden=hidden,
        inner=inner,
        heads=heads,
        embeddings=30_000 * hidden,
        by_layer=(matrices + 9 * hidden,) * draw(st.integers(1, 24)),
        after=hidden,
        matrices=matrices,
        largest=29_000 * hidden,
        span=512 if relative else 0,
    )


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    device, precision = draw(
        st.sampled_from([("cuda", "bf16"), ("cuda", "fp32"), ("cpu", "fp32")])
    )
    some = draw(st.lists(encoders(), min_size=1, max_size=2))
    return Spec(
        encoders=tuple(some),
        effective_batch=draw(st.sampled_from([1, 2, 7, 16, 48, 192, 512])),
        length=draw(st.integers(8, 512)),
        device=device,
        precision=precision,
        optimizer=draw(st.sampled_from(["adamw", "adamw_8bit", "adafactor", "lion"])),
        frozen=draw(st.integers(0, min(e.layers for e in some) - 1)),
        dropout=draw(st.booleans()),
        attention_dropout=draw(st.booleans()),
        head=draw(st.integers(0, 10_000_000)),
        token_width=draw(st.sampled_from([0, 256, 768])),
    )
