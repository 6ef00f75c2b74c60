"""Plans which cached tokens each waiting sequence copies when it is admitted, or waits for.

A pure function of the queue and the rows of the cache. Prompts share work in two ways: a sequence
copies a prefix that a row holds, or it is held until the prefill of a longer one is done.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from server.engine.cache.prefix_cache import (
    MIN_REUSED_TOKENS,
    PrefixCache,
    common_prefix,
    is_covered,
    prefix_key,
)


class Prompt(Protocol):
    """The properties of a sequence that the plan uses."""

    @property
    def id(self) -> int: ...
    @property
    def prefix_keys(self) -> Sequence[int]: ...
    @property
    def num_cached_tokens(self) -> int: ...
    @property
    def num_reserved_slots(self) -> int: ...
    @property
    def cache_scope(self) -> str: ...
    @property
    def prefills_alone(self) -> bool: ...
    def missing_image(self, num_cached: int) -> int | None: ...


class PrefixMatch(NamedTuple):
    """``slot`` holds the first ``num_tokens`` tokens of a prompt."""

    slot: int
    num_tokens: int


class MissingImage(NamedTuple):
    """The image at index ``image`` of sequence ``id`` has no vectors yet."""

    id: int
    image: int


@dataclass(slots=True)
class AdmissionPlan:
    """What the next sequences to admit copy.

    Attributes:
        matches: by sequence id. Each is valid if the sequences that are not held are admitted in
            the order of the queue.
        held: sequences that wait for the prefill of another one, which runs or is admitted before,
            or for the vectors of their images.
        next_image: the first sequence that waits for vectors, and which image to encode next.
    """

    matches: dict[int, PrefixMatch] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    next_image: MissingImage | None = None

    def num_cached(self, id_: int) -> int:
        """The number of tokens that sequence ``id_`` copies."""
        match = self.matches.get(id_)
        return 0 if match is None else match.num_tokens


NOTHING_SHARED = AdmissionPlan()


class SlotTaken(NamedTuple):
    """What happens to cached prefixes when a slot is given to a sequence.

    Attributes:
        moved_to: the row to which the prefix in the slot moves; None if there is none to keep.
        freed: a row whose prefix the sequence continues, so that it is not kept.
    """

    moved_to: int | None
    freed: int | None


class _Row(NamedTuple):
    """``tokens[:num_cached]`` can be copied; the others will be cached."""

    slot: int
    scope: str
    key: int | None
    tokens: Sequence[int]
    num_cached: int


class _Search(NamedTuple):
    """``match`` can be copied; ``num_awaited`` tokens will be cached somewhere."""

    match: PrefixMatch | None
    num_awaited: int


_NOTHING = _Search(None, 0)
_NO_SLOT = -1  # of a sequence that is held: nothing of it is cached


def plan_admissions(
    waiting: Sequence[Prompt],
    running: Sequence[Prompt],
    prefixes: PrefixCache,
    num_slots: int,
    num_rows: int,
) -> AdmissionPlan:
    """Plans the admissions of as many waiting sequences as there are slots.

    A sequence is held if another one of its scope is prefilling a prefix of it, and copying that
    prefix saves at least ``MIN_REUSED_TOKENS`` tokens and half of the prefill. The other one runs,
    or is earlier in the queue, so the first in the queue waits for a running prefill only. None is
    held if prefixes are whole.

    Args:
        waiting: in the order to serve.
        running: in slot order.
        prefixes: of the rows that do not run.
        num_slots: the most sequences that run, in the first rows.
        num_rows: of the cache.
    """
    plan, prefixes = AdmissionPlan(), prefixes.copy()
    rows = [
        _row(slot, sequence, sequence.num_cached_tokens) for slot, sequence in enumerate(running)
    ]
    slot = len(running)
    num_free = num_slots - slot - sum(item.num_reserved_slots for item in running)
    for sequence in waiting:
        num_free -= 1 + sequence.num_reserved_slots
        if num_free < 0:
            break
        found = _NOTHING if sequence.prefills_alone else _search(sequence, slot, rows, prefixes)
        match, num_cached = found.match, 0 if found.match is None else found.match.num_tokens
        if _should_wait(sequence, num_cached, found.num_awaited):
            plan.held.add(sequence.id)
            rows.append(_row(_NO_SLOT, sequence, 0))
            continue
        image = sequence.missing_image(num_cached)
        if image is not None:
            plan.next_image = plan.next_image or MissingImage(sequence.id, image)
            plan.held.add(sequence.id)
            rows.append(_row(_NO_SLOT, sequence, 0))
            continue
        if match is not None:
            plan.matches[sequence.id] = match
        take_slot(slot, prefixes, num_rows, match)
        rows.append(_row(slot, sequence, num_cached))
        slot += 1
    return plan


def take_slot(
    slot: int, prefixes: PrefixCache, num_rows: int, match: PrefixMatch | None
) -> SlotTaken:
    """Takes ``slot``, the first that does not run, out of ``prefixes``.

    A prefix in it moves to another row, unless it is the least recently used one. A prefix that
    the new owner continues is not kept.

    Args:
        slot: for the new owner.
        prefixes: changed in place.
        num_rows: of the cache.
        match: of the new owner.
    """
    source = None if match is None else match.slot
    used = None if source is None else prefixes.get(source)
    moved_to = freed = None
    if match is not None and used is not None:
        if is_covered(used.tokens, match.num_tokens):
            prefixes.remove(match.slot)
            freed = match.slot if match.slot != slot else None
        else:
            prefixes.touch(match.slot)
    if prefixes.get(slot) is not None:
        moved_to = prefixes.row_for(slot, num_rows, keep=source)
        if moved_to is None:
            prefixes.remove(slot)
        else:
            prefixes.move(slot, moved_to)
            if moved_to == freed:
                freed = None
    return SlotTaken(moved_to, freed)


def _search(sequence: Prompt, slot: int, rows: Iterable[_Row], prefixes: PrefixCache) -> _Search:
    """The longest prefix of ``sequence`` that a row holds, preferably ``slot``, or will hold.

    At least one token of a prompt is left to prefill, because its logits are needed.
    """
    scope, tokens = sequence.cache_scope, sequence.prefix_keys
    key, limit = prefix_key(scope, tokens), len(tokens) - 1
    if key is None or limit < MIN_REUSED_TOKENS:
        return _NOTHING
    cached = [
        _Row(row, prefix.scope, prefix.key, prefix.tokens, len(prefix.tokens))
        for row, prefix in prefixes.items()
        if prefix.key == key
    ]
    cached.sort(key=lambda row: row.slot != slot)
    best, num_best, num_awaited = slot, 0, 0
    for row in (*cached, *rows):
        if row.key != key or row.scope != scope:
            continue
        least = num_best if row.num_cached > num_best else max(num_best, num_awaited)
        most = min(limit, len(row.tokens))
        if most <= least or tokens[least] != row.tokens[least]:
            continue
        size = common_prefix(tokens, row.tokens, most)
        if prefixes.are_whole:
            if size < row.num_cached:
                continue
            size = row.num_cached  # what the row will hold is after later tokens too
        if min(size, row.num_cached) > max(num_best, MIN_REUSED_TOKENS - 1):
            best, num_best = row.slot, min(size, row.num_cached)
        if size > num_best:
            num_awaited = max(num_awaited, size)
    return _Search(PrefixMatch(best, num_best) if num_best else None, num_awaited)


def _should_wait(sequence: Prompt, num_cached: int, num_awaited: int) -> bool:
    num_saved = num_awaited - num_cached
    return (
        num_saved >= MIN_REUSED_TOKENS and 2 * num_saved >= len(sequence.prefix_keys) - num_cached
    )


def _row(slot: int, sequence: Prompt, num_cached: int) -> _Row:
    scope, tokens = sequence.cache_scope, sequence.prefix_keys
    return _Row(slot, scope, prefix_key(scope, tokens), tokens, num_cached)
