"""Bounds the memory of decoded images and recordings, until their calls end."""

from collections.abc import Iterator
from contextlib import contextmanager

from server.bounds import MAX_DECODED_BYTES
from server.errors import RETRY_SECONDS, InvalidArgumentError, Limit, OverloadedError


class DecodedMemory:
    """Counts bytes of decoded images and recordings of all calls. Use it on the event loop only.

    Each client may use its equal share of ``limit``, even if others have used up the rest.
    """

    def __init__(self, limit: int = MAX_DECODED_BYTES) -> None:
        self._limit = limit
        self._by_client: dict[str, int] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes that all calls hold together."""
        return sum(self._by_client.values())

    @contextmanager
    def reserve(self, num_bytes: int, client: str, field: str) -> Iterator[None]:
        """Counts ``num_bytes`` for ``client`` while the block runs.

        ``field`` is the request field, for errors.

        Raises:
            InvalidArgumentError: ``num_bytes`` exceeds the limit of all calls together.
            OverloadedError: too many bytes are in use, and the client would exceed its share.
        """
        if num_bytes > self._limit:
            raise InvalidArgumentError(
                field, f"{num_bytes} bytes when decoded, at most {self._limit} are accepted"
            )
        own = self._by_client.get(client, 0)
        num_clients = len(self._by_client) + (client not in self._by_client)
        is_beyond_share = own + num_bytes > self._limit // num_clients
        if self.num_bytes + num_bytes > self._limit and is_beyond_share:
            raise OverloadedError(
                "too many images and recordings are in progress",
                RETRY_SECONDS,
                Limit.DECODED_MEMORY,
            )
        self._by_client[client] = own + num_bytes
        try:
            yield
        finally:
            self._by_client[client] -= num_bytes
            if not self._by_client[client]:
                del self._by_client[client]
