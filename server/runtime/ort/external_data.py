"""What an ONNX file reads and runs besides itself: checked before a runtime opens it."""

from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, Message

from model.bundle import BundleError, Manifest

# Operators that are part of ONNX Runtime; nothing is loaded for any other.
_DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft"}
# Those of them that load files or code of their own.
_REFUSED_OPERATORS = {"EPContext", "PythonOp", "PythonOpGrad"}


def check_external_data(directory: Path, manifest: Manifest, file: str) -> None:
    """Checks that a graph's external data are listed files, and its operators ONNX Runtime's.

    Args:
        directory: of the bundle.
        manifest: of the bundle; its files are verified already.
        file: the graph, relative to ``directory``.

    Raises:
        BundleError: the file is no ONNX model, a tensor's location is not listed, or an
            operator is of a library that the runtime does not bring.
    """
    label = f"{manifest.label}: file {file!r}"
    listed = {record.path for record in manifest.files}
    try:
        # Not onnx.load: by a file's name it reads forms that the runtime does not.
        proto = onnx.ModelProto.FromString((directory / file).read_bytes())
    except (OSError, DecodeError) as error:
        raise BundleError(f"{label} is not an ONNX model") from error
    for message in _messages(proto):
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


def _check_operator(domain: str, operator: str, label: str) -> None:
    if domain not in _DOMAINS:
        raise BundleError(f"{label} has operators of {domain!r}, which no library is loaded for")
    if operator in _REFUSED_OPERATORS:
        raise BundleError(f"{label} has the operator {operator}, which reads what is not listed")


def _messages(message: Message) -> Iterator[Message]:
    """All messages in a message, wherever: in attributes, subgraphs, functions, sparse tensors."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                yield inner
                yield from _messages(inner)
