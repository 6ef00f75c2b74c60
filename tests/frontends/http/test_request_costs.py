"""What one request can cost before it is refused."""

import tracemalloc

import pytest

from server.errors import InvalidArgumentError
from server.frontends.http.openai.decisions import (
    MAX_CHARACTERS,
    MAX_QUESTIONS,
    DecisionsBody,
    Predicate,
    decisions,
)
from tests.frontends.http.calls import call_of


async def test_decisions_are_refused_before_their_prompts_are_built() -> None:
    body = DecisionsBody(
        model="m",
        input="a" * MAX_CHARACTERS,
        questions=[Predicate(instructions="b")] * MAX_QUESTIONS,
    )
    call = call_of(body)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgumentError, match="questions: have .* characters to score"):
            await decisions(call)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MAX_CHARACTERS
