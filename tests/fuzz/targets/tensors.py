"""Requests of the Open Inference Protocol, by gRPC and by HTTP: tensors, parameters, contents."""

import json
import random
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from starlette.datastructures import Headers

from protos.inference import open_inference_pb2 as pb
from server.errors import ServeError
from server.frontends.grpc.oip_codec import decode_infer
from server.frontends.grpc.oip_infer import encoded
from server.frontends.http import oip_codec as http
from server.frontends.oip.infer import Inference
from server.frontends.oip.messages import InferRequest
from server.frontends.oip.options import ALIASES, known_options
from server.service.caller import Caller
from server.service.embedding import EmbedRequest
from server.service.generation_request import TranslateRequest
from tests.fuzz.draw import Draw
from tests.fuzz.messages import REALS, TEXTS, WIDE, fill
from tests.fuzz.service import REFUSALS, Service, service
from tests.server.oip.messages import infer_request

SIZE = 1024
MODELS = (
    *("tiny-decoder", "dates", "embedder", "judge", "tagger", "filler", "answerer", "sorter"),
    *("splade", "colbert"),
)
INPUTS = ("text_input", "input_ids", "query", "passages", "question", "context", "target", "stream")
OPTIONS = (
    *sorted(known_options(TranslateRequest) | known_options(EmbedRequest)),
    *(*ALIASES, "task", "priority", "timeout"),
)
VALUES: tuple[Any, ...] = (*WIDE, *REALS, *TEXTS, True, False, "score", "first", "query")
CALLER = Caller("fuzz", None)


def run(data: bytes) -> None:
    """First byte: the form of the request. Second byte: the model. Rest: the request."""
    if len(data) < 2:
        return
    form, model, rest = data[0] & 3, MODELS[data[1] % len(MODELS)], data[2:]
    try:
        (_run_message, _run_drawn, _run_infer_body, _run_generate_body)[form](model, rest)
    except ServeError as error:
        if error.code.value not in REFUSALS or not str(error).isprintable():
            raise


def _run_message(model: str, data: bytes) -> None:
    message = pb.ModelInferRequest()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return
    _infer(decode_infer(message), model)


def infer(message: Any, model: str, running: Service) -> None:
    """Answers a message. Raises ``ServeError``."""
    _infer(decode_infer(message), model, running)


def _run_drawn(model: str, data: bytes) -> None:
    """A well-formed message with random tensors and known parameters."""
    draw = Draw(data)
    message = pb.ModelInferRequest()
    fill(message, draw, chance=40)
    for tensor in message.inputs:
        tensor.name = draw.choice(INPUTS)
        tensor.datatype = draw.choice(("BYTES", "INT64", "BOOL", "FP32"))
    for _ in range(draw.below(4)):
        value = draw.choice(VALUES)
        kind = {bool: "bool", int: "int64", float: "double", str: "string"}[type(value)]
        setattr(message.parameters[draw.choice(OPTIONS)], f"{kind}_param", value)
    if draw.flag():
        message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
        message.inputs[-1].contents.bytes_contents.append(draw.choice(TEXTS).encode())
        del message.raw_input_contents[:]
    _infer(decode_infer(message), model)


def _run_infer_body(model: str, data: bytes) -> None:
    """The first two bytes: the length of the JSON."""
    length = int.from_bytes(data[:2], "little")
    body = http.decode_infer(data[2:], Headers({http.HEADER_LENGTH: str(length)}))
    response = service().loop.run_until_complete(
        Inference(service().layer).infer(_named(body.request, model), CALLER)
    )
    http.encode_infer(response, body)


def _run_generate_body(model: str, data: bytes) -> None:
    _infer(http.decode_generate(data, Headers({})), model)


def _named(request: InferRequest, model: str) -> InferRequest:
    return InferRequest(
        request.model or model, "", request.id, request.parameters, request.inputs, request.outputs
    )


def _infer(request: InferRequest, model: str, running: Service | None = None) -> None:
    named = _named(request, model)
    used = running or service()

    async def stream() -> None:
        responses = Inference(used.layer).stream(named, CALLER)
        async with aclosing(responses):
            async for response in responses:
                await encoded(response, used.layer, CALLER)

    used.loop.run_until_complete(stream())


def seeds() -> Iterator[bytes]:
    rng = random.Random(0)
    for index, model in enumerate(MODELS):
        inputs: dict[str, Any] = {"text_input": ["12", "a [MASK]"]}
        if model == "judge":
            inputs = {"query": ["paris"], "passages": ["a city", "a name"]}
        if model == "answerer":
            inputs = {"question": ["who"], "context": ["angela merkel met barack obama"]}
        options = {"max_new_tokens": 4} if model in ("tiny-decoder", "dates") else {}
        message = infer_request(model, options, **inputs)
        yield bytes([0, index]) + message.SerializeToString()
        yield bytes([1, index]) + rng.randbytes(120)
        raw = message.raw_input_contents
        binary = [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": list(tensor.shape),
                "parameters": {"binary_data_size": len(contents)},
            }
            for tensor, contents in zip(message.inputs, raw, strict=True)
        ]
        listed = [
            {"name": name, "datatype": "BYTES", "shape": [len(texts)], "data": texts}
            for name, texts in inputs.items()
        ]
        for tensors, tail in ((binary, b"".join(raw)), (listed, b"")):
            body = json.dumps({"parameters": options, "inputs": tensors}).encode()
            yield bytes([2, index]) + len(body).to_bytes(2, "little") + body + tail
    ids = infer_request("tiny-decoder", {"max_new_tokens": 2}, input_ids=np.array([[3, 4]]))
    yield bytes([0, 0]) + ids.SerializeToString()
    wide = {
        "text_input": "12",
        "parameters": {"temperature": 10**400, "logit_bias": {"3": 10**400}},
    }
    yield bytes([3, 0]) + json.dumps(wide).encode()
    generate = {"text_input": "12", "parameters": {"max_tokens": 3}, "temperature": 0.5}
    yield bytes([3, 0]) + json.dumps(generate).encode()
