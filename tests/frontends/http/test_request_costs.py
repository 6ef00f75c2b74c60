"""What one request can cost before it is refused."""

import tracemalloc

import msgspec
import pytest
from starlette.datastructures import Headers

from server.errors import InvalidArgumentError
from server.frontends.http import oip_codec
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
        with pytest.raises(InvalidArgumentError, match="characters to score"):
            await decisions(call)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MAX_CHARACTERS


def test_unknown_datatypes_leave_nothing_behind() -> None:
    def decode(datatype: str) -> None:
        tensor = {"name": "text_input", "shape": [1], "datatype": datatype, "data": [1]}
        oip_codec.decode_infer(msgspec.json.encode({"inputs": [tensor]}), Headers({}))

    before = oip_codec.data_decoder.cache_info().currsize
    for number in range(10):
        with pytest.raises(InvalidArgumentError, match="text_input: datatype 'INT"):
            decode(f"INT{number}x")
    assert oip_codec.data_decoder.cache_info().currsize == before
    decode("INT64")
