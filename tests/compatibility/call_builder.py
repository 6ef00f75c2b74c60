"""Builds calls for the recording."""

from typing import Any

from google.protobuf.message_factory import GetMessageClass

from protos.triune.v1 import admin_pb2, inference_pb2, models_pb2
from tests.compatibility.wire import Call

Fields = dict[str, Any]

_METHODS = {
    method.name: method
    for file in (inference_pb2, models_pb2, admin_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def call(
    name: str,
    method: str,
    *requests: Fields,
    server: str = "open",
    token: str = "",
    has_deadline: bool = True,
) -> Call:
    """A call of ``method``; each of ``requests`` holds the fields of one message."""
    descriptor = _METHODS[method]
    make = GetMessageClass(descriptor.input_type)
    return Call(
        name=name,
        server=server,
        path=f"/{descriptor.containing_service.full_name}/{method}",
        requests=tuple(make(**fields).SerializeToString(deterministic=True) for fields in requests),
        token=token,
        has_deadline=has_deadline,
    )
