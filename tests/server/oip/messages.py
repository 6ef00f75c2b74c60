"""Requests of the Open Inference Protocol, and the contents of its responses."""

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from protos.inference import open_inference_pb2 as pb
from server.frontends.oip.tensors import DTYPES


def raw_texts(*texts: str | bytes) -> bytes:
    """The elements of a BYTES tensor."""
    encoded = [text.encode() if isinstance(text, str) else text for text in texts]
    return b"".join(struct.pack("<I", len(one)) + one for one in encoded)


def infer_request(model: str, parameters: Mapping[str, Any] | None = None, **inputs: Any) -> Any:
    """A request with raw contents: texts, or an array with the number type of its dtype.

    ``inputs``: a list of texts or files, an array, or (shape, list of texts).
    """
    request = pb.ModelInferRequest(model_name=model, id="a request")
    for name, value in (parameters or {}).items():
        kind = {bool: "bool", int: "int64", float: "double", str: "string"}[type(value)]
        setattr(request.parameters[name], f"{kind}_param", value)
    for name, value in inputs.items():
        if isinstance(value, np.ndarray):
            datatype = next(key for key, dtype in DTYPES.items() if dtype == value.dtype)
            request.inputs.add(name=name, datatype=datatype, shape=value.shape)
            request.raw_input_contents.append(value.tobytes())
            continue
        shape, texts = value if isinstance(value, tuple) else ([len(value)], value)
        request.inputs.add(name=name, datatype="BYTES", shape=shape)
        request.raw_input_contents.append(raw_texts(*texts))
    return request


def outputs_of(response: Any) -> dict[str, Any]:
    """The outputs as arrays; BYTES as arrays of texts."""
    found = {}
    for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        if tensor.datatype == "BYTES":
            values = np.array(_texts(raw), dtype=object)
        else:
            values = np.frombuffer(raw, DTYPES[tensor.datatype])
        found[tensor.name] = values.reshape(tuple(tensor.shape))
    return found


def _texts(raw: bytes) -> list[str]:
    texts = []
    while raw:
        (length,) = struct.unpack_from("<I", raw)
        texts.append(raw[4 : 4 + length].decode())
        raw = raw[4 + length :]
    return texts
