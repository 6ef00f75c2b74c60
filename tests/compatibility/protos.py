"""The protobuf schema as comparable JSON: ``python -m tests.compatibility.protos``."""

import json
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

from protos.triune.v1 import (
    admin_pb2,
    common_pb2,
    encoding_pb2,
    inference_pb2,
    models_pb2,
    transcription_pb2,
)
from tests.compatibility.server import FOLDER

STORED = FOLDER / "protos.json"
FILES = (admin_pb2, common_pb2, encoding_pb2, inference_pb2, models_pb2, transcription_pb2)
TYPES = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
    for name in dir(FieldDescriptor)
    if name.startswith("TYPE_")
}

Json = dict[str, Any]


def shape() -> dict[str, Json]:
    """Messages, enums and services by full name."""
    files: list[FileDescriptor] = [module.DESCRIPTOR for module in FILES]
    shapes: dict[str, Json] = {"messages": {}, "enums": {}, "services": {}}
    for file in files:
        for message in file.message_types_by_name.values():
            _add_message(message, shapes)
        for enum in file.enum_types_by_name.values():
            _add_enum(enum, shapes)
        for service in file.services_by_name.values():
            shapes["services"][service.full_name] = {
                method.name: {
                    "input": method.input_type.full_name,
                    "output": method.output_type.full_name,
                    "client_streaming": method.client_streaming,
                    "server_streaming": method.server_streaming,
                }
                for method in service.methods
            }
    return shapes


def _add_message(message: Descriptor, shapes: dict[str, Json]) -> None:
    shapes["messages"][message.full_name] = {
        str(field.number): _field(field) for field in message.fields
    }
    for nested in message.nested_types:
        _add_message(nested, shapes)
    for enum in message.enum_types:
        _add_enum(enum, shapes)


def _add_enum(enum: EnumDescriptor, shapes: dict[str, Json]) -> None:
    shapes["enums"][enum.full_name] = {str(value.number): value.name for value in enum.values}


def _field(field: FieldDescriptor) -> Json:
    kind = field.message_type or field.enum_type
    oneof = field.containing_oneof
    return {
        "name": field.name,
        "json_name": field.json_name,
        "type": TYPES[field.type] if kind is None else kind.full_name,
        "repeated": field.is_repeated,
        "packed": field.is_packed,
        "presence": field.has_presence,
        "oneof": "" if oneof is None or oneof.name == f"_{field.name}" else oneof.name,
    }


def main() -> None:
    """Stores the schema of the current protos."""
    STORED.write_text(json.dumps(shape(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
