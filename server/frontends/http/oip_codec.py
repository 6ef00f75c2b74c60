"""Codec of the Open Inference Protocol over HTTP: JSON, optionally followed by binary tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response

from server.errors import InvalidArgumentError
from server.frontends.http.body import json_decoder
from server.frontends.http.endpoint import json_response
from server.frontends.oip.messages import InferRequest, InferResponse
from server.frontends.oip.options import MAX_PARAMETERS, Parameter
from server.frontends.oip.signatures import SIGNATURES, Task
from server.frontends.oip.tensors import (
    BOOL,
    BYTES,
    DTYPES,
    FLOATS,
    MAX_DIMS,
    MAX_INPUTS,
    InputTensor,
)
from server.printable import quoted

# Maximum JSON bytes of a request; larger tensors must be sent as binary data.
MAX_JSON_BYTES = 4 << 20
MAX_OUTPUTS = 64
HEADER_LENGTH = "inference-header-content-length"
_BINARY = "binary_data"
_ALL_BINARY = "binary_data_output"
_BINARY_SIZE = "binary_data_size"
# Boolean inputs of generative models, except ``stream``, which is also a parameter.
_FLAGS = {spec.name for spec in SIGNATURES[Task.GENERATE].inputs if spec.datatype == BOOL} - {
    "stream"
}
# Parameters of a response: the text, and which of its hypotheses.
_PLACE = ("index", "hypothesis")
_UNSUPPORTED = ("shared_memory_region", "classification")


_Parameters = dict[str, Parameter] | None  # typed clients send null for absent parameters


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: _Parameters = None
    data: msgspec.Raw = msgspec.Raw()


class _Output(msgspec.Struct):
    name: str
    parameters: _Parameters = None


class _InferBody(msgspec.Struct):
    inputs: list[_Input]
    id: str | None = None
    parameters: _Parameters = None
    outputs: list[_Output] | None = None


class _GenerateBody(msgspec.Struct):
    """The body of ``generate``. ``text_input`` is one text or several."""

    text_input: str | list[str]
    id: str | None = None
    parameters: dict[str, Any] | None = None


_decode_infer = json_decoder(_InferBody, max_values=None)  # MAX_JSON_BYTES bounds tensors
_decode_generate = json_decoder(_GenerateBody)
_decode_object = json_decoder(dict[str, Any], max_values=None)  # counted with the body


@dataclass(frozen=True, slots=True)
class InferBody:
    """A decoded request; the path has its model. ``binary`` names outputs to send as bytes."""

    request: InferRequest
    binary: frozenset[str]
    is_binary_by_default: bool


def decode_infer(data: bytes, headers: Headers) -> InferBody:
    """Decodes the body of ``infer``.

    Raises:
        InvalidArgumentError: a tensor or field is invalid; the error names it.
    """
    length = _json_length(headers, len(data))
    body = _decode_infer(data[:length])
    if len(body.inputs) > MAX_INPUTS:
        raise InvalidArgumentError("inputs", f"{len(body.inputs)} given, at most {MAX_INPUTS}")
    parameters, requested = body.parameters or {}, body.outputs or []
    if len(requested) > MAX_OUTPUTS:
        raise InvalidArgumentError("outputs", f"{len(requested)} given, at most {MAX_OUTPUTS}")
    request = InferRequest(
        model="",
        id=body.id or "",
        parameters=parameters,
        inputs=_inputs(body.inputs, memoryview(data)[length:]),
        outputs=tuple(output.name for output in requested),
    )
    for output in requested:
        _check_supported(output.name, output.parameters or {})
    is_binary = parameters.get(_ALL_BINARY) is True
    return InferBody(
        request,
        frozenset(
            output.name
            for output in requested
            if (output.parameters or {}).get(_BINARY, is_binary) is True
        ),
        is_binary,
    )


def encode_infer(response: InferResponse, body: InferBody) -> Response:
    """Encodes a response: JSON, then the outputs that were requested as binary data."""
    outputs, parts = [], []
    for tensor in response.outputs:
        described: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensor.shape,
        }
        is_named = bool(body.request.outputs)
        if tensor.name in body.binary or (body.is_binary_by_default and not is_named):
            parts.append(tensor.raw)
            described["parameters"] = {_BINARY_SIZE: len(parts[-1])}
        else:
            described["data"] = tensor.listed()
        outputs.append(described)
    answer = json_response(
        {
            "model_name": response.model,
            "model_version": response.version,
            **({"id": response.id} if response.id else {}),
            "outputs": outputs,
        }
    )
    if not parts:
        return answer
    return Response(
        b"".join((bytes(answer.body), *parts)),
        headers={HEADER_LENGTH: str(len(answer.body))},
        media_type="application/octet-stream",
    )


def decode_generate(data: bytes, _: Headers) -> InferRequest:
    """Decodes the body of ``generate``. Fields outside the protocol are parameters, or inputs of
    that name.

    Raises:
        InvalidArgumentError: a field is invalid; the error names it.
    """
    if len(data) > MAX_JSON_BYTES:
        raise InvalidArgumentError("body", f"has more than {MAX_JSON_BYTES} bytes")
    body = _decode_generate(data)
    fields = set(_GenerateBody.__struct_fields__)
    more = {name: value for name, value in _decode_object(data).items() if name not in fields}
    parameters = {**(body.parameters or {}), **more}
    if len(parameters) > MAX_PARAMETERS:
        raise InvalidArgumentError(
            "parameters", f"{len(parameters)} given, at most {MAX_PARAMETERS}"
        )
    texts = [body.text_input] if isinstance(body.text_input, str) else body.text_input
    inputs = [InputTensor("text_input", BYTES, (len(texts),), None, texts)]
    nested = parameters.pop("sampling_parameters", {})
    if isinstance(nested, dict):
        parameters.update(nested)
    else:
        inputs.append(InputTensor("sampling_parameters", BYTES, (1,), None, [nested]))
    for name in _FLAGS & parameters.keys():
        inputs.append(InputTensor(name, BOOL, (1,), None, [parameters.pop(name)]))
    return InferRequest(model="", id=body.id or "", parameters=parameters, inputs=tuple(inputs))


def generated(response: InferResponse) -> dict[str, Any]:
    """The JSON object of a response of ``generate``; a tensor with one element is a scalar.

    It has the parameters that say which text a piece of a stream belongs to.
    """
    values = {tensor.name: tensor.listed() for tensor in response.outputs}
    return {
        **({"id": response.id} if response.id else {}),
        "model_name": response.model,
        "model_version": response.version,
        **{name: response.parameters[name] for name in _PLACE if name in response.parameters},
        **{name: value[0] if len(value) == 1 else value for name, value in values.items()},
    }


def _json_length(headers: Headers, size: int) -> int:
    text = headers.get(HEADER_LENGTH)
    length = size
    if text is not None:
        if not (text.isascii() and text.isdecimal() and len(text) <= 12) or int(text) > size:
            raise InvalidArgumentError(HEADER_LENGTH, f"is not in 0 … {size}, the body's length")
        length = int(text)
    if length > MAX_JSON_BYTES:
        raise InvalidArgumentError(
            "body", f"has more than {MAX_JSON_BYTES} bytes of JSON: send tensors as binary data"
        )
    return length


def _inputs(inputs: Sequence[_Input], binary: memoryview) -> tuple[InputTensor, ...]:
    tensors = []
    for tensor in inputs:
        parameters = tensor.parameters or {}
        _check_supported(tensor.name, parameters)
        raw = None
        if _BINARY_SIZE in parameters:
            size = parameters[_BINARY_SIZE]
            if not isinstance(size, int) or not 0 <= size <= len(binary):
                raise InvalidArgumentError(
                    tensor.name,
                    f"{_BINARY_SIZE} is not in 0 … {len(binary)}, the bytes that are left",
                )
            raw, binary = bytes(binary[:size]), binary[size:]
        values = _values(tensor) if raw is None else ()
        tensors.append(InputTensor(tensor.name, tensor.datatype, tuple(tensor.shape), raw, values))
    if len(binary):
        raise InvalidArgumentError("inputs", f"{len(binary)} bytes of binary data are in no input")
    return tuple(tensors)


def _check_supported(name: str, parameters: Mapping[str, Parameter]) -> None:
    for parameter in _UNSUPPORTED:
        if parameter in parameters:
            raise InvalidArgumentError(name, f"parameter {parameter} is not supported")


def _values(tensor: _Input) -> Sequence[Any]:
    """The elements of ``data``: a flat list, or nested lists of the tensor's shape."""
    if tensor.datatype != BYTES and tensor.datatype not in DTYPES:
        known = ", ".join((BYTES, *DTYPES))
        raise InvalidArgumentError(
            tensor.name, f"datatype {quoted(tensor.datatype)} is not one of {known}"
        )
    data = bytes(tensor.data)
    if not data:
        raise InvalidArgumentError(tensor.name, "has neither data nor binary_data_size")
    depth = len(data) - len(data.lstrip(b"[ \t\r\n")) if data[:1] == b"[" else 0
    depth = data[:depth].count(b"[")
    if depth > 1 and depth != len(tensor.shape):
        raise InvalidArgumentError(
            tensor.name, f"data is not a list of shape {tensor.shape[:MAX_DIMS]}"
        )
    try:
        values: list[Any] = data_decoder(tensor.datatype, min(depth, MAX_DIMS)).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgumentError(
            tensor.name, f"data is not a list of {tensor.datatype}: {error}"
        ) from None
    for _ in range(1, depth):
        values = list(chain.from_iterable(values))
    return values


@cache
def data_decoder(datatype: str, depth: int) -> msgspec.json.Decoder[Any]:
    """Decodes lists of a known ``datatype``, nested ``depth`` times. Each is kept."""
    kind: Any = {BYTES: str, BOOL: bool}.get(datatype, float if datatype in FLOATS else int)
    for _ in range(max(depth, 1)):
        kind = list[kind]
    return msgspec.json.Decoder(kind)
