"""Malformed and oversized tensors are refused, by name, before anything of their size exists."""

import http.client
import json
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from server.errors import InvalidArgumentError
from server.frontends.oip.tensors import MAX_INPUTS, InputTensor
from tests.faults.record import record
from tests.server.oip.conftest import Doors
from tests.server.oip.messages import infer_request, raw_texts

TEXT = raw_texts("12")
# Cases of the tests below, whose number the table of faults has.
NUM_RECORDED = 50


@pytest.fixture(scope="module", autouse=True)
def refused() -> Iterator[list[str]]:
    """The fields of the requests that were refused by name, for the table of faults."""
    fields: list[str] = []
    yield fields
    if len(fields) >= NUM_RECORDED:
        record(
            13,
            "tensors by gRPC and HTTP: wrong shapes, lengths, types, names and ids",
            "`INVALID_ARGUMENT` or status 400 that names the tensor, before anything of the stated "
            "size exists",
            requests=len(fields),
            refused=len(fields),
        )


def _text(shape: list[int], raw: bytes, datatype: str = "BYTES") -> InputTensor:
    return InputTensor("text_input", datatype, tuple(shape), raw)


@pytest.mark.parametrize(
    ("tensor", "read", "message"),
    [
        (_text([1 << 32, 1 << 32, 2], b""), InputTensor.texts, "36893488147419103232 elements"),
        (_text([2**63 - 1], TEXT), InputTensor.texts, "at most 65536"),
        (_text([65536], b""), InputTensor.texts, "fewer than their lengths alone"),
        (_text([-1, -1], TEXT), InputTensor.texts, "negative"),
        (_text([], TEXT), InputTensor.texts, "0 dimensions"),
        (_text([1] * 9, TEXT), InputTensor.texts, "9 dimensions"),
        (_text([0], TEXT), InputTensor.texts, "6 bytes follow the last element"),
        (_text([2], TEXT + b"\0\0"), InputTensor.texts, "the data ends before element 1"),
        (_text([1], TEXT + b"x"), InputTensor.texts, "1 bytes follow the last element"),
        (_text([1], b"\xff\xff\xff\xff"), InputTensor.texts, "4294967295 bytes, but only 0"),
        (_text([1], struct.pack("<I", 2) + b"\xff\xfe"), InputTensor.texts, "not UTF-8"),
        (_text([1], TEXT, "INT64"), InputTensor.texts, "'INT64' is not BYTES"),
        (_text([1], TEXT, "bytes"), InputTensor.texts, "'bytes' is not BYTES"),
        (_text([1 << 62], b"", "INT64"), InputTensor.integers, "at most 1048576"),
        (_text([3], b"\0" * 8, "INT64"), InputTensor.integers, "has 24 bytes, but 8 are given"),
        (_text([1], b"\0" * 4, "FP32"), InputTensor.integers, "'FP32' is not INT64"),
        (_text([2], b"\0", "BOOL"), InputTensor.flags, "has 2 bytes, but 1 are given"),
    ],
)
def test_tensor_is_refused(
    refused: list[str], tensor: InputTensor, read: Callable[[InputTensor], Any], message: str
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgumentError) as caught:
            read(tensor)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    refused.append(caught.value.field)
    assert caught.value.field == "text_input"
    assert message in caught.value.description
    assert peak_bytes < 64 << 10


def _changed(change: Callable[[Any], Any]) -> Any:
    request = infer_request("tiny-decoder", text_input=["1"])
    change(request)
    return request


def _typed(request: Any, **contents: Any) -> None:
    del request.raw_input_contents[:]
    for name, values in contents.items():
        getattr(request.inputs[0].contents, name).extend(values)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda r: r.inputs.add(name="text_input", datatype="BYTES"), "raw_input_contents"),
        (lambda r: r.raw_input_contents.append(b""), "raw_input_contents"),
        (lambda r: r.inputs[0].shape.append(7), "text_input"),
        (lambda r: setattr(r.inputs[0], "datatype", "FP32"), "text_input"),
        (lambda r: setattr(r.inputs[0], "name", "pixels"), "pixels"),
        (lambda r: setattr(r.inputs[0], "name", ""), "inputs[0].name"),
        (lambda r: r.outputs.add(name="logits"), "logits"),
        (lambda r: r.inputs[0].contents.bytes_contents.append(b"1"), "text_input"),
        (lambda r: _typed(r, bytes_contents=[b"1", b"2"]), "text_input"),
        (lambda r: _typed(r, int64_contents=[1]), "text_input"),
        (_typed, "text_input"),
        (lambda r: r.inputs[0].parameters["shared_memory_region"].SetInParent(), "text_input"),
        (lambda r: r.parameters["temperature"].SetInParent(), "parameters.temperature"),
        (
            lambda r: setattr(r.parameters["random_seed"], "int64_param", -1),
            "parameters.random_seed",
        ),
        (lambda r: setattr(r.parameters["max_tokens"], "int64_param", 0), "parameters.max_tokens"),
        (lambda r: setattr(r.parameters["n"], "int64_param", 3), "parameters.n"),
        (lambda r: setattr(r.parameters["regex"], "string_param", "("), "parameters.regex"),
        (
            lambda r: setattr(r.parameters["regex"], "string_param", "7{1000000}"),
            "parameters.regex",
        ),
        (lambda r: setattr(r.parameters["heat"], "int64_param", 1), "parameters.heat"),
        (lambda r: setattr(r.parameters["task"], "string_param", "embed"), "parameters.task"),
        (lambda r: setattr(r.parameters["priority"], "uint64_param", 202), "parameters.priority"),
        (lambda r: setattr(r.parameters["timeout"], "int64_param", -1), "parameters.timeout"),
        (
            lambda r: setattr(r.parameters["sequence_id"], "int64_param", 5),
            "parameters.sequence_id",
        ),
        (lambda r: setattr(r.parameters["stream"], "bool_param", True), "stream"),
        (lambda r: setattr(r, "id", "x" * 1025), "id"),
    ],
)
def test_request_is_refused(
    doors: Doors, refused: list[str], change: Callable[[Any], Any], field: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        doors.oip.ModelInfer(_changed(change))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, str(caught.value.details())
    assert str(caught.value.details()).startswith(f"{field}:"), str(caught.value.details())
    refused.append(field)


def test_names_are_unique_and_few(doors: Doors) -> None:
    twice = infer_request("tiny-decoder", text_input=["1"])
    twice.inputs.add().CopyFrom(twice.inputs[0])
    twice.raw_input_contents.append(twice.raw_input_contents[0])
    inputs: Any = {f"t{n}": ["1"] for n in range(MAX_INPUTS + 1)}
    many = infer_request("tiny-decoder", **inputs)
    for request, message in ((twice, "text_input: is given twice"), (many, "inputs: 17 given")):
        with pytest.raises(grpc.RpcError) as caught:
            doors.oip.ModelInfer(request)
        assert str(caught.value.details()).startswith(message)


@pytest.mark.parametrize(
    ("ids", "lengths", "field"),
    [
        (np.zeros((2, 3), np.int64), np.array([3, 4]), "input_lengths[1]"),
        (np.zeros((2, 3), np.int64), np.array([3]), "input_lengths"),
        (np.zeros((2, 0), np.int64), None, "input_ids"),
        (np.zeros((1, 1, 1), np.int64), None, "input_ids"),
        (np.array([[1, 1 << 40]]), None, "input_ids[0]"),
        (np.array([[1]], np.float32), None, "input_ids"),
    ],
)
def test_token_ids_are_refused(
    doors: Doors, refused: list[str], ids: Any, lengths: Any, field: str
) -> None:
    inputs: Any = {"input_ids": ids} | ({} if lengths is None else {"input_lengths": lengths})
    with pytest.raises(grpc.RpcError) as caught:
        doors.oip.ModelInfer(infer_request("tiny-decoder", **inputs))
    assert str(caught.value.details()).startswith(f"{field}:")
    refused.append(field)


def _http_tensor(**changes: Any) -> dict[str, Any]:
    return {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["1"]} | changes


@pytest.mark.parametrize(
    ("tensor", "tail", "message"),
    [
        (_http_tensor(shape=[2**62, 2**62]), b"", "text_input: shape"),
        (_http_tensor(data=[["1", "2"], "3"], shape=[2, 2]), b"", "text_input: data"),
        (_http_tensor(data=[[["1"]]]), b"", "text_input: data"),
        (_http_tensor(data=[1]), b"", "text_input: data"),
        (_http_tensor(data={}), b"", "text_input: data"),
        (_http_tensor(data=["1", "2"]), b"", "text_input: shape"),
        (_http_tensor(shape=["1"]), b"", "inputs[0].shape[0]:"),
        (_http_tensor(), b"tail", "inputs: 4 bytes of binary data"),
        (_http_tensor(parameters={"binary_data_size": 9}), b"tail", "text_input: binary_data_size"),
        (
            _http_tensor(parameters={"binary_data_size": -1}),
            b"tail",
            "text_input: binary_data_size",
        ),
        (_http_tensor(parameters={"binary_data_size": 4}), b"\xff" * 4, "text_input: element 0"),
    ],
)
def test_http_tensor_is_refused(
    doors: Doors, refused: list[str], tensor: dict[str, Any], tail: bytes, message: str
) -> None:
    head = json.dumps({"inputs": [tensor]}).encode()
    status, answer = _post(doors, head + tail, {"Inference-Header-Content-Length": str(len(head))})
    assert (status, answer["error"][: len(message)]) == (400, message)
    refused.append(message)


@pytest.mark.parametrize("length", ["-1", "99999", "1e3", "٣", ""])
def test_invalid_header_length_is_refused(doors: Doors, length: str) -> None:
    body = json.dumps({"inputs": [_http_tensor()]}).encode()
    header = {"Inference-Header-Content-Length": length.encode().decode("latin-1")}
    status, answer = _post(doors, body, header)
    assert status == 400
    assert "inference-header-content-length" in answer["error"]


def _post(doors: Doors, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", doors.running.http_port or 0, timeout=30)
    connection.request("POST", "/v2/models/tiny-decoder/infer", body, headers)
    response = connection.getresponse()
    answer = json.load(response)
    connection.close()
    return response.status, answer


def test_one_element_is_no_plural(doors: Doors) -> None:
    ids: Any = {"input_ids": np.zeros((2, 3), np.int64), "input_lengths": np.array([3])}
    with pytest.raises(grpc.RpcError) as caught:
        doors.oip.ModelInfer(infer_request("tiny-decoder", **ids))
    assert str(caught.value.details()) == "input_lengths: has 1 element for 2 texts"
