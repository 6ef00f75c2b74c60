"""Reserves places in a model's queue for clients that use less than their share of it."""

from server.engine.requests.job import Cost

# A client counts as waiting for this many seconds after it was refused.
_WAITING_SECONDS = 10.0
_RESERVED = 1 / 3  # the reserved part of the limits, while several clients want places


class ClientShares:
    """Tracks how much of one model's limits each client uses.

    While several clients want places, the last third of the limits is for clients below an equal
    share. A single client may use all.

    Args:
        max_accepted: the model's limits.
    """

    def __init__(self, max_accepted: Cost) -> None:
        self._max_accepted = max_accepted
        self._held: dict[str, Cost] = {}
        self._client_of: dict[int, str] = {}  # by job
        self._refused: dict[str, float] = {}  # when, by client

    def exceeds(self, client: str, cost: Cost, accepted: Cost, now: float) -> bool:
        """Whether a request must leave its places to other clients.

        Args:
            client: the client that sends the request.
            cost: the cost of the request.
            accepted: the accepted cost of all clients together.
            now: the current time in seconds.
        """
        recent = {c for c, at in self._refused.items() if at > now - _WAITING_SECONDS}
        num_clients = len(recent | self._held.keys() | {client})
        if num_clients == 1:
            return False
        held = self._held.get(client, Cost(0, 0)) + cost
        total, limit = accepted + cost, self._max_accepted
        is_over = (
            held.num_sequences * num_clients > limit.num_sequences
            or held.num_tokens * num_clients > limit.num_tokens
        )
        unreserved = 1.0 - _RESERVED
        return is_over and (
            total.num_sequences > unreserved * limit.num_sequences
            or total.num_tokens > unreserved * limit.num_tokens
        )

    def refuse(self, client: str, now: float) -> None:
        """Records that a request of ``client`` was refused: the client counts as waiting."""
        if len(self._refused) > 1000:
            recent = {c: at for c, at in self._refused.items() if at > now - _WAITING_SECONDS}
            self._refused = recent
        self._refused[client] = now

    def add(self, id_: int, client: str, cost: Cost) -> None:
        """Adds the cost of an accepted job to its client's."""
        self._client_of[id_] = client
        self._held[client] = self._held.get(client, Cost(0, 0)) + cost

    def remove(self, id_: int, cost: Cost) -> None:
        """Subtracts the cost of an ended job from its client's."""
        client = self._client_of.pop(id_)
        held = self._held.pop(client) - cost
        if held.num_sequences:
            self._held[client] = held
