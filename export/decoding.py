"""Greedy decoding twice: step by step in ONNX Runtime, and whole in the eager module."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from export.runtime import DecodeSession, Floats, Session
from model.bundle import StateRole
from model.kernels import Step
from model.mixers import State
from model.transformer import Transformer

Ids = NDArray[np.int64]
# Masked logits (-1e9) have no meaningful error: everything below this is one value.
LOWEST_LOGIT = -1e4


@dataclass(frozen=True, kw_only=True)
class Work:
    """``prompts``: the first target tokens of each row. ``sources``: of encoder-decoders."""

    prompts: list[list[int]]
    num_steps: int
    sources: list[list[int]] | None = None
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
class Run:
    """``tokens [rows, steps]`` and the ``logits [rows, steps, vocabulary]`` they came from."""

    tokens: Ids
    logits: Floats


def padded(rows: list[list[int]]) -> Ids:
    """``[rows, longest]``, right-padded with 0."""
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
    return ids


def lengths_of(rows: list[list[int]]) -> NDArray[np.int32]:
    """The length of each row."""
    return np.array([len(row) for row in rows], np.int32)


def remember_source(encoder: Session, decoder: DecodeSession, sources: list[list[int]]) -> None:
    """Encodes ``sources`` as one padded batch into the decoder's cross-attention states."""
    outputs = encoder.run(token_ids=padded(sources), lengths=lengths_of(sources))
    for state in decoder.graph.states:
        if state.role == StateRole.CROSS and state.source is not None:
            memory = outputs[state.source]
            decoder.states[state.name][: len(sources), :, : memory.shape[2]] = memory


def decode_in_graph(
    decoder: DecodeSession, work: Work, tokens: Ids | None = None, chunks: int = 1
) -> Run:
    """Prefill, then ragged decode steps.

    The prefill is one padded batch where the graph takes that; else, or with ``chunks``,
    it runs row by row, in as many pieces.

    Args:
        decoder: its states are empty but for the source's.
        tokens: ``[rows, steps]`` to feed; None feeds the best token of each step.
    """
    extra = {}
    if work.sources is not None:
        extra["source_lengths"] = lengths_of(work.sources)
        extra["max_source_length"] = np.array(work.source_capacity)

    def step(ids: Ids, cached: NDArray[np.int32], new: NDArray[np.int32], row: int) -> Floats:
        rows = slice(row, row + len(ids))
        source = {name: x[rows] if x.ndim else x for name, x in extra.items()}
        return decoder.step(
            row,
            token_ids=ids,
            logit_positions=np.arange(len(ids)) * ids.shape[1] + new - 1,
            num_cached_tokens=cached,
            num_new_tokens=new,
            max_total_length=(cached + new).max(),
            **source,
        )

    num_rows, lengths = len(work.prompts), work.prompt_lengths
    graph = decoder.graph
    if chunks == 1 and graph.max_chunk is None and not graph.chunk_within_source:
        logits = step(padded(work.prompts), np.zeros_like(lengths), lengths, 0)
    else:
        rows = []
        for row, prompt in enumerate(work.prompts):
            cached = 0
            size = graph.max_chunk or -(-len(prompt) // chunks)
            if graph.chunk_within_source and work.sources is not None:
                size = min(size, len(work.sources[row]))
            for start in range(0, len(prompt), size):
                ids = np.array([prompt[start : start + size]])
                new = np.array([ids.shape[1]], np.int32)
                rows_logits = step(ids, np.array([cached], np.int32), new, row)
                cached += ids.shape[1]
            rows.append(rows_logits)
        logits = np.concatenate(rows)
    chosen, seen = [], []
    ones = np.ones(num_rows, np.int32)
    for index in range(work.num_steps):
        seen.append(logits)
        chosen.append(best(logits, work.suppressed) if tokens is None else tokens[:, index])
        if index + 1 < work.num_steps:
            logits = step(chosen[-1][:, None], lengths + index, ones, 0)
    return Run(np.stack(chosen, 1), np.stack(seen, 1))


def best(logits: Floats, suppressed: tuple[int, ...]) -> Ids:
    """``[..., vocabulary]`` to the index of the largest that is not suppressed."""
    allowed = np.array(logits)
    allowed[..., list(suppressed)] = -np.inf
    result: Ids = allowed.argmax(-1)
    return result


def remember_eagerly(model: Transformer, source: list[int]) -> list[State]:
    """Each decoder layer's memory of one source."""
    ids = torch.tensor([source])
    return model.cross_attention_kv(
        model.encode(ids, torch.tensor([len(source)], dtype=torch.int32))
    )


def remembered(decoder: DecodeSession, row: int, length: int) -> list[State]:
    """What :func:`remember_source` left in slot ``row``, by layer, in double precision."""
    cross = [state.name for state in decoder.graph.states if state.role == StateRole.CROSS]
    layers = 1 + max((int(name.split(".")[1]) for name in cross), default=-1)
    states: list[State] = [{} for _ in range(layers)]
    for name in cross:
        kind, layer = name.split(".")
        memory = torch.from_numpy(decoder.states[name][row : row + 1, :, :length])
        states[int(layer)][kind] = memory.double()
    return states


def decode_eagerly(
    model: Transformer, work: Work, tokens: Ids, memories: list[list[State]] | None
) -> Floats:
    """The logits that chose, or would have chosen, ``tokens``: ``[rows, steps, vocabulary]``.

    Every row is one pass over its whole sequence: no cache and no padding takes part.
    ``memories`` holds each row's memory of its source.
    """
    rows = []
    for index, prompt in enumerate(work.prompts):
        states = None if memories is None else memories[index]
        source_lengths = None
        if work.sources is not None:
            source_lengths = torch.tensor([len(work.sources[index])], dtype=torch.int32)
        ids = torch.tensor([[*prompt, *tokens[index, :-1].tolist()]])
        step = Step.whole(torch.tensor([ids.shape[1]]), source_lengths)
        hidden = model.decode(ids, step, states).hidden
        rows.append(model.logits(hidden[:, len(prompt) - 1 :])[0])
    result: Floats = torch.stack(rows).numpy()
    return result


def decode_eagerly_together(model: Transformer, work: Work, tokens: Ids) -> Floats:
    """As :func:`decode_eagerly`, of a decoder, in one padded batch: weights are read once."""
    rows = [[*prompt, *tokens[index, :-1].tolist()] for index, prompt in enumerate(work.prompts)]
    step = Step.whole(torch.from_numpy(lengths_of(rows)))
    hidden = model.decode(torch.from_numpy(padded(rows)), step).hidden
    chosen = [
        hidden[index, len(prompt) - 1 : len(rows[index])]
        for index, prompt in enumerate(work.prompts)
    ]
    result: Floats = model.logits(torch.stack(chosen)).numpy()
    return result
