"""The sender of the Open Inference Protocol over gRPC: ``ModelInfer`` and ``ModelStreamInfer``."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc.aio

from loadtest.compare.errors import MalformedReplyError
from loadtest.compare.http_senders import TIMEOUT_SECONDS, Sender, fit_to_total
from loadtest.compare.loads import Request
from loadtest.driver import Clock, Response
from loadtest.statistics import TokenArrival
from loadtest.tasks import Task
from protos.inference import open_inference_pb2 as wire

_METHOD = "/inference.GRPCInferenceService/{}"
_TEXT, _COUNT, _VECTOR = "text_output", "num_output_tokens", "embedding_output"


@asynccontextmanager
async def open_inference(task: Task, model: str, port: int, clock: Clock) -> AsyncIterator[Sender]:
    """Each generation is a stream of its own; translations and vectors are single responses."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        infer: Any = channel.unary_unary(
            _METHOD.format("ModelInfer"),
            response_deserializer=wire.ModelInferResponse.FromString,
        )
        stream: Any = channel.stream_stream(
            _METHOD.format("ModelStreamInfer"),
            response_deserializer=wire.ModelStreamInferResponse.FromString,
        )

        async def generate(payload: bytes) -> Response:
            arrivals: list[TokenArrival] = []
            piece: wire.ModelStreamInferResponse | None = None
            async for piece in stream(iter((payload,)), timeout=TIMEOUT_SECONDS):
                if piece.error_message:
                    raise MalformedReplyError(piece.error_message)
                arrivals.append(TokenArrival(clock.now(), 1))
            if piece is None:
                raise MalformedReplyError("the stream ended without its last piece")
            return Response(arrivals=fit_to_total(arrivals, _num_tokens(piece.infer_response)))

        async def translate(payload: bytes) -> Response:
            reply: wire.ModelInferResponse = await infer(payload, timeout=TIMEOUT_SECONDS)
            return Response(arrivals=(TokenArrival(clock.now(), _num_tokens(reply)),))

        async def embed(payload: bytes) -> Response:
            reply: wire.ModelInferResponse = await infer(payload, timeout=TIMEOUT_SECONDS)
            _output(reply, _VECTOR)
            return Response()

        call = {Task.GENERATE: generate, Task.TRANSLATE: translate, Task.EMBED: embed}[task]
        yield Sender(partial(_encode, task, model), call)


def _encode(task: Task, model: str, request: Request) -> bytes:
    message = wire.ModelInferRequest(model_name=model)
    message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    text = request.text.encode()
    message.raw_input_contents.append(struct.pack("<I", len(text)) + text)
    if task != Task.EMBED:
        message.parameters["max_new_tokens"].int64_param = request.num_new_tokens
        message.parameters["ignore_eos"].bool_param = True
        if request.beams > 1:
            message.parameters["beam_size"].int64_param = request.beams
        for name in (_TEXT, _COUNT):
            message.outputs.add(name=name)
    return message.SerializeToString()


def _num_tokens(reply: wire.ModelInferResponse) -> int:
    (count,) = struct.unpack("<I", _output(reply, _COUNT))
    return int(count)


def _output(reply: wire.ModelInferResponse, name: str) -> bytes:
    """The raw contents of an output. Raises ``MalformedReplyError`` if it is missing or empty."""
    for tensor, raw in zip(reply.outputs, reply.raw_output_contents, strict=True):
        if tensor.name == name and raw:
            return raw
    raise MalformedReplyError(f"the response has no {name}")
