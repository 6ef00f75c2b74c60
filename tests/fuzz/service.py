"""The gRPC servicers in this process, without a transport, on tiny trained models."""

import asyncio
import shutil
from base64 import b64encode
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn
from urllib.parse import quote

import grpc
from google.protobuf.message import Message

from protos.triune.v1 import inference_pb2 as pb
from server.app import make_backends
from server.config import ServerConfig
from server.engine.requests.busy_lanes import BusyLanes
from server.frontends.grpc.inference import InferenceServicer
from server.models.catalog import Catalog
from server.models.registry import Registry
from server.models.workers import build_engine
from server.service.context import ServiceContext
from server.service.service import Service as InferenceService
from server.service.serving_state import ServingState
from server.service.threads import BoundedExecutor
from server.telemetry.metrics import Metrics
from tests.bundles import head_bundles, tiny_bundles
from tests.fuzz.files import scratch

MAX_LENGTH = 32  # short sequences for short runs
MAX_INPUT_BYTES = 256
# Acceptable statuses: everything but internal errors.
REFUSALS = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"})

# Request type and matching models of each method.
CALLS: tuple[tuple[str, type[Message], tuple[str, ...]], ...] = (
    ("Generate", pb.GenerateRequest, ("tiny-decoder",)),
    ("GenerateStream", pb.GenerateStreamRequest, ("tiny-decoder",)),
    ("Translate", pb.TranslateRequest, ("dates",)),
    ("TranslateStream", pb.TranslateStreamRequest, ("dates",)),
    ("Embed", pb.EmbedRequest, ("embedder",)),
    ("EmbedStream", pb.EmbedStreamRequest, ("embedder",)),
    ("Classify", pb.ClassifyRequest, ("tiny-classifier", "judge", "sorter")),
    ("Score", pb.ScoreRequest, ("tiny-decoder", "dates")),
    ("Tag", pb.TagRequest, ("tagger",)),
    ("FillMask", pb.FillMaskRequest, ("filler",)),
    ("Answer", pb.AnswerRequest, ("answerer",)),
    ("Rerank", pb.RerankRequest, ("judge", "embedder")),
    ("Tokenize", pb.TokenizeRequest, ("tiny-decoder", "tagger")),
)

# Clients reject calls with more, unless they are configured otherwise.
MAX_METADATA_BYTES = 8 << 10


def metadata_bytes(details: str, metadata: Any) -> int:
    """The bytes that an error adds to a response: percent-encoded text, and base64."""
    values = (value if isinstance(value, bytes) else value.encode() for _, value in metadata)
    return len(quote(details)) + sum(len(b64encode(value)) for value in values)


class RefusedError(Exception):
    """Raised by ``abort``, which ends a call in gRPC."""


class Context:
    """A servicer context of a call without a deadline."""

    def time_remaining(self) -> None:
        return None

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    async def write(self, message: Message) -> None:
        message.SerializeToString()

    async def abort(self, code: grpc.StatusCode, details: str, metadata: Any) -> NoReturn:
        if code.name in REFUSALS:
            assert details.isprintable(), details
            assert metadata_bytes(details, metadata) <= MAX_METADATA_BYTES, details
            raise RefusedError
        raise AssertionError(f"{code.name}: {details}")  # __context__ holds the original exception


@dataclass(frozen=True)
class Service:
    """Runs all calls on one event loop, in the caller's thread."""

    loop: asyncio.AbstractEventLoop
    servicer: InferenceServicer
    layer: InferenceService

    def call(self, method: str, request: Message) -> bool:
        """Returns whether ``request`` succeeded; False if rejected. Raises on internal errors."""
        try:
            self.loop.run_until_complete(self._call(method, request))
        except RefusedError:
            return False
        return True

    async def _call(self, method: str, request: Message) -> None:
        message: Any = _one(request) if method == "EmbedStream" else request
        response = await getattr(self.servicer, method)(message, Context())
        if response is not None:  # stream responses are written to the context
            response.SerializeToString()


async def _one(request: Message) -> AsyncIterator[Message]:
    yield request


@cache
def service() -> Service:
    """Starts the service; it runs until the process exits."""
    return asyncio.new_event_loop().run_until_complete(_start())


async def _start() -> Service:
    folder = scratch("bundles")
    for root in (tiny_bundles(), head_bundles()):
        for path in root.iterdir():
            if path.is_dir():
                shutil.copytree(path, folder / path.name)
    config = ServerConfig(
        bundles=folder,
        max_length=MAX_LENGTH,
        num_slots=4,
        max_queue=8,
        max_input_bytes=MAX_INPUT_BYTES,
    )
    busy, metrics = BusyLanes(), Metrics()
    backends = make_backends(config, busy)
    engine = build_engine(config, metrics, busy, _die)
    catalog = Catalog(config, backends, engine, metrics, _ignore)
    await catalog.load_all()
    missing = {model for *_, models in CALLS for model in models} - catalog.registry.names
    assert not missing, f"refused: {missing}"
    threads = BoundedExecutor(ThreadPoolExecutor(1), config.max_tokenizing)
    context = ServiceContext(config, catalog, engine, metrics, threads, ServingState(engine))
    layer = InferenceService(context)
    return Service(asyncio.get_running_loop(), InferenceServicer(layer), layer)


async def _ignore(_: Registry) -> None:
    """Ignores health updates."""


def _die(error: BaseException) -> NoReturn:
    raise AssertionError("the engine died") from error
