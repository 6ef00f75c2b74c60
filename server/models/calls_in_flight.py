"""Which calls are under way: a model that is not offered any more waits for those that have it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class CallsInFlight:
    """Calls by the name of the model they asked for. All of it on the event loop."""

    def __init__(self) -> None:
        self._ends: dict[str, set[asyncio.Future[None]]] = {}

    @contextmanager
    def of(self, model: str) -> Iterator[None]:
        """Around all use of a model, from the look-up of its name on."""
        end = asyncio.get_running_loop().create_future()
        ends = self._ends.setdefault(model, set())
        ends.add(end)
        try:
            yield
        finally:
            end.set_result(None)
            ends.discard(end)
            if not ends:
                self._ends.pop(model, None)

    async def ended(self, model: str) -> None:
        """Waits for the calls that are under way now, not for those that come."""
        ends = self._ends.get(model)
        if ends:
            await asyncio.wait(tuple(ends))
