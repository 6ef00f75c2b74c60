"""Counts the calls in flight, so that a model is unloaded only after its calls have ended."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class CallsInFlight:
    """Calls in flight by model name. Use it on the event loop only."""

    def __init__(self) -> None:
        self._ends: dict[str, set[asyncio.Future[None]]] = {}

    @contextmanager
    def of(self, model: str) -> Iterator[None]:
        """Marks a call as in flight. Enter it before looking up the model by name."""
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
        """Waits for the calls in flight now; later calls are not waited for."""
        ends = self._ends.get(model)
        if ends:
            await asyncio.wait(tuple(ends))
