"""Memory of decoded images and recordings: bounded for all clients, and shared among them."""

from contextlib import ExitStack

import pytest

from server.errors import InvalidArgumentError, Limit, OverloadedError
from server.service.decoded_memory import DecodedMemory


def test_clients_that_want_more_than_there_is_get_their_shares() -> None:
    memory = DecodedMemory(limit=100)
    with ExitStack() as calls:
        calls.enter_context(memory.reserve(90, "greedy", "images"))
        with pytest.raises(OverloadedError) as caught, memory.reserve(20, "greedy", "images"):
            pass
        assert caught.value.limit == Limit.DECODED_MEMORY
        calls.enter_context(
            memory.reserve(50, "polite", "images")
        )  # its half, although 90 are taken
        with pytest.raises(OverloadedError), memory.reserve(1, "polite", "images"):
            pass
        assert memory.num_bytes == 140
    assert memory.num_bytes == 0
    with memory.reserve(100, "greedy", "images"):
        assert memory.num_bytes == 100


def test_a_call_that_fails_gives_its_memory_back() -> None:
    memory = DecodedMemory(limit=100)
    with pytest.raises(ValueError, match="damaged"), memory.reserve(60, "a", "images"):
        raise ValueError("damaged")
    assert memory.num_bytes == 0


def test_a_request_beyond_the_whole_memory_is_refused_for_good() -> None:
    with (
        pytest.raises(InvalidArgumentError, match="at most 100"),
        DecodedMemory(100).reserve(101, "", "images"),
    ):
        pass
