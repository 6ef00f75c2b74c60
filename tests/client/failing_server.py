"""A gRPC server whose calls fail as a test prescribes."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import status_pb2

from protos.triune.v1 import encoding_pb2
from protos.triune.v1 import inference_pb2 as wire

_SERVICE = "triune.v1.InferenceService"


@dataclass(frozen=True)
class Failure:
    code: grpc.StatusCode
    message: str
    details: tuple[Message, ...] = ()
    details_bytes: bytes | None = None
    """Sent instead of ``details``."""

    def trailer(self) -> bytes:
        if self.details_bytes is not None:
            return self.details_bytes
        packed = []
        for detail in self.details:
            wrapped = any_pb2.Any()
            wrapped.Pack(detail)
            packed.append(wrapped)
        status = status_pb2.Status(code=self.code.value[0], message=self.message, details=packed)
        trailer: bytes = status.SerializeToString()
        return trailer


@dataclass
class FailingServer:
    """Fails one call with each of ``failures``, then answers."""

    failures: list[Failure]
    target: str = ""
    num_calls: int = 0
    called: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released once by each call that arrives."""
    pieces_before_failure: int = 0
    """Pieces of a stream that are sent before each failure."""
    is_silent: bool = False
    """Never answers: a call ends at its deadline."""
    recording: bytes = b""
    """The last one that was received."""
    segments: tuple[wire.Segment, ...] = (
        wire.Segment(text=" Good", start_seconds=0.5, end_seconds=1.0),
        wire.Segment(text=" day <b> --> you.", start_seconds=3599.9996, end_seconds=3661.25),
    )
    """The segments of each recording."""

    def embed(
        self, request: wire.EmbedRequest, context: grpc.ServicerContext
    ) -> wire.EmbedResponse:
        self._admit(context)
        return wire.EmbedResponse(model=request.model, outputs=[wire.Embedding(values=[1.0])])

    def embed_stream(
        self, requests: Iterator[encoding_pb2.EmbedStreamRequest], _context: grpc.ServicerContext
    ) -> Iterator[encoding_pb2.EmbedStreamResponse]:
        for request in requests:
            yield encoding_pb2.EmbedStreamResponse(id=request.id, model=request.model)

    def generate_stream(
        self, request: wire.GenerateStreamRequest, context: grpc.ServicerContext
    ) -> Iterator[wire.GenerateStreamResponse]:
        for _ in range(self.pieces_before_failure):
            yield wire.GenerateStreamResponse(model=request.model, text="a")
        self._admit(context)
        yield wire.GenerateStreamResponse(model=request.model, text="z")

    def transcribe(
        self, request: wire.TranscribeRequest, context: grpc.ServicerContext
    ) -> wire.TranscribeResponse:
        self._admit(context)
        self.recording = request.audio
        segments, text = self.segments, "".join(segment.text for segment in self.segments).strip()
        return wire.TranscribeResponse(model=request.model, segments=segments, text=text)

    def transcribe_stream(
        self, requests: Iterator[wire.TranscribeStreamRequest], context: grpc.ServicerContext
    ) -> Iterator[wire.TranscribeStreamResponse]:
        first = next(requests)
        self.recording = first.audio + b"".join(later.audio for later in requests)
        self._admit(context)
        for segment in self.segments:
            yield wire.TranscribeStreamResponse(model=first.model, segments=[segment])
        finish = wire.TranscriptionFinish(language="en", language_probability=0.75)
        yield wire.TranscribeStreamResponse(model=first.model, finish=finish)

    def _admit(self, context: grpc.ServicerContext) -> None:
        self.num_calls += 1
        self.called.release()
        if self.is_silent:
            cancelled = threading.Event()
            if context.add_callback(cancelled.set):
                cancelled.wait()
        if self.failures:
            failure = self.failures.pop(0)
            context.set_trailing_metadata((("grpc-status-details-bin", failure.trailer()),))
            context.abort(failure.code, failure.message)


@contextmanager
def failing_server(
    *failures: Failure, pieces_before_failure: int = 0, is_silent: bool = False
) -> Iterator[FailingServer]:
    script = FailingServer(
        list(failures), pieces_before_failure=pieces_before_failure, is_silent=is_silent
    )
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Embed": grpc.unary_unary_rpc_method_handler(
            script.embed,
            request_deserializer=wire.EmbedRequest.FromString,
            response_serializer=wire.EmbedResponse.SerializeToString,
        ),
        "EmbedStream": grpc.stream_stream_rpc_method_handler(
            script.embed_stream,
            request_deserializer=encoding_pb2.EmbedStreamRequest.FromString,
            response_serializer=encoding_pb2.EmbedStreamResponse.SerializeToString,
        ),
        "GenerateStream": grpc.unary_stream_rpc_method_handler(
            script.generate_stream,
            request_deserializer=wire.GenerateStreamRequest.FromString,
            response_serializer=wire.GenerateStreamResponse.SerializeToString,
        ),
        "Transcribe": grpc.unary_unary_rpc_method_handler(
            script.transcribe,
            request_deserializer=wire.TranscribeRequest.FromString,
            response_serializer=wire.TranscribeResponse.SerializeToString,
        ),
        "TranscribeStream": grpc.stream_stream_rpc_method_handler(
            script.transcribe_stream,
            request_deserializer=wire.TranscribeStreamRequest.FromString,
            response_serializer=wire.TranscribeStreamResponse.SerializeToString,
        ),
    }
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    script.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield script
    finally:
        server.stop(None).wait()
