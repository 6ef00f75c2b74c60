"""Checks the files and operators that an ONNX file refers to, before a runtime opens it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx

from model.bundle import BundleError, Manifest

# The operator domains that ONNX Runtime ships. Operators of other domains would need a library.
_DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft"}
# Operators in those domains that load other files or code.
_REFUSED_OPERATORS = {"EPContext", "PythonOp", "PythonOpGrad"}

_Protobuf = Any  # a protobuf message: only the gRPC front end may import protobuf


def check_external_data(directory: Path, manifest: Manifest, file: str) -> None:
    """Checks that a graph reads only listed files and uses only ONNX Runtime's operators.

    Args:
        directory: the bundle's directory.
        manifest: the bundle's manifest; its files are already verified.
        file: the graph's path, relative to ``directory``.

    Raises:
        BundleError: the file is not an ONNX model, a tensor's location is not listed, or an
            operator needs a library that ONNX Runtime does not ship.
    """
    label = f"{manifest.label}: file {file!r}"
    listed = {record.path for record in manifest.files}
    for message in _messages(_read_model(directory / file, label)):
        if isinstance(message, onnx.TensorProto):
            for entry in message.external_data:
                if entry.key == "location" and entry.value not in listed:
                    raise BundleError(
                        f"{label} reads {entry.value!r}, which bundle.json does not list"
                    )
        elif isinstance(message, onnx.NodeProto):
            _check_operator(message.domain, message.op_type, label)
        elif isinstance(message, onnx.OperatorSetIdProto):
            _check_operator(message.domain, "", label)


def _read_model(path: Path, label: str) -> onnx.ModelProto:
    # onnx.load would pick the format by the file's name, and take formats that ONNX Runtime lacks.
    try:
        return onnx.ModelProto.FromString(path.read_bytes())
    except Exception as error:  # OSError, or protobuf's DecodeError
        raise BundleError(f"{label} is not an ONNX model") from error


def _check_operator(domain: str, operator: str, label: str) -> None:
    if domain not in _DOMAINS:
        raise BundleError(f"{label} has operators of {domain!r}, which ONNX Runtime does not ship")
    if operator in _REFUSED_OPERATORS:
        raise BundleError(f"{label} has the operator {operator}, which loads files of its own")


def _messages(message: _Protobuf) -> Iterator[_Protobuf]:
    """Yields all nested messages: in attributes, subgraphs, functions and sparse tensors."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                yield inner
                yield from _messages(inner)
