"""Greedy decoding in two ways: step by step in ONNX Runtime, and at once in the eager module."""

import itertools
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from export.image_sources import ImageSource
from export.prompt_images import (
    PlacedImage,
    PromptVectors,
    eager_images,
    encode_eagerly,
    image_inputs,
)
from export.runtime import Array, DecodeSession, Floats, Session
from export.speech import Source, SpeechWindow
from model.bundle import StateRole
from model.kernels import Step
from model.mixer_state import State
from model.transformer import Transformer

Ids = NDArray[np.int64]
# Masked logits (-1e9) have no meaningful error: all values below this count as equal.
LOWEST_LOGIT = -1e4


@dataclass(frozen=True, kw_only=True)
class DecodingInputs:
    """``prompts``: the first target tokens of each row. ``sources``: for an encoder-decoder.

    ``images``: those of each prompt, in a decoder that reads some, and their ``vectors``.
    """

    prompts: list[list[int]]
    num_steps: int
    sources: Sequence[Source] | None = None
    images: Sequence[Sequence[PlacedImage]] = ()
    vectors: PromptVectors = ()
    suppressed: tuple[int, ...] = ()

    @property
    def prompt_lengths(self) -> NDArray[np.int32]:
        return np.array([len(prompt) for prompt in self.prompts], np.int32)

    @property
    def capacity(self) -> int:
        return int(self.prompt_lengths.max()) + self.num_steps

    @property
    def source_capacity(self) -> int:
        return max((len(source) for source in self.sources or []), default=1)


@dataclass(frozen=True)
class DecodingRun:
    """``tokens [rows, steps]``, and the ``logits [rows, steps, vocabulary]`` that gave them."""

    tokens: Ids
    logits: Floats


def padded(rows: list[list[int]]) -> Ids:
    """``[rows, longest]``, right-padded with 0."""
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
    return ids


def lengths_of(rows: Sequence[Source]) -> NDArray[np.int32]:
    """The length of each row."""
    return np.array([len(row) for row in rows], np.int32)


def prefill_source(encoder: Session, decoder: DecodeSession, sources: Sequence[Source]) -> None:
    """Encodes ``sources`` into the decoder's states: texts in one batch, others one by one."""
    texts = [source for source in sources if isinstance(source, list)]
    if texts:
        outputs = encoder.run(token_ids=padded(texts), lengths=lengths_of(texts))
        _write_source(decoder, outputs, 0, len(texts))
        return
    for row, source in enumerate(sources):
        if not isinstance(source, list):
            outputs = encoder.run(**source.inputs)
            _write_source(decoder, outputs, row, 1)


def _write_source(
    decoder: DecodeSession, outputs: Mapping[str, Array], first_row: int, num_rows: int
) -> None:
    for state in decoder.graph.states:
        if state.source is None:
            continue
        rows = slice(first_row, first_row + num_rows)
        encoded, slots = outputs[state.source], decoder.states[state.name][rows]
        if state.role == StateRole.CROSS:  # [rows, kv_heads, longest, head_size]
            slots[:, :, : encoded.shape[2]] = encoded
        else:
            slots[:] = encoded


def decode_in_graph(
    decoder: DecodeSession, inputs: DecodingInputs, tokens: Ids | None = None, chunks: int = 1
) -> DecodingRun:
    """Runs all steps of :func:`decoding_steps`.

    Args:
        decoder: its states are empty, except for the cross-attention cache.
        tokens: ``[rows, steps]`` for teacher forcing; None feeds back the greedy tokens.
        chunks: number of chunks of each prompt.
    """
    steps = decoding_steps(decoder, inputs, chunks)
    all_tokens, all_logits = [], [next(steps)]
    for index in range(inputs.num_steps):
        logits = all_logits[-1]
        chosen = greedy_tokens(logits, inputs.suppressed) if tokens is None else tokens[:, index]
        all_tokens.append(chosen)
        if index + 1 < inputs.num_steps:
            all_logits.append(steps.send(chosen))
    return DecodingRun(np.stack(all_tokens, 1), np.stack(all_logits, 1))


def greedy_answers(
    decoder: DecodeSession, inputs: DecodingInputs, eos: tuple[int, ...]
) -> list[list[int]]:
    """The greedy tokens of each row, up to and including its end token, at most ``num_steps``."""
    tokens = [step.tokens for step in greedy_steps(decoder, inputs, eos)]
    return [until_end(row, eos) for row in np.stack(tokens, 1)]


class GreedyStep(NamedTuple):
    """``logits [rows, vocabulary]``, the best ``tokens [rows]``, and which rows have not ended."""

    logits: Floats
    tokens: Ids
    is_open: NDArray[np.bool_]


def greedy_steps(
    decoder: DecodeSession, inputs: DecodingInputs, eos: tuple[int, ...]
) -> Iterator[GreedyStep]:
    """Greedy decoding until all rows have ended, or for ``num_steps``."""
    steps = decoding_steps(decoder, inputs)
    logits, is_open = next(steps), np.ones(len(inputs.prompts), bool)
    for index in range(inputs.num_steps):
        tokens = greedy_tokens(logits, inputs.suppressed)
        yield GreedyStep(logits, tokens, is_open)
        is_open = is_open & ~np.isin(tokens, eos)
        if not is_open.any():
            return
        if index + 1 < inputs.num_steps:
            logits = steps.send(tokens)


def until_end(tokens: Ids, eos: tuple[int, ...]) -> list[int]:
    """``tokens`` up to and including the first end token."""
    ids: list[int] = tokens.tolist()
    return ids[: next((index + 1 for index, id_ in enumerate(ids) if id_ in eos), len(ids))]


def decoding_steps(
    decoder: DecodeSession, inputs: DecodingInputs, chunks: int = 1
) -> Generator[Floats, Ids, None]:
    """Runs a prefill, then decode steps over ragged rows.

    The prefill is one padded batch if the graph supports that. Otherwise, or with several
    ``chunks``, it runs row by row, each prompt in that many chunks.

    Yields:
        logits ``[rows, vocabulary]`` before each token. Send it the tokens ``[rows]``.
    """
    extra = {}
    if inputs.sources is not None:
        extra["source_lengths"] = lengths_of(inputs.sources)
        extra["max_source_length"] = np.array(inputs.source_capacity)

    def step(ids: Ids, cached: NDArray[np.int32], new: NDArray[np.int32], row: int) -> Floats:
        rows = slice(row, row + len(ids))
        more: dict[str, Array] = {name: x[rows] if x.ndim else x for name, x in extra.items()}
        if inputs.vectors:
            more |= image_inputs(inputs.vectors[rows], cached.tolist(), ids.shape[1])
        return decoder.step(
            row,
            token_ids=ids,
            logit_positions=np.arange(len(ids)) * ids.shape[1] + new - 1,
            num_cached_tokens=cached,
            num_new_tokens=new,
            max_total_length=(cached + new).max(),
            **more,
        )

    num_rows, lengths = len(inputs.prompts), inputs.prompt_lengths
    graph = decoder.graph
    if chunks == 1 and graph.max_chunk is None and not graph.chunk_within_source:
        logits = step(padded(inputs.prompts), np.zeros_like(lengths), lengths, 0)
    else:
        rows = []
        for row, prompt in enumerate(inputs.prompts):
            cached = 0
            size = graph.max_chunk or -(-len(prompt) // chunks)
            if graph.chunk_within_source and inputs.sources is not None:
                size = min(size, len(inputs.sources[row]))
            for start in range(0, len(prompt), size):
                ids = np.array([prompt[start : start + size]])
                new = np.array([ids.shape[1]], np.int32)
                row_logits = step(ids, np.array([cached], np.int32), new, row)
                cached += ids.shape[1]
            rows.append(row_logits)
        logits = np.concatenate(rows)
    ones = np.ones(num_rows, np.int32)
    for index in itertools.count():
        tokens = yield logits
        logits = step(tokens[:, None], lengths + index, ones, 0)


def greedy_tokens(logits: Floats, suppressed: tuple[int, ...]) -> Ids:
    """Index of the largest logit that is not suppressed, for each of ``[..., vocabulary]``."""
    allowed = np.array(logits)
    allowed[..., list(suppressed)] = -np.inf
    result: Ids = allowed.argmax(-1)
    return result


def eager_source_states(model: Transformer, source: Source) -> list[State]:
    """Each decoder layer's states that one source fills."""
    if isinstance(source, SpeechWindow):
        return model.encode_audio(torch.from_numpy(source.samples[None]))
    if isinstance(source, ImageSource):
        return model.encode_image_source(torch.from_numpy(np.stack([source.pixels])))
    ids = torch.tensor([source])
    return model.encode_source(ids, torch.tensor([len(source)], dtype=torch.int32))


def cached_source_states(decoder: DecodeSession, row: int, length: int) -> list[State]:
    """The states that :func:`prefill_source` wrote to slot ``row``, by layer, in float64."""
    names = [state.name for state in decoder.graph.states]
    num_layers = 1 + max((int(name.split(".")[1]) for name in names), default=-1)
    states: list[State] = [{} for _ in range(num_layers)]
    for state in decoder.graph.states:
        if state.source is None:
            continue
        kind, layer = state.name.split(".")
        cached = torch.from_numpy(decoder.states[state.name][row : row + 1].copy())
        if state.role == StateRole.CROSS:
            cached = cached[:, :, :length]
        states[int(layer)][kind] = cached.double()
    return states


def decode_eagerly(
    model: Transformer, inputs: DecodingInputs, tokens: Ids, source_kv: list[list[State]] | None
) -> Floats:
    """The eager module's logits before each of ``tokens``: ``[rows, steps, vocabulary]``.

    Every row is one pass over its whole sequence, without cache or padding.

    Args:
        source_kv: each row's cross-attention keys and values, by layer.
    """
    rows = []
    vectors = encode_eagerly(model, inputs.images)
    for index, prompt in enumerate(inputs.prompts):
        states = None if source_kv is None else source_kv[index]
        source_lengths = None
        if inputs.sources is not None:
            source_lengths = torch.tensor([len(inputs.sources[index])], dtype=torch.int32)
        ids = torch.tensor([[*prompt, *tokens[index, :-1].tolist()]])
        step = Step.whole(torch.tensor([ids.shape[1]]), source_lengths)
        images = eager_images(vectors[index : index + 1], ids.shape[1])
        hidden = model.decode(ids, step, states, images=images).hidden
        rows.append(model.logits(hidden[:, len(prompt) - 1 :])[0])
    result: Floats = torch.stack(rows).numpy()
    return result


def decode_eagerly_batched(model: Transformer, inputs: DecodingInputs, tokens: Ids) -> Floats:
    """:func:`decode_eagerly` for a decoder, in one padded batch: weights are read once."""
    rows = [[*prompt, *tokens[index, :-1].tolist()] for index, prompt in enumerate(inputs.prompts)]
    step = Step.whole(torch.from_numpy(lengths_of(rows)))
    ids = torch.from_numpy(padded(rows))
    images = eager_images(encode_eagerly(model, inputs.images), ids.shape[1])
    hidden = model.decode(ids, step, images=images).hidden
    selected = [
        hidden[index, len(prompt) - 1 : len(rows[index])]
        for index, prompt in enumerate(inputs.prompts)
    ]
    result: Floats = model.logits(torch.stack(selected)).numpy()
    return result
