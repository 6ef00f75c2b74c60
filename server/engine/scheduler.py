"""What to run next: a pure function of the queue, the running rows and the limits.

Continuous batching after Orca (Yu et al. 2022), with prompts in chunks after
Sarathi (Agrawal et al. 2023): each step decodes every running sequence and
spends the rest of a token budget on prompts.

Rows: the decodable sequences stand in rows ``0 … d-1``; at most one sequence is
in the middle of its prompt, and it stands in row ``d``, the last.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Schedulable(Protocol):
    """What the scheduler reads of a sequence."""

    @property
    def id(self) -> int: ...
    @property
    def num_remaining_tokens(self) -> int: ...
    @property
    def num_cached_tokens(self) -> int: ...
    @property
    def num_source_tokens(self) -> int: ...
    @property
    def num_reserved_rows(self) -> int: ...
    @property
    def is_encoded(self) -> bool: ...
    @property
    def is_cancelled(self) -> bool: ...
    @property
    def deadline(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """``max_batched_tokens``: tokens that one step may read, decoded rows included.

    ``min_chunk``: prompts get at least this many tokens of a step, whatever decodes;
    a prompt is not split off with fewer. ``max_padding``: padded over real tokens of a
    batch of prompts.
    """

    num_slots: int
    max_batched_tokens: int
    min_chunk: int = 16
    max_padding: float = 1.25


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next ``num_tokens`` tokens of a sequence's prompt."""

    id: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One step.

    First ``admit`` takes rows at the end, in order; then each batch of ``encode`` and of
    ``prefill`` is one run (the rows of a prefill batch are neighbours); then the rows
    ``decode`` run.
    """

    admit: tuple[int, ...] = ()
    encode: tuple[tuple[int, ...], ...] = ()
    prefill: tuple[tuple[Chunk, ...], ...] = ()
    decode: tuple[int, ...] = ()


def overdue(items: Iterable[Schedulable], now: float) -> tuple[int, ...]:
    """What leaves before anything is planned: cancelled, or past its deadline (seconds)."""
    return tuple(
        item.id
        for item in items
        if item.is_cancelled or (item.deadline is not None and item.deadline <= now)
    )


def schedule(
    waiting: Sequence[Schedulable], running: Sequence[Schedulable], limits: Limits
) -> Plan:
    """Plans one step.

    Neither side starves: every decodable row decodes in every step, and prompts get
    ``min_chunk`` tokens of it whatever decodes. What waits is admitted strictly in its order.

    Args:
        waiting: in the order to serve; of a prompt whose first tokens will be copied from
            another row, those count as cached.
        running: in order of rows.
        limits: of the model's slots and of a step.
    """
    rows = list(running)
    decode = tuple(item.id for item in rows if is_decodable(item))
    budget = max(limits.max_batched_tokens - len(decode), limits.min_chunk)

    chunks: list[tuple[Schedulable, int]] = []
    for item in rows[len(decode) :]:
        size = _chunk_size(item, budget)
        chunks.append((item, size))
        budget -= size
    is_blocked = any(size < item.num_remaining_tokens for item, size in chunks)

    admit: list[Schedulable] = []
    num_free = limits.num_slots - sum(1 + item.num_reserved_rows for item in rows)
    for item in waiting:
        num_free -= 1 + item.num_reserved_rows
        if is_blocked or budget <= 0 or num_free < 0:
            break
        # A fresh one-token prompt has nothing to prefill: it decodes from the next step on.
        cost = item.num_source_tokens
        if not item.is_encoded and cost > budget and (admit or chunks):
            break
        if item.num_remaining_tokens > 1:
            size = _chunk_size(item, budget - cost)
            is_blocked = size < item.num_remaining_tokens
            if is_blocked and size < limits.min_chunk and (admit or chunks or decode):
                break
            chunks.append((item, size))
            cost += size
        admit.append(item)
        budget -= cost

    return Plan(
        admit=tuple(item.id for item in admit),
        encode=_encode_batches([item for item in admit if not item.is_encoded], limits),
        prefill=_prefill_batches(chunks, [item.id for item in admit], limits),
        decode=decode,
    )


def is_decodable(item: Schedulable) -> bool:
    """Whether one token is left to read: the sequence runs with the decode batch."""
    return item.is_encoded and item.num_remaining_tokens == 1


def _chunk_size(item: Schedulable, budget: int) -> int:
    return min(item.num_remaining_tokens, max(budget, 1))


def _encode_batches(items: list[Schedulable], limits: Limits) -> tuple[tuple[int, ...], ...]:
    """Batches of similar length, so that little is padded."""
    ordered = sorted(items, key=lambda item: item.num_source_tokens)
    batches = _split([(item.id, item.num_source_tokens) for item in ordered], limits.max_padding)
    return tuple(tuple(id_ for id_, _ in batch) for batch in batches)


def _prefill_batches(
    chunks: list[tuple[Schedulable, int]], admit: list[int], limits: Limits
) -> tuple[tuple[Chunk, ...], ...]:
    """Whole fresh prompts share a run; a chunk over a cache, or one cut short, runs alone."""
    batches: list[tuple[Chunk, ...]] = []
    fresh: list[list[tuple[int, int]]] = [[]]
    sizes = {item.id: size for item, size in chunks}
    for item, size in chunks:
        if item.num_cached_tokens or size < item.num_remaining_tokens:
            batches.append((Chunk(item.id, size),))
            del sizes[item.id]
    for id_ in admit:
        if id_ in sizes:
            fresh[-1].append((id_, sizes[id_]))
        else:  # its row parts those before from those behind
            fresh.append([])
    for neighbours in fresh:
        for batch in _split(neighbours, limits.max_padding):
            batches.append(tuple(Chunk(id_, size) for id_, size in batch))
    return tuple(batches)


def _split(items: Iterable[tuple[int, int]], max_padding: float) -> list[list[tuple[int, int]]]:
    """Neighbours ``(id, length)`` share a batch while its padding stays within bounds."""
    batches: list[list[tuple[int, int]]] = []
    for item in items:
        if batches:
            lengths = [length for _, length in (*batches[-1], item)]
            if max(lengths) * len(lengths) <= max_padding * sum(lengths):
                batches[-1].append(item)
                continue
        batches.append([item])
    return batches
