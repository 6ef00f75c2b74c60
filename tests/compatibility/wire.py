"""Sends calls as raw bytes and converts the responses to a comparable form.

Omits what varies between runs: durations, ``reused_tokens``, and
how a stream splits text into chunks.
"""

import base64
import contextlib
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2

from protos.triune.v1 import admin_pb2, inference_pb2, models_pb2
from tests.compatibility.server import Targets

TIMEOUT_SECONDS = 60.0
DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
_SERVICES = {
    service.full_name: service
    for file in (inference_pb2, models_pb2, admin_pb2, health_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
}
_BYTES = {"ENCODING_FORMAT_FLOAT32_BYTES": 4, "ENCODING_FORMAT_FLOAT16_BYTES": 2}
_JOINED = ("text", "token_ids", "logprobs")

Json = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One recorded call.

    ``server``: "open", "guarded", or "admin" for the guarded one's admin address. ``path``:
    ``/package.Service/Method``. ``requests``: serialized messages; one, except of a stream.
    ``token``: the bearer token. ``has_deadline``: whether the call carries a deadline, one that
    does not pass.
    """

    name: str
    server: str
    path: str
    requests: tuple[bytes, ...]
    token: str = ""
    has_deadline: bool = True

    def to_json(self) -> Json:
        """The call's line in the recording."""
        requests = [base64.b64encode(zlib.compress(one, 9)).decode() for one in self.requests]
        return {
            "name": self.name,
            "server": self.server,
            "path": self.path,
            "requests": requests,
            "token": self.token,
            "has_deadline": self.has_deadline,
        }

    @classmethod
    def from_json(cls, line: Json) -> "Call":
        """The inverse of :meth:`to_json`."""
        requests = tuple(zlib.decompress(base64.b64decode(one)) for one in line["requests"])
        fields = {name: line[name] for name in ("name", "server", "path", "token", "has_deadline")}
        return cls(requests=requests, **fields)


class Caller:
    """Sends calls to a server as raw bytes."""

    def __init__(self, targets: Targets) -> None:
        options = [("grpc.enable_retries", 0)]
        self._channels = {
            name: grpc.insecure_channel(target, options)
            for name, target in (("main", targets.main), ("admin", targets.admin))
            if target
        }

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, call: Call) -> Json:
        """The canonical result: status, error details, responses."""
        channel = self._channels["admin" if call.server == "admin" else "main"]
        # On the wire, every kind of method is a bidirectional stream.
        method = channel.stream_stream(
            call.path, request_serializer=bytes, response_deserializer=bytes
        )
        metadata = (("authorization", f"Bearer {call.token}"),) if call.token else ()
        timeout = TIMEOUT_SECONDS if call.has_deadline else None
        sent = method(iter(call.requests), timeout=timeout, metadata=metadata)
        received: list[bytes] = []
        with contextlib.suppress(grpc.RpcError):  # the status is part of the result
            received.extend(sent)
        trailing = dict(sent.trailing_metadata() or ())
        return {
            "code": sent.code().name,
            "message": sent.details() or "",
            "details": _details(trailing),
            "responses": _responses(call.path, received),
        }

    def num_reused_tokens(self, call: Call) -> int:
        """``usage.reused_tokens`` of a ``Generate`` call."""
        method = self._channels["main"].unary_unary(
            call.path,
            request_serializer=bytes,
            response_deserializer=inference_pb2.GenerateResponse.FromString,
        )
        response = method(call.requests[0])
        return int(response.usage.reused_tokens)

    def send_all(self, calls: Sequence[Call], num_at_a_time: int = 1) -> dict[str, Json]:
        """Results by call name."""
        with ThreadPoolExecutor(num_at_a_time) as pool:
            names = [call.name for call in calls]
            return dict(zip(names, pool.map(self.send, calls), strict=True))


def _details(trailing: dict[str, Any]) -> Json:
    """The machine-readable parts of the rich status."""
    if DETAILS_KEY not in trailing:
        return {}
    status = status_pb2.Status.FromString(trailing[DETAILS_KEY])
    details: Json = {"code": status.code, "message": status.message}
    for detail in status.details:
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        if detail.Unpack(info):
            details["reason"], details["domain"] = info.reason, info.domain
            details["metadata"] = dict(info.metadata)
        elif detail.Unpack(bad):
            details["fields"] = [violation.field for violation in bad.field_violations]
        else:
            details.setdefault("others", []).append(detail.type_url)
    details["pushback"] = PUSHBACK_KEY in trailing
    return details


def _responses(path: str, received: Sequence[bytes]) -> list[Json]:
    service, _, method = path.strip("/").partition("/")
    if service not in _SERVICES or method not in _SERVICES[service].methods_by_name:
        assert not received, "an unknown method answers"
        return []
    response = GetMessageClass(_SERVICES[service].methods_by_name[method].output_type)
    messages = [_canonical(response.FromString(data)) for data in received]
    return _joined(messages) if method in {"GenerateStream", "TranslateStream"} else messages


def _canonical(message: Message) -> Json:
    """JSON without durations, ``reused_tokens``, ``memory`` and what depends on the processor."""
    content: Json = MessageToDict(message, preserving_proto_field_name=True)
    _clean(content)
    return content


def _clean(value: Any) -> None:
    if isinstance(value, dict):
        if "timing" in value:
            value["timing"] = "given"
        value.pop("reused_tokens", None)
        value.pop("native_kernels", None)  # of the processor
        value.pop("kernel_nodes", None)  # of the processor
        value.pop("memory", None)  # of the processor's lanes
        for part in value.values():
            _clean(part)
        if "packed" in value:
            value["packed"] = _unpacked(value)
    elif isinstance(value, list):
        for part in value:
            _clean(part)


def _unpacked(vectors: Json) -> Json:
    """Unpacks the numbers of an ``Embedding`` or ``TokenEmbeddings``."""
    data = base64.b64decode(vectors["packed"])
    if "size" in vectors:
        num_bytes = len(data) // (vectors["size"] * len(vectors["tokens"]))
    else:
        num_bytes = _BYTES[vectors["encoding_format"]]
    numbers = np.frombuffer(data, f"<f{num_bytes}").astype(np.float32)
    return {"bytes_per_number": num_bytes, "values": [round(float(x), 6) for x in numbers]}


def _joined(pieces: Sequence[Json]) -> list[Json]:
    """Joins the chunks of each output, ordered by input and hypothesis."""
    outputs: dict[tuple[int, int], Json] = {}
    for piece in pieces:
        key = (piece.get("index", 0), piece.get("hypothesis", 0))
        output = outputs.setdefault(key, {})
        assert "finish_reason" not in output, f"a piece follows the last one of output {key}"
        for field, value in piece.items():
            if field in _JOINED:
                output[field] = output[field] + value if field in output else value
            else:
                assert output.get(field, value) == value, f"{field} of {key} changes"
                output[field] = value
    return [outputs[key] for key in sorted(outputs)]
