"""Sequences that wait for a slot, in the order to serve them."""

import bisect
import heapq
from dataclasses import dataclass, field

from server.engine.requests.sequence import DecodingSequence

# One step of priority counts as this much waiting time, so that low priorities do not starve.
PRIORITY_SECONDS = 10.0


@dataclass(slots=True)
class _ClientQueue:
    """One client's sequences, by arrival and priority. ``served``: the client's virtual time."""

    served: float
    keys: list[tuple[float, int]] = field(default_factory=list)
    items: list[DecodingSequence] = field(default_factory=list)


class WaitingQueue:
    """Gives clients equal shares: start-time fair queueing by tokens (Goyal et al. 1996).

    The next sequence is one of the client with the smallest virtual time, which grows by the tokens
    of each admitted job. A client's own sequences are in the order of arrival; each step of
    priority counts as an arrival :data:`PRIORITY_SECONDS` earlier.
    """

    def __init__(self) -> None:
        self._clients: dict[str, _ClientQueue] = {}  # clients with waiting sequences
        self._client_of: dict[int, str] = {}  # by sequence id
        self._served: dict[str, float] = {}  # virtual time of clients with no waiting sequence
        self._virtual_time = 0.0
        self._order: list[DecodingSequence] | None = None

    def __len__(self) -> int:
        return len(self._client_of)

    @property
    def items(self) -> list[DecodingSequence]:
        """All sequences in the order to serve them; callers must not change the list."""
        if self._order is None:
            self._order = self._merged()
        return self._order

    def add(self, sequence: DecodingSequence, now: float) -> None:
        """Adds ``sequence``, which arrives at ``now`` (seconds)."""
        client = sequence.job.client
        if client not in self._clients:
            served = max(self._served.pop(client, 0.0), self._virtual_time)
            self._clients[client] = _ClientQueue(served)
        queue = self._clients[client]
        key = (now - PRIORITY_SECONDS * sequence.job.priority, sequence.id)
        index = bisect.bisect(queue.keys, key)
        queue.keys.insert(index, key)
        queue.items.insert(index, sequence)
        self._client_of[sequence.id] = client
        self._order = None

    def admit(self, id_: int) -> DecodingSequence:
        """Removes and returns a sequence to run. Raises ``KeyError`` if it does not wait."""
        queue = self._clients[self._client_of[id_]]
        self._virtual_time = max(self._virtual_time, queue.served)
        sequence = self._take(id_, cost=True)
        if len(self._served) > 64 + len(self._clients):
            ahead = {c: s for c, s in self._served.items() if s > self._virtual_time}
            self._served = ahead
        return sequence

    def discard(self, id_: int) -> bool:
        """Removes a sequence if it waits. Returns whether it did."""
        if id_ not in self._client_of:
            return False
        self._take(id_, cost=False)
        return True

    def _take(self, id_: int, *, cost: bool) -> DecodingSequence:
        client = self._client_of.pop(id_)
        queue = self._clients[client]
        index = next(i for i, sequence in enumerate(queue.items) if sequence.id == id_)
        del queue.keys[index]
        sequence = queue.items.pop(index)
        queue.served += sequence.job.cost.num_tokens * cost
        if not queue.items:
            self._served[client] = queue.served
            del self._clients[client]
        self._order = None
        return sequence

    def _merged(self) -> list[DecodingSequence]:
        if len(self._clients) == 1:
            (queue,) = self._clients.values()
            return list(queue.items)
        # (virtual time, arrival of the next sequence, its index, its queue)
        heads = [(queue.served, queue.keys[0], 0, queue) for queue in self._clients.values()]
        heapq.heapify(heads)
        order = []
        while heads:
            served, _, index, queue = heads[0]
            sequence = queue.items[index]
            order.append(sequence)
            index += 1
            if index == len(queue.items):
                heapq.heappop(heads)
            else:
                served += sequence.job.cost.num_tokens
                heapq.heapreplace(heads, (served, queue.keys[index], index, queue))
        return order
