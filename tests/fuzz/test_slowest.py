"""The search for slow requests covers every call, and finds a planted slow path."""

import time
from typing import Any

import pytest

from protos.triune.v1 import inference_pb2
from server.frontends.grpc.inference import InferenceServicer
from tests.fuzz.service import CALLS
from tests.fuzz.slowest import Search
from tests.fuzz.targets import protocol_costs

NUM_INPUTS = 2000


def test_every_call_is_searched() -> None:
    service = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
    assert {method for method, *_ in CALLS} == {method.name for method in service.methods}
    assert {"/v1/chat/completions", "/translate", "/v2/rerank", "ModelInfer"} <= {
        *protocol_costs.calls()
    }


@pytest.mark.slow
def test_search_finds_a_planted_slow_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call whose time on the event loop grows with the square of brackets in its texts."""
    tokenize = InferenceServicer.Tokenize

    async def slow(self: Any, request: Any, context: Any) -> Any:
        brackets = sum(text.count("((") for text in request.inputs)
        end = time.thread_time() + min(1e-6 * brackets**2, 0.1)
        while time.thread_time() < end:
            pass
        return await tokenize(self, request, context)

    monkeypatch.setattr(InferenceServicer, "Tokenize", slow)
    search = Search(1, only=["Tokenize"])
    search.run(seconds=300, max_inputs=NUM_INPUTS, stops_at_first=True)
    assert set(search.worst) == {method for method, *_ in CALLS} | {*protocol_costs.calls()}
    assert "Tokenize" in {cost.method for cost in search.too_slow}
