"""Fidelity of models that generate text, over the fp32 model's own greedy answers.

The fp32 graphs answer greedily. The other graphs then read the same answers, token by token as when
they are served, and the logits before each token are compared.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from export.decoding import (
    DecodingInputs,
    decoding_steps,
    greedy_answers,
    greedy_steps,
    prefill_source,
    until_end,
)
from export.fidelity.figures import Ids, LogitComparison, chrf, compare_logits
from export.fidelity.subject import GraphFolder, Subject
from export.runtime import DecodeSession, Session
from model.config import Kind

MAX_CACHED_TOKENS = 1 << 13  # cached tokens of all rows that run together


@dataclass(frozen=True)
class GenerationComparison:
    """``identical`` and ``chrf``: an encoder-decoder's own outputs compared with those of fp32.

    ``inputs``: the first rows; ``tokens [rows, steps]``: fp32's answers to them.
    """

    num_texts: int
    logits: LogitComparison
    inputs: DecodingInputs
    tokens: Ids
    identical: float | None = None
    chrf: float | None = None


def compare_generation(
    subject: Subject, reference: GraphFolder, other: GraphFolder
) -> GenerationComparison | None:
    """Compares ``other`` with ``reference``; None if the model takes none of the texts."""
    inputs = generation_inputs(subject)
    if inputs is None:
        return None
    eos = subject.special_tokens.eos
    rows_at_once = max(1, MAX_CACHED_TOKENS // inputs.capacity)
    runners = [GraphRunner(folder, inputs, rows_at_once) for folder in (reference, other)]
    total, first = LogitComparison(), None
    answers: list[list[int]] = []
    outputs: list[list[int]] = []
    for part in parts(inputs, rows_at_once):
        sessions = [runner.prepare(part) for runner in runners]
        tokens, compared = _compare(sessions[0], sessions[1], part, eos)
        total += compared
        if first is None:
            first = part, tokens
        answers += [until_end(row, eos) for row in tokens]
        if inputs.sources is not None:
            outputs += greedy_answers(runners[1].prepare(part), part, eos)
    if first is None:
        return None
    result = GenerationComparison(len(answers), total, *first)
    if not outputs:
        return result
    texts = [[subject.tokenizer.decode(row) for row in rows] for rows in (outputs, answers)]
    return dataclasses.replace(
        result,
        identical=float(np.mean([x == y for x, y in zip(outputs, answers, strict=True)])),
        chrf=chrf(*texts),
    )


def _compare(
    reference: DecodeSession, other: DecodeSession, inputs: DecodingInputs, eos: tuple[int, ...]
) -> tuple[Ids, LogitComparison]:
    """The reference's greedy tokens ``[rows, steps]``, and both logits before each of them.

    Logits after a row's end token are not compared.
    """
    steps = decoding_steps(other, inputs)
    actual, total = next(steps), LogitComparison()
    chosen: list[Ids] = []
    for expected, tokens, is_open in greedy_steps(reference, inputs, eos):
        if chosen:
            actual = steps.send(chosen[-1])
        chosen.append(tokens)
        total += compare_logits(
            expected[is_open], actual[is_open], tokens[is_open], inputs.suppressed
        )
    return np.stack(chosen, 1), total


def generation_inputs(subject: Subject) -> DecodingInputs | None:
    """The prompts or sources; None if the model takes none of them."""
    num_steps = subject.max_new_tokens
    sources = None
    if subject.kind == Kind.DECODER:
        num_steps = min(num_steps, subject.max_positions // 2)
        prompts = subject.prompts(num_steps)
    else:
        start = subject.target_start
        sources = subject.sources() if start else []
        prompts = [start] * len(sources)
        num_steps = min(num_steps, subject.max_positions - len(start))
    if not prompts or num_steps < 1:
        return None
    suppressed = subject.special_tokens.suppressed
    return DecodingInputs(
        prompts=prompts, num_steps=num_steps, sources=sources, suppressed=suppressed
    )


class GraphRunner:
    """Sessions of one precision for groups of rows."""

    def __init__(self, folder: GraphFolder, inputs: DecodingInputs, group: int) -> None:
        num_slots = min(group, len(inputs.prompts))
        self._decoder = folder.decoder(num_slots, inputs.capacity, inputs.source_capacity)
        self._encoder: Session | None = None
        if inputs.sources is not None:
            self._encoder = folder.encoder()

    def prepare(self, inputs: DecodingInputs) -> DecodeSession:
        """The decoder, with only ``inputs.sources`` in its cache."""
        self._decoder.clear()
        if self._encoder is not None and inputs.sources is not None:
            prefill_source(self._encoder, self._decoder, inputs.sources)
        return self._decoder


def parts(inputs: DecodingInputs, size: int) -> Iterator[DecodingInputs]:
    """``inputs`` in groups of at most ``size`` rows."""
    for start in range(0, len(inputs.prompts), size):
        rows = slice(start, start + size)
        sources = None if inputs.sources is None else inputs.sources[rows]
        yield dataclasses.replace(inputs, prompts=inputs.prompts[rows], sources=sources)
