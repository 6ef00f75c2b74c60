"""``python -m tests.soak.other_protocols TARGET HTTP_URL SEED``: a client of the other protocols.

It makes valid and invalid calls of the Open Inference Protocol, by gRPC and HTTP, and of the HTTP
APIs, and reads, leaves or stalls streams, until it is killed.
"""

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import httpx2

from protos.inference import open_inference_pb2_grpc
from tests.server.oip.messages import infer_request

NUM_CALLERS = 3
TIMEOUT_SECONDS = 60.0
STALL_SECONDS = 1.0
TEXTS = ("3 March 2021", "Monday, 5 May 1999", "12,", "The house is red.", "a1b2c3", "x" * 40)
LONG = {"model": "tiny-decoder", "max_tokens": 200, "ignore_eos": True, "stream": True}

Action = Callable[["Caller"], Awaitable[object]]


class Caller:
    """One concurrent caller, with a channel and an HTTP client of its own."""

    def __init__(self, channel: grpc.aio.Channel, client: httpx2.AsyncClient, seed: int) -> None:
        self.oip: Any = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        self.client = client
        self.rng = random.Random(seed)

    @property
    def text(self) -> str:
        return self.rng.choice(TEXTS)

    def infer(self, model: str, options: dict[str, Any], **inputs: Any) -> Awaitable[object]:
        request = infer_request(model, options, **inputs)
        answer: Awaitable[object] = self.oip.ModelInfer(request, timeout=TIMEOUT_SECONDS)
        return answer

    async def infer_stream(self, num_responses: int | None) -> None:
        """Reads a stream: all of it, or ``num_responses`` and then cancels the call."""
        request = infer_request("tiny-decoder", {"max_new_tokens": 24}, text_input=[self.text])
        call = self.oip.ModelStreamInfer(iter([request]), timeout=TIMEOUT_SECONDS)
        number = 0
        async for _ in call:
            number += 1
            if number == num_responses:
                call.cancel()
                return

    def post(self, path: str, **body: Any) -> Awaitable[object]:
        return self.client.post(path, json=body)

    async def stream(self, num_lines: int | None, *, stalls: bool = False, **body: Any) -> None:
        """Reads events: all of them, or ``num_lines``; then stalls and leaves."""
        async with self.client.stream("POST", "/v1/completions", json=LONG | body) as answer:
            number = 0
            async for _ in answer.aiter_lines():
                number += 1
                if number == num_lines:
                    await asyncio.sleep(STALL_SECONDS if stalls else 0)
                    return

    async def forever(self) -> None:
        while True:
            try:
                await self.rng.choice(ACTIONS)(self)
            except (grpc.RpcError, httpx2.HTTPError, asyncio.CancelledError):
                continue


ACTIONS: tuple[Action, ...] = (
    lambda c: c.infer("tiny-decoder", {"max_new_tokens": 8}, text_input=[c.text, c.text]),
    lambda c: c.infer("dates", {}, text_input=["3 March 2021"]),
    lambda c: c.infer("embedder", {}, text_input=[c.text]),
    lambda c: c.infer("judge", {}, query=[c.text], passages=["a city", c.text]),
    lambda c: c.infer_stream(None),
    lambda c: c.infer_stream(2),
    lambda c: c.post("/v1/completions", model="tiny-decoder", prompt=c.text, max_tokens=8),
    lambda c: c.stream(None, prompt=c.text, max_tokens=24),
    lambda c: c.stream(4, prompt=c.text),
    lambda c: c.stream(2, stalls=True, prompt=[c.text] * 4, logprobs=50),
    lambda c: c.post("/v1/embeddings", model="embedder", input=[c.text, c.text]),
    lambda c: c.post("/v2/rerank", model="judge", query=c.text, documents=["a city", c.text]),
    lambda c: c.post("/tokenize", model="tiny-decoder", prompt=c.text),
    lambda c: c.post(
        "/v2/models/embedder/infer",
        inputs=[{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [c.text]}],
    ),
    # Invalid calls.
    lambda c: c.infer("tiny-decoder", {"temperature": -1.0}, text_input=[c.text]),
    lambda c: c.infer("nobody", {}, text_input=[c.text]),
    lambda c: c.infer("embedder", {}, pixels=[c.text]),
    lambda c: c.post("/v1/completions", model="tiny-decoder", prompt=c.text, temperature=-1),
    lambda c: c.post("/v1/completions", model="nobody", prompt=c.text),
    lambda c: c.client.post("/v1/embeddings", content=b"[" * 1000),
    lambda c: c.client.post("/v1/nothing", content=b"{}"),
)


async def main(target: str, url: str, seed: int) -> None:
    """Makes calls until killed."""
    async with (
        grpc.aio.insecure_channel(target) as channel,
        httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_SECONDS) as client,
    ):
        callers = [Caller(channel, client, seed * 100 + number) for number in range(NUM_CALLERS)]
        await asyncio.gather(*(caller.forever() for caller in callers))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
