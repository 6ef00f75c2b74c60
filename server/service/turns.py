"""Long work on the event loop, one piece at a time."""

import asyncio


class Turns:
    """Divides the event loop among calls with long work: each waits for its turn before a piece.

    Between two pieces the loop serves everything else once, so a short call waits for one piece per
    round of the loop, however many long calls there are. Turns are given in order of arrival.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def take(self) -> None:
        """Waits for a turn. The next one begins a round of the loop later."""
        async with self._lock:
            await asyncio.sleep(0)
