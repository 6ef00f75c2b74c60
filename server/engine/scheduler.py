"""Plans a step: a pure function of the queue, the running sequences and the limits.

Continuous batching after Orca (Yu et al. 2022), with chunked prefill after
Sarathi (Agrawal et al. 2023): each step decodes every running sequence and
spends the rest of a token budget on prompts.

Slots: decodable sequences run in slots ``0 … d-1``; at most one sequence is
in the middle of its prompt, and it has slot ``d``, the last.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from server.engine.cache.admission_plan import NOTHING_SHARED, AdmissionPlan
from server.engine.requests.lifecycle import Phase

MAX_PADDING = 1.25
"""The largest ratio of padded to real tokens in a batch of prompts or sources."""


class Schedulable(Protocol):
    """The properties of a sequence that the scheduler uses."""

    @property
    def id(self) -> int: ...
    @property
    def phase(self) -> Phase: ...
    @property
    def num_remaining_tokens(self) -> int: ...
    @property
    def num_cached_tokens(self) -> int: ...
    @property
    def num_source_tokens(self) -> int: ...
    @property
    def num_reserved_slots(self) -> int: ...
    @property
    def max_decode_runs(self) -> int: ...


# Phases in which the decoder processes a sequence's tokens.
_DECODER_PHASES = (Phase.DECODING, Phase.PREFILLING)


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Limits of a step.

    Attributes:
        num_slots: the most sequences that run at once.
        max_batched_tokens: the token budget of a step: one for each decoding sequence, the rest for
            prompts and sources.
        min_chunk: tokens that prompts get in every step, even if decoding uses up the budget. A
            prompt is not split if its first chunk would be smaller.
        max_padding: as :data:`MAX_PADDING`.
        encode_interval: decode runs from one run of the encoder to the next while at least half
            of the slots decode: it is faster over many sources at once.
    """

    num_slots: int
    max_batched_tokens: int
    min_chunk: int = 16
    max_padding: float = MAX_PADDING
    encode_interval: int = 4


class _Prefill(NamedTuple):
    """The next ``size`` of a prompt's ``num_remaining`` tokens, after ``num_cached`` others."""

    id: int
    size: int
    num_remaining: int
    num_cached: int


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """The next ``num_tokens`` tokens of a sequence's prompt."""

    id: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of one step, in this order. Integers are sequence ids.

    Attributes:
        admit: sequences that get the next slots.
        encode: batches of the encoder.
        prefill: batches of prompt chunks; each batch runs in neighbouring slots.
        decode: sequences that decode one token in each run, in one batch.
        num_decode_runs: how many tokens of each it may decode before another plan, while no
            sequence ends and there is no new work.
    """

    admit: tuple[int, ...] = ()
    encode: tuple[tuple[int, ...], ...] = ()
    prefill: tuple[tuple[PromptChunk, ...], ...] = ()
    decode: tuple[int, ...] = ()
    num_decode_runs: int = 1


def schedule(
    waiting: Sequence[Schedulable],
    running: Sequence[Schedulable],
    limits: StepLimits,
    prefixes: AdmissionPlan = NOTHING_SHARED,
    runs_since_encode: float = math.inf,
) -> Plan:
    """Plans one step.

    No sequence starves: every decodable sequence decodes in every step, prompts get at least
    ``min_chunk`` tokens of every step, and sequences are admitted strictly in their order (those of
    an encoder-decoder at least every ``encode_interval`` decode runs). Those after a held sequence
    may overtake it, but leave it the slots that it needs.

    Args:
        waiting: the queue, in the order to serve.
        running: the running sequences in slot order.
        limits: the limits of a step.
        prefixes: the cached tokens that waiting sequences copy, and those that wait for more.
        runs_since_encode: the number of decode runs since the last run of the encoder.
    """
    decode = tuple(item.id for item in running if is_decodable(item))
    is_busy = 2 * len(decode) >= limits.num_slots
    encodes_later = is_busy and runs_since_encode < limits.encode_interval
    num_runs = 1 if waiting else min((item.max_decode_runs for item in running), default=1)
    if encodes_later and any(item.num_source_tokens for item in waiting[:1]):
        waiting = ()
    if not waiting and len(decode) == len(running):
        return Plan(decode=decode, num_decode_runs=num_runs)
    budget = max(limits.max_batched_tokens - len(decode), limits.min_chunk)

    chunks: list[_Prefill] = []
    for item in running[len(decode) :]:
        remaining = item.num_remaining_tokens
        size = _chunk_size(remaining, budget)
        chunks.append(_Prefill(item.id, size, remaining, item.num_cached_tokens))
        budget -= size
    is_blocked = any(chunk.size < chunk.num_remaining for chunk in chunks)

    admit: list[Schedulable] = []
    num_free = limits.num_slots - sum(1 + item.num_reserved_slots for item in running)
    for item in waiting:
        num_free -= 1 + item.num_reserved_slots
        if is_blocked or budget <= 0 or num_free < 0:
            break
        if item.id in prefixes.held:
            continue
        # A fresh one-token prompt has nothing to prefill: it decodes from the next step on.
        cost = item.num_source_tokens
        if cost > budget and (admit or chunks):
            break
        num_cached = prefixes.num_cached(item.id)
        remaining = item.num_remaining_tokens - num_cached
        if remaining > 1:
            size = _chunk_size(remaining, budget - cost)
            is_blocked = size < remaining
            if is_blocked and size < limits.min_chunk and (admit or chunks or decode):
                break
            chunks.append(_Prefill(item.id, size, remaining, num_cached))
            cost += size
        admit.append(item)
        budget -= cost

    return Plan(
        admit=tuple(item.id for item in admit),
        encode=_encode_batches([item for item in admit if item.num_source_tokens], limits),
        prefill=_prefill_batches(chunks, [item.id for item in admit], limits),
        decode=decode,
    )


def is_decodable(item: Schedulable) -> bool:
    """Whether one token is left to process: the sequence runs in the decode batch."""
    return item.phase in _DECODER_PHASES and item.num_remaining_tokens == 1


def _chunk_size(num_remaining: int, budget: int) -> int:
    return min(num_remaining, max(budget, 1))


def _encode_batches(items: list[Schedulable], limits: StepLimits) -> tuple[tuple[int, ...], ...]:
    """Batches of sources of similar length, which need little padding."""
    ordered = sorted(items, key=lambda item: item.num_source_tokens)
    batches = _split([(item.id, item.num_source_tokens) for item in ordered], limits.max_padding)
    return tuple(tuple(id_ for id_, _ in batch) for batch in batches)


def _prefill_batches(
    chunks: list[_Prefill], admit: list[int], limits: StepLimits
) -> tuple[tuple[PromptChunk, ...], ...]:
    """Whole prompts with nothing cached share a run; all other chunks run alone."""
    batches: list[tuple[PromptChunk, ...]] = []
    fresh: list[list[tuple[int, int]]] = [[]]
    sizes: dict[int, int] = {}  # of whole prompts
    for id_, size, num_remaining, num_cached in chunks:
        if num_cached or size < num_remaining:
            batches.append((PromptChunk(id_, size),))
        else:
            sizes[id_] = size
    for id_ in admit:
        if id_ in sizes:
            fresh[-1].append((id_, sizes[id_]))
        else:  # its slot separates its neighbours
            fresh.append([])
    for neighbours in fresh:
        for batch in _split(neighbours, limits.max_padding):
            batches.append(tuple(PromptChunk(id_, size) for id_, size in batch))
    return tuple(batches)


def _split(items: Iterable[tuple[int, int]], max_padding: float) -> list[list[tuple[int, int]]]:
    """Batches of adjacent ``(id, length)`` items, padded by at most ``max_padding``."""
    batches: list[list[tuple[int, int]]] = []
    for item in items:
        if batches:
            lengths = [length for _, length in (*batches[-1], item)]
            if max(lengths) * len(lengths) <= max_padding * sum(lengths):
                batches[-1].append(item)
                continue
        batches.append([item])
    return batches
