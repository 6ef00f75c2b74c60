"""The running sequences in the rows of the cache: who is where, and what is copied for it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from server.engine.cache.prefix_cache import PrefixCache, PrefixMatch, best_match
from server.engine.cache.slot_cache import SlotCache, Span
from server.engine.cache.slots import SlotTable
from server.engine.requests.sequence import DecodingSequence


class SlotCopy(NamedTuple):
    """What ``source`` holds, from token ``first_token`` on, goes to ``target``.

    Both have the same source tokens.
    """

    source: DecodingSequence
    target: DecodingSequence
    first_token: int


class SlotStore:
    """Keeps :class:`SlotTable`, :class:`SlotCache` and :class:`PrefixCache` in step."""

    def __init__(self, cache: SlotCache, num_slots: int) -> None:
        self._cache = cache
        self._slots = SlotTable(num_slots)
        self._residents = PrefixCache(is_enabled=cache.holds_prefixes)
        self._sequences: dict[int, DecodingSequence] = {}
        self._matches: dict[int, PrefixMatch] = {}

    def __repr__(self) -> str:
        return repr(self._slots)

    @property
    def running(self) -> tuple[DecodingSequence, ...]:
        """In order of rows."""
        return tuple(self._sequences[id_] for id_ in self._slots.ids)

    def get(self, id_: int) -> DecodingSequence:
        """The running sequence ``id_``. Raises ``KeyError`` if there is none."""
        return self._sequences[id_]

    def slot_of(self, row: DecodingSequence) -> int:
        """The row of the cache that ``row`` owns."""
        return self._slots.row_of(row.id)

    def match(self, waiting: Sequence[DecodingSequence]) -> None:
        """Notes which tokens of what may be admitted next can be copied from another row.

        They count as cached from here on; :meth:`admit` makes the copy, :meth:`unmatch`
        takes it back. The ``n``-th to be admitted gets the ``n``-th free row, so it can use
        the rows before and what is resident from its own row on.
        """
        self._matches.clear()
        if not (self._residents.is_enabled and waiting and self._slots.num_free):
            return
        busy: list[tuple[int, Sequence[int]]] = [
            (row, self._sequences[id_].tokens[: self._sequences[id_].num_cached_tokens])
            for row, id_ in enumerate(self._slots.ids)
        ]
        for own, sequence in zip(self._free_rows(), waiting, strict=False):
            if sequence.job.logprob_options.reads_alone:
                continue
            found = best_match(sequence.tokens, [*self._residents.rows(own), *busy])
            if found is not None:
                self._matches[sequence.id] = found
                sequence.num_cached_tokens = found.num_tokens
                busy.append((own, sequence.tokens[: found.num_tokens]))

    def unmatch(self, waiting: Sequence[DecodingSequence]) -> None:
        """What was not admitted has nothing cached."""
        for sequence in waiting:
            if sequence.id in self._matches:
                sequence.num_cached_tokens = 0
        self._matches.clear()

    def admit(self, sequence: DecodingSequence) -> None:
        """Gives ``sequence`` the next row, with what was matched for it."""
        self._slots.acquire(sequence.id)
        own = self._slots.row_of(sequence.id)
        self._sequences[sequence.id] = sequence
        self._residents.forget(own)
        match = self._matches.get(sequence.id)
        if match is None:
            self._cache.reset(own)
        elif match.row != own:
            self._cache.copy(match.row, own, Span(match.num_tokens))

    def fork(self, parent: DecodingSequence, child: DecodingSequence) -> None:
        """Gives ``child`` a row with the content of ``parent``'s. Not between runs of a plan."""
        move = self._slots.acquire(child.id, before_last=self._has_prefilling_last())
        self._residents.forget(self._slots.num_used - 1)
        self._sequences[child.id] = child
        if move is not None:
            moved = self._sequences[self._slots.ids[move.target]]
            self._cache.copy(move.source, move.target, _span(moved))
        self._cache.copy(self.slot_of(parent), self.slot_of(child), _span(parent))

    def copy(self, copies: Sequence[SlotCopy]) -> None:
        """Copies all at once."""
        self._cache.move(
            [
                (
                    self.slot_of(copy.source),
                    self.slot_of(copy.target),
                    Span(copy.source.num_cached_tokens, first_token=copy.first_token),
                )
                for copy in copies
            ]
        )

    def behind(self, first: int, count: int, max_length: int) -> list[int] | None:
        """Where rows from ``first``, which run as padding, take a token that means nothing.

        Just behind what a row holds: a sequence will write its next token there, and what is
        resident ends there. A resident of ``max_length`` tokens loses its last.

        Returns:
            A position in each row; None if a sequence has no room for it.
        """
        running, positions = self.running, []
        for row in range(first, first + count):
            if row < len(running):
                position = running[row].num_cached_tokens
                if position == max_length:
                    return None
            else:
                self._residents.cut(row, max_length - 1)
                position = self._residents.num_tokens(row)
            positions.append(position)
        return positions

    def clear(self, sequence: DecodingSequence) -> None:
        """Zeroes what a failed sequence holds, if it runs: before rows move, and none is spared."""
        if sequence.id in self._sequences:
            self._cache.clear(self.slot_of(sequence))

    def release(self, sequence: DecodingSequence) -> None:
        """Frees its row; what it holds stays resident if it is worth it, and did not fail."""
        before = self.running
        cycle = self._slots.release(sequence.id, keep_last=self._has_prefilling_last(before))
        kept = sequence.tokens[: sequence.num_cached_tokens]
        if sequence.is_failed:
            kept = []
        keep = self._residents.keep(cycle[-1], kept)
        spans = [_span(before[row]) for row in cycle]
        self._cache.rotate(cycle, spans, keep_first=keep)
        del self._sequences[sequence.id]

    def _free_rows(self) -> Iterator[int]:
        yield from range(self._slots.num_used, self._slots.capacity)

    def _has_prefilling_last(self, running: Sequence[DecodingSequence] = ()) -> bool:
        rows = running or self.running
        return bool(rows) and rows[-1].num_remaining_tokens > 1


def _span(sequence: DecodingSequence) -> Span:
    return Span(sequence.num_cached_tokens, sequence.num_source_tokens)
