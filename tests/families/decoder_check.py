"""Compares a decoder's exported graphs with ``transformers``: in a batch, alone, in chunks."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from export.checkpoint import Checkpoint
from export.decoding import (
    DecodingInputs,
    DecodingRun,
    greedy_tokens,
)
from export.parity_reference import TIE, TOLERANCE, ParityReference
from export.parity_sessions import open_sessions, run_sessions
from export.prompt_images import PlacedImage
from export.runtime import Floats
from export.speech import Source
from model.bundle import GraphSpec
from model.config import Kind
from scripts.families import Family

# The arguments of transformers' model for a source.
ReadSource = Callable[[Source], dict[str, torch.Tensor]]

NUM_STEPS = 64
NUM_CHUNKED_STEPS = 2
ROW_TOLERANCE = 2e-5  # between a row in a batch and the same row alone


class CheckedFamily(NamedTuple):
    """``row`` without a family name, and transformers' outputs to check other precisions."""

    row: Family
    reference: ParityReference


def max_errors(actual: list[Floats], expected: list[Floats]) -> list[float]:
    return [float(np.abs(x - y).max()) for x, y in zip(actual, expected, strict=True)]


def read_text(source: Source) -> dict[str, torch.Tensor]:
    """Token ids."""
    return {"input_ids": torch.tensor([source])}


def check_decoder(
    model: Any,
    checkpoint: Checkpoint,
    rows: list[list[int]],
    directory: Path,
    graphs: dict[str, GraphSpec],
    sources: Sequence[Source] | None = None,
    read: ReadSource = read_text,
    images: Sequence[Sequence[PlacedImage]] = (),
    more: Sequence[dict[str, torch.Tensor]] = (),
) -> CheckedFamily:
    """Asserts that the graphs decode like ``model``, and that rows do not depend on their batch.

    Args:
        rows: prompts; in an encoder-decoder, where targets start, and sources.
        sources: instead of ``rows``, one for each of them.
        read: what ``model`` takes for a source.
        images: of each prompt.
        more: what ``model`` takes for them.
    """
    special = checkpoint.special_tokens
    inputs = DecodingInputs(
        prompts=rows, num_steps=NUM_STEPS, suppressed=special.suppressed, images=images
    )
    if checkpoint.config.kind == Kind.ENCODER_DECODER:
        assert special.decoder_start is not None
        # Forced prefixes of different lengths.
        prompts = [[special.decoder_start, *row[:index]] for index, row in enumerate(rows)]
        inputs = dataclasses.replace(inputs, prompts=prompts, sources=sources or rows)
    longest = max(map(len, inputs.prompts)) + NUM_STEPS
    assert checkpoint.config.position.max_positions >= longest, f"{longest} positions needed"

    batched = _decode(directory, graphs, inputs)
    reference_outputs = _reference_logits(model, inputs, batched, read, more)
    error = max(max_errors([batched.logits], [reference_outputs]))
    assert error <= TOLERANCE, f"{error:.2e} from transformers"

    for index in range(len(rows)):  # each row alone, with the same tokens forced
        one = dataclasses.replace(
            inputs,
            prompts=[inputs.prompts[index]],
            sources=None if inputs.sources is None else [inputs.sources[index]],
            images=inputs.images[index : index + 1],
        )
        alone = _decode(directory, graphs, one, batched.tokens[index : index + 1])
        assert np.abs(alone.logits[0] - batched.logits[index]).max() <= ROW_TOLERANCE
    short = dataclasses.replace(inputs, num_steps=NUM_CHUNKED_STEPS)
    chunked = _decode(directory, graphs, short, batched.tokens, chunks=3)
    difference = np.abs(chunked.logits - batched.logits[:, :NUM_CHUNKED_STEPS]).max()
    assert difference <= ROW_TOLERANCE, "a prompt depends on its chunks"

    equal = greedy_tokens(reference_outputs, inputs.suppressed) == batched.tokens
    chosen = np.take_along_axis(reference_outputs, batched.tokens[..., None], -1)
    allowed = np.array(reference_outputs)
    allowed[..., list(inputs.suppressed)] = -np.inf
    tied = (allowed.max(-1, keepdims=True) - chosen)[..., 0] <= TIE
    assert (equal | tied).all(), "greedy tokens differ"
    row = Family(
        family="",
        kind=checkpoint.config.kind,
        max_absolute_error=error,
        tokens_compared=int(equal.size),
        tokens_equal=int(equal.sum()),
        tokens_tied=int((tied & ~equal).sum()),
    )
    reference = ParityReference(
        list(reference_outputs[:, :NUM_CHUNKED_STEPS]),
        error,
        0,
        0,
        decoder_inputs=short,
        tokens=batched.tokens,
    )
    return CheckedFamily(row, reference)


def _decode(
    directory: Path,
    graphs: dict[str, GraphSpec],
    inputs: DecodingInputs,
    tokens: Any = None,
    chunks: int = 1,
) -> DecodingRun:
    return run_sessions(open_sessions(inputs, directory, graphs), inputs, tokens, chunks)


def _reference_logits(
    model: Any,
    inputs: DecodingInputs,
    run: DecodingRun,
    read: ReadSource,
    more: Sequence[dict[str, torch.Tensor]],
) -> Floats:
    """``[rows, steps, vocabulary]``: one forward pass per row over the same tokens."""
    rows = []
    for index, prompt in enumerate(inputs.prompts):
        ids = torch.tensor([[*prompt, *run.tokens[index, :-1].tolist()]])
        if inputs.sources is None:
            logits = model(ids, **(more[index] if more else {})).logits
        else:
            source = read(inputs.sources[index])
            logits = model(**source, decoder_input_ids=ids).logits
        rows.append(logits[0, len(prompt) - 1 :].numpy())
    return np.stack(rows)
