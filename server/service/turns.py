"""Interleaves long work on the event loop, piece by piece."""

import asyncio


class Turns:
    """Divides the event loop among calls with long work: each waits for its turn before a piece.

    Between two pieces, the event loop runs all other ready callbacks once. So a short call waits
    for at most one piece per loop iteration, however many long calls there are. Turns are granted
    in order of arrival.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def take(self) -> None:
        """Waits for a turn. The next turn starts one loop iteration later."""
        async with self._lock:
            await asyncio.sleep(0)
