"""Counts the calls in flight, so that a model is unloaded only after its calls have ended."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from model.adapters import bundle_of


class CallsInFlight:
    """Calls in flight by bundle. Use it on the event loop only."""

    def __init__(self) -> None:
        self._ends: dict[str, set[asyncio.Future[None]]] = {}

    @contextmanager
    def of(self, model: str) -> Iterator[None]:
        """Marks a call as in flight, of a bundle or of one of its adapters.

        Enter it before looking up the model by name.
        """
        bundle = bundle_of(model)
        end = asyncio.get_running_loop().create_future()
        ends = self._ends.setdefault(bundle, set())
        ends.add(end)
        try:
            yield
        finally:
            end.set_result(None)
            ends.discard(end)
            if not ends:
                self._ends.pop(bundle, None)

    async def ended(self, bundle: str) -> None:
        """Waits for the calls in flight now; later calls are not waited for."""
        ends = self._ends.get(bundle)
        if ends:
            await asyncio.wait(tuple(ends))
