"""The checks of ``loadtest gpu``. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from loadtest.gpu.model_sizes import BIASED_SIZE, CHECK_SIZES, VECTOR_SIZES
from loadtest.gpu.plan import Check

# Limits of errors in log-probabilities of random weights, and in one minus an encoder's cosine.
TOLERANCES = {"fp32": 0.001, "fp16": 0.02, "bf16": 0.15, "int8": 0.1, "int4": 0.8}
_COSINES = {"fp32": 1e-5, "fp16": 1e-4, "bf16": 1e-3, "int8": 0.002, "int4": 0.03}
_CACHE_TOLERANCE = 0.1
# Less than most prompts, so that they are prefilled in chunks.
CHUNKED = {"max_batched_tokens": 16}

# Paths that need a server option; a version without the option reports so. A CPU can be treated
# as a device with its own memory, as a GPU always is.
DEVICE_MEMORY = {"has_device_memory": True}
SAMPLED = "sampling on the device"
PADDED = "padded steps in a device's memory"
OPTIONS: dict[str, Mapping[str, Any]] = {
    PADDED: {**DEVICE_MEMORY, "cuda_graphs": True},
    "plain steps in a device's memory": {**DEVICE_MEMORY, "cuda_graphs": False},
    SAMPLED: {**DEVICE_MEMORY, "sampling": "device"},
}
_OF_INT8_CACHE: dict[str, Mapping[str, Any]] = {
    "prefill and decode": {},
    "chunked prefill": CHUNKED,
    PADDED: OPTIONS[PADDED],
}
# Batches of few tokens, so that a run starts before the one before it has ended.
_OF_ENCODERS: dict[str, Mapping[str, Any]] = {
    "encoder of many texts": {},
    "encoder of many texts, not recorded": {"cuda_graphs": False},
    "encoder of many texts, runs ahead": {"max_padded_tokens": 256},
}
# Sequences together: graphs for few and for many rows differ, and their sizes are padded.
_ROWS = {"one row": 1, "few rows": 5, "many rows": 24, "most rows": 70}
_SOME_ROWS = ("few rows", "many rows")
_BEAMS = 4


def checks(
    precisions: tuple[str, ...], others: tuple[str, ...], first: str, *, all_rows: bool = True
) -> tuple[Check, ...]:
    """All decoder paths in ``first``; in other precisions the paths that depend on the weights.

    Args:
        others: precisions of encoder-decoders and encoders.
        all_rows: false for fewer numbers of sequences together.
    """
    rows_of_first = tuple(_ROWS) if all_rows else _SOME_ROWS
    llama_size, bart_size, bert_size = CHECK_SIZES
    found: list[Check] = []
    for precision in precisions:
        decoder = Check(
            label="prefill and decode",
            size=llama_size,
            precision=precision,
            tolerance=TOLERANCES[precision],
        )
        found += [decoder, _with(decoder, "chunked prefill", CHUNKED)]
        if precision == first:
            found += [_with(decoder, label, config) for label, config in OPTIONS.items()]
            cached = TOLERANCES[first] + _CACHE_TOLERANCE
            for label, config in _OF_INT8_CACHE.items():
                found.append(_with(decoder, label, config, kv_cache="int8", tolerance=cached))
            found += _of_rows(decoder, rows_of_first)
            found.append(_with(decoder, "biases of positions", {}, size=BIASED_SIZE))
        elif precision == "bf16":
            found += [_ahead(decoder, rows) for rows in _SOME_ROWS]
    for precision in others:
        cross = Check(
            label="cross-attention",
            size=bart_size,
            precision=precision,
            tolerance=TOLERANCES[precision],
        )
        encoder = Check(
            label="encoder", size=bert_size, precision=precision, tolerance=_COSINES[precision]
        )
        found += [cross, encoder]
        if precision == first:
            found.append(_with(cross, "cross-attention in a device's memory", DEVICE_MEMORY))
            found += _of_cross_attention(cross)
            for label, config in _OF_ENCODERS.items():
                found.append(_with(encoder, label, config, num_rows=70))
            causal, sparse, rotary = VECTOR_SIZES
            found.append(_with(encoder, "causal encoder", {}, size=causal))
            found.append(_with(encoder, "sparse vectors", {}, size=sparse))
            found.append(_with(encoder, "encoder with rotary positions", {}, size=rotary))
    return tuple(found)


def _of_rows(decoder: Check, all_rows: tuple[str, ...]) -> list[Check]:
    """Recorded steps, those that start ahead, and beams, of few and of many sequences."""
    found = []
    for rows in all_rows:
        recorded = _with(decoder, f"recorded steps, {rows}", OPTIONS[PADDED])
        found.append(replace(recorded, num_rows=_ROWS[rows]))
        found.append(_ahead(decoder, rows))
    found.append(_with(decoder, "beams", OPTIONS[PADDED], beams=_BEAMS, num_rows=3))
    return found


def _of_cross_attention(cross: Check) -> list[Check]:
    found = []
    for rows in _SOME_ROWS:
        label, count = f"cross-attention, recorded steps, {rows}", _ROWS[rows]
        found.append(_with(cross, label, OPTIONS[PADDED], num_rows=count))
        found.append(replace(_ahead(cross, rows), label=f"cross-attention, steps ahead, {rows}"))
    found.append(_with(cross, "cross-attention, beams", OPTIONS[PADDED], beams=_BEAMS, num_rows=3))
    return found


def _ahead(check: Check, rows: str) -> Check:
    """Steps that start before the host has the last one's tokens."""
    label = f"steps ahead, {rows}"
    ahead = _with(check, label, OPTIONS[PADDED], num_rows=_ROWS[rows])
    return replace(ahead, with_logprobs=False)


def _with(check: Check, label: str, config: Mapping[str, Any], **changes: Any) -> Check:
    return replace(check, label=label, config=config, with_logprobs=label != SAMPLED, **changes)
