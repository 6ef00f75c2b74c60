"""Senders for gRPC servers: ours, and CTranslate2 behind grpc.aio."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc.aio
import msgspec

from client import encoder_requests, requests
from loadtest.compare.errors import MalformedReplyError
from loadtest.compare.http_senders import TIMEOUT_SECONDS, Sender, fit_to_total
from loadtest.compare.loads import Request
from loadtest.driver import Clock, Response
from loadtest.statistics import TokenArrival
from loadtest.tasks import Task
from protos.triune.v1 import encoding_pb2
from protos.triune.v1 import inference_pb2 as wire

_METHOD = "/triune.v1.InferenceService/{}"

TRANSLATE_METHOD = "/peer.Translator/Translate"


@asynccontextmanager
async def triune(task: Task, model: str, port: int, clock: Clock) -> AsyncIterator[Sender]:
    """Our own server. Responses are parsed, but not converted to the client's types."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stream: Any = channel.unary_stream(
            _METHOD.format("GenerateStream"),
            response_deserializer=wire.GenerateStreamResponse.FromString,
        )
        translation: Any = channel.unary_unary(
            _METHOD.format("Translate"), response_deserializer=wire.TranslateResponse.FromString
        )
        embedding: Any = channel.unary_unary(
            _METHOD.format("Embed"), response_deserializer=encoding_pb2.EmbedResponse.FromString
        )

        async def generate(payload: bytes) -> Response:
            arrivals: list[TokenArrival] = []
            piece: wire.GenerateStreamResponse | None = None
            async for piece in stream(payload, timeout=TIMEOUT_SECONDS):
                arrivals.append(TokenArrival(clock.now(), len(piece.token_ids)))
            if piece is None or not piece.HasField("usage"):
                raise MalformedReplyError("the stream ended without its last piece")
            return Response(arrivals=fit_to_total(arrivals, piece.usage.output_tokens))

        async def translate(payload: bytes) -> Response:
            reply: wire.TranslateResponse = await translation(payload, timeout=TIMEOUT_SECONDS)
            return _unary_response(reply.usage.output_tokens, clock)

        async def embed(payload: bytes) -> Response:
            reply: encoding_pb2.EmbedResponse = await embedding(payload, timeout=TIMEOUT_SECONDS)
            if not reply.outputs[0].packed:
                raise MalformedReplyError("the response has no vector")
            return Response()

        call = {Task.GENERATE: generate, Task.TRANSLATE: translate, Task.EMBED: embed}[task]
        yield Sender(partial(_encode, task, model), call)


def _encode(task: Task, model: str, request: Request) -> bytes:
    """The request as our client builds it."""
    if task == Task.EMBED:
        return encoder_requests.embed(model, request.text, {}).SerializeToString()
    options: Any = {"max_new_tokens": request.num_new_tokens, "ignore_eos": True}
    if request.beams > 1:
        options["beam_size"] = request.beams
    if task == Task.TRANSLATE:
        message = requests.translate(wire.TranslateRequest, model, request.text, "", "", options)
        return message.SerializeToString()
    options["token_ids"] = True
    return requests.generate(
        wire.GenerateStreamRequest,
        model,
        request.text,
        token_inputs=(),
        messages=(),
        options=options,
    ).SerializeToString()


@asynccontextmanager
async def json_grpc(task: Task, model: str, port: int, clock: Clock) -> AsyncIterator[Sender]:
    """JSON over gRPC: ``loadtest/peers/ctranslate2_server.py``."""
    del task, model
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method: Any = channel.unary_unary(TRANSLATE_METHOD)

        def encode(request: Request) -> bytes:
            body = {
                "text": request.text,
                "max_new_tokens": request.num_new_tokens,
                "beams": request.beams,
            }
            return msgspec.json.encode(body)

        async def call(payload: bytes) -> Response:
            reply: Any = await method(payload, timeout=TIMEOUT_SECONDS)
            return _unary_response(msgspec.json.decode(reply)["num_tokens"], clock)

        yield Sender(encode, call)


def _unary_response(num_tokens: int, clock: Clock) -> Response:
    """The response of a call that returns all tokens at once."""
    return Response(arrivals=(TokenArrival(clock.now(), num_tokens),))
