"""The cache of a worker: running sequences in the first slots, cached prefixes in later ones."""

from collections.abc import Sequence
from typing import NamedTuple

from server.engine.cache.prefix_cache import PrefixCache, PrefixMatch, best_match
from server.engine.cache.slot_tensors import SlotTensors, Span
from server.engine.cache.slots import SlotTable
from server.engine.requests.lifecycle import Phase
from server.engine.requests.sequence import DecodingSequence


class SlotCopy(NamedTuple):
    """Copies the cached tokens of ``source``, from ``first_token`` on, to the slot of ``target``.

    Both sequences have the same encoder source.
    """

    source: DecodingSequence
    target: DecodingSequence
    first_token: int


class SlotStore:
    """Updates together: which slot holds what (:class:`SlotTable`), its tokens, and its tensors.

    Args:
        cache: the tensors.
        num_slots: slots of ``cache``.
        max_length: tokens that a slot holds.

    Attributes:
        running: sequences in slot order.
    """

    def __init__(self, cache: SlotTensors, num_slots: int, max_length: int) -> None:
        self.running: tuple[DecodingSequence, ...] = ()
        self._cache = cache
        self._max_length = max_length
        self._slots = SlotTable(num_slots, max_length)
        self._prefixes = PrefixCache(is_enabled=cache.holds_prefixes)
        self._sequences: dict[int, DecodingSequence] = {}
        self._slot_of: dict[int, int] = {}
        self._matches: dict[int, PrefixMatch] = {}

    def __repr__(self) -> str:
        return repr(self._slots)

    def get(self, id_: int) -> DecodingSequence:
        """The running sequence ``id_``. Raises ``KeyError`` if it does not run."""
        return self._sequences[id_]

    def slot_of(self, sequence: DecodingSequence) -> int:
        """The slot that ``sequence`` owns. Raises ``KeyError`` if it does not run."""
        return self._slot_of[sequence.id]

    def match_prefixes(self, waiting: Sequence[DecodingSequence]) -> None:
        """Finds which first tokens of the next sequences to admit can be copied from another slot.

        They count as cached at once. :meth:`admit` makes the copy; :meth:`discard_matches` resets
        the count of sequences that are not admitted. The ``n``-th to be admitted gets the ``n``-th
        available slot, so it can copy from running slots, from those admitted before it, and from
        cached prefixes that are not overwritten by then.
        """
        self._matches.clear()
        if not (self._prefixes.is_enabled and waiting and self._slots.num_available):
            return
        filled: list[tuple[int, Sequence[int]]] = [
            (slot, sequence.tokens[: sequence.num_cached_tokens])
            for slot, sequence in enumerate(self.running)
        ]
        available = range(self._slots.num_running, self._slots.num_slots)
        for slot, sequence in zip(available, waiting, strict=False):
            if sequence.job.logprob_options.prefills_alone:
                continue
            found = best_match(sequence.tokens, [*self._prefixes.prefixes(slot), *filled])
            if found is not None:
                self._matches[sequence.id] = found
                sequence.num_cached_tokens = found.num_tokens
                filled.append((slot, sequence.tokens[: found.num_tokens]))

    def discard_matches(self, waiting: Sequence[DecodingSequence]) -> None:
        """Drops all matches: sequences that still wait have nothing cached."""
        for sequence in waiting:
            if sequence.id in self._matches:
                sequence.num_cached_tokens = 0
        self._matches.clear()

    def admit(self, sequence: DecodingSequence) -> None:
        """Gives ``sequence`` the next slot, and copies its matched prefix into it."""
        self._slots.acquire(sequence.id)
        slot = self._slots.slot_of(sequence.id)
        self._prefixes.remove(slot)
        self._sequences[sequence.id] = sequence
        self._refresh()
        match = self._matches.get(sequence.id)
        if match is None:
            self._cache.reset(slot)
        elif match.slot != slot:
            self._cache.copy(match.slot, slot, Span(match.num_tokens))

    def fork(self, parent: DecodingSequence, child: DecodingSequence) -> None:
        """Gives ``child`` a slot with a copy of ``parent``'s. Call it after all runs of a step."""
        self._prefixes.remove(self._slots.num_running)
        move = self._slots.acquire(child.id, before_last=self._is_last_prefilling())
        self._sequences[child.id] = child
        self._refresh()
        if move is not None:
            self._cache.copy(move.source, move.target, _span(self.running[move.target]))
        self._cache.copy(self.slot_of(parent), self.slot_of(child), _span(parent))

    def copy(self, copies: Sequence[SlotCopy]) -> None:
        """Makes all copies, as if every source were read before any write."""
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

    def padding_positions(self, first_slot: int, count: int) -> list[int] | None:
        """The positions to which padding slots write a dummy token.

        Each is just after the slot's tokens, where the slot's next token overwrites it. A cached
        prefix that fills its slot loses its last token.

        Returns:
            A position in each slot ``first_slot … first_slot+count-1``; None if a running
            sequence fills its slot.
        """
        positions = []
        for slot in range(first_slot, first_slot + count):
            if slot < len(self.running):
                position = self.running[slot].num_cached_tokens
                if position == self._max_length:
                    return None
            else:
                self._slots.trim_prefix(slot, self._max_length - 1)
                self._prefixes.trim(slot, self._max_length - 1)
                position = self._slots.num_prefix_tokens(slot)
            positions.append(position)
        return positions

    def clear(self, sequence: DecodingSequence) -> None:
        """Zeroes the slot of a failed sequence, if it runs.

        Call it before any slot moves: values that are not finite must not reach another slot.
        """
        if sequence.id in self._slot_of:
            self._cache.clear(self.slot_of(sequence))

    def release(self, sequence: DecodingSequence) -> None:
        """Releases the slot. Its tokens stay as a cached prefix, unless the sequence failed."""
        before = self.running
        tokens = sequence.tokens[: sequence.num_cached_tokens]
        keeps = sequence.phase != Phase.FAILED and self._prefixes.is_worth_keeping(tokens)
        cycle = self._slots.release(
            sequence.id,
            keep_last=self._is_last_prefilling(),
            num_prefix_tokens=len(tokens) if keeps else 0,
        )
        if keeps:
            self._prefixes.add(cycle[-1], tokens)
        self._cache.rotate(cycle, [_span(before[slot]) for slot in cycle], keep_first=keeps)
        del self._sequences[sequence.id]
        self._refresh()

    def check(self) -> None:
        """Checks that every slot and token is accounted for. For tests: it visits every slot.

        Raises:
            RuntimeError: see :meth:`SlotTable.check`; or a slot's tokens differ from those of its
                owner or its cached prefix.
        """
        self._slots.check()
        if self._slots.ids != tuple(sequence.id for sequence in self.running):
            raise RuntimeError(f"{self._slots.ids} own slots, {self.running} run")
        if self._slot_of != {sequence.id: slot for slot, sequence in enumerate(self.running)}:
            raise RuntimeError(f"{self._slot_of} does not match {self.running}")
        for sequence in self.running:
            limit = min(len(sequence.tokens), self._max_length)
            if not 0 <= sequence.num_cached_tokens <= limit:
                raise RuntimeError(
                    f"sequence {sequence.id} has {sequence.num_cached_tokens} tokens cached, "
                    f"{len(sequence.tokens)} in all"
                )
        held = {slot: len(tokens) for slot, tokens in self._prefixes.prefixes()}
        slots = range(self._slots.num_slots)
        if held != {slot: n for slot in slots if (n := self._slots.num_prefix_tokens(slot))}:
            raise RuntimeError(f"the cached prefixes {held} are not those of {self._slots!r}")

    def _refresh(self) -> None:
        """Derives ``running`` and the slots of its sequences from the table."""
        self.running = tuple(self._sequences[id_] for id_ in self._slots.ids)
        self._slot_of = {sequence.id: slot for slot, sequence in enumerate(self.running)}

    def _is_last_prefilling(self) -> bool:
        return bool(self.running) and self.running[-1].num_remaining_tokens > 1


def _span(sequence: DecodingSequence) -> Span:
    return Span(sequence.num_cached_tokens, sequence.num_source_tokens)
