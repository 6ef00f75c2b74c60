"""Long work on the event loop: one piece per round, in order of arrival."""

import asyncio
from collections import Counter

from server.service.turns import Turns


async def _count_pieces(num_calls: int, num_pieces: int) -> tuple[list[int], Counter[int]]:
    """Runs calls at once. Returns the calls in the order of pieces, and pieces by round."""
    turns, loop = Turns(), asyncio.get_running_loop()
    order: list[int] = []
    by_round: Counter[int] = Counter()
    current, is_done = 0, False

    def begin_round() -> None:
        nonlocal current
        current += 1
        if not is_done:
            loop.call_soon(begin_round)

    async def call(name: int) -> None:
        for _ in range(num_pieces):
            await turns.take()
            order.append(name)
            by_round[current] += 1

    begin_round()
    await asyncio.gather(*(call(name) for name in range(num_calls)))
    is_done = True
    return order, by_round


def test_a_round_of_the_loop_has_one_piece_at_most() -> None:
    order, by_round = asyncio.run(_count_pieces(5, 4))
    assert len(order) == 20
    assert max(by_round.values()) == 1


def test_calls_alternate() -> None:
    order, _ = asyncio.run(_count_pieces(3, 4))
    assert order == [0, 1, 2] * 4


def test_a_cancelled_call_passes_its_turn_on() -> None:
    async def check() -> bool:
        turns = Turns()
        first = asyncio.create_task(turns.take())
        second = asyncio.create_task(turns.take())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait_for(second, 10)
        return first.cancelled()

    assert asyncio.run(check())
