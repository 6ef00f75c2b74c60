"""The front ends in this process, without a transport, on tiny trained models."""

import asyncio
import json
import shutil
from base64 import b64encode
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn, cast
from urllib.parse import quote

import grpc
from google.protobuf.message import Message
from starlette.routing import Route

from protos.triune.v1 import inference_pb2 as pb
from server.app import make_backends
from server.config import ServerConfig
from server.engine.requests.busy_lanes import BusyLanes
from server.frontends.grpc.inference import InferenceServicer
from server.frontends.http.access import Access
from server.frontends.http.body import BodyBudget
from server.frontends.http.endpoint import Context as HttpContext
from server.frontends.http.protocols import PROTOCOLS
from server.frontends.http.settings import HttpSettings
from server.models.catalog import Catalog
from server.models.registry import Registry
from server.models.workers import build_engine
from server.service.context import ServiceContext
from server.service.service import Service as InferenceService
from server.service.serving_state import ServingState
from server.service.threads import FairExecutor
from server.telemetry.metrics import Metrics
from tests.bundles import (
    audio_bundles,
    caption_bundles,
    head_bundles,
    image_bundles,
    retrieval_bundles,
    speech_bundles,
    tiny_bundles,
)
from tests.fuzz.files import scratch

MAX_LENGTH = 32  # short sequences for short runs
MAX_INPUT_BYTES = 256
# Acceptable statuses: everything but internal errors.
REFUSALS = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"})

# Request type and matching models of each method.
CALLS: tuple[tuple[str, type[Message], tuple[str, ...]], ...] = (
    ("Generate", pb.GenerateRequest, ("tiny-decoder", "captioner")),
    ("GenerateStream", pb.GenerateStreamRequest, ("tiny-decoder", "captioner")),
    ("Translate", pb.TranslateRequest, ("dates",)),
    ("TranslateStream", pb.TranslateStreamRequest, ("dates",)),
    ("Embed", pb.EmbedRequest, ("embedder", "splade", "colbert")),
    ("EmbedStream", pb.EmbedStreamRequest, ("embedder", "splade", "colbert")),
    (
        *("Classify", pb.ClassifyRequest),
        ("tiny-classifier", "judge", "sorter", "entailer", "sounds", "ast"),
    ),
    ("Attend", pb.AttendRequest, ("embedder", "judge", "tiny-classifier", "colbert")),
    ("Score", pb.ScoreRequest, ("tiny-decoder", "dates")),
    ("Tag", pb.TagRequest, ("tagger",)),
    ("FillMask", pb.FillMaskRequest, ("filler",)),
    ("Answer", pb.AnswerRequest, ("answerer",)),
    ("Correct", pb.CorrectRequest, ("corrector",)),
    ("Rerank", pb.RerankRequest, ("judge", "embedder", "splade", "colbert")),
    ("Tokenize", pb.TokenizeRequest, ("tiny-decoder", "tagger")),
    ("Transcribe", pb.TranscribeRequest, ("speech", "speech-en")),
    ("TranscribeStream", pb.TranscribeStreamRequest, ("speech",)),
)
# Their requests are streams of messages.
STREAMING = frozenset({"EmbedStream", "TranscribeStream"})

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

    async def write(self, message: Message | bytes) -> None:
        _serialize(message)

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
    routes: tuple[Route, ...]

    def call(self, method: str, request: Message) -> bool:
        """Returns whether ``request`` succeeded; False if rejected. Raises on internal errors."""
        try:
            self.loop.run_until_complete(self._call(method, request))
        except RefusedError:
            return False
        return True

    def post(
        self, route: Route, body: bytes, model: str = "", content_type: str = ""
    ) -> tuple[int, bytes]:
        """The status and body of the response to an HTTP request.

        ``model``: of the route's path, if that has one; by default one that suits the route.
        """
        return self.loop.run_until_complete(_post(route, body, model, content_type))

    async def _call(self, method: str, request: Message) -> None:
        message: Any = _one(request) if method in STREAMING else request
        response = await getattr(self.servicer, method)(message, Context())
        if response is not None:  # stream responses are written to the context
            _serialize(response)


def _serialize(response: Message | bytes) -> None:
    if not isinstance(response, bytes):
        response.SerializeToString()


async def _post(route: Route, body: bytes, model: str, content_type: str) -> tuple[int, bytes]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", content_type.encode("latin-1"))] if content_type else []
    scope = {"type": "http", "method": "POST", "headers": headers, "client": ("127.0.0.1", 1)}
    suitable = {"generate": "tiny-decoder", "sparse": "splade"}
    found = (name for part, name in suitable.items() if part in route.path)
    given = {
        "model": model or next(found, "embedder"),
        "version": "1",
        "call": "status",
        "digest": "1",
    }
    parameters = {name: given[name] for name in route.param_convertors}
    await route.endpoint({**scope, "path": route.path, "path_params": parameters}, receive, send)
    return sent[0]["status"], b"".join(message["body"] for message in sent[1:])


async def _one(request: Message) -> AsyncIterator[Message]:
    yield request


CHAT_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for message in messages %}{{ message.content }}{{ message.tool_calls | tojson "
    "if message.tool_calls else '' }}{% endfor %}"
)


@cache
def service(max_length: int = MAX_LENGTH, max_input_bytes: int = MAX_INPUT_BYTES) -> Service:
    """Starts the service; it runs until the process exits."""
    return asyncio.new_event_loop().run_until_complete(_start(max_length, max_input_bytes))


async def _start(max_length: int, max_input_bytes: int) -> Service:
    folder = scratch("bundles")
    of_texts = (tiny_bundles, head_bundles, retrieval_bundles)
    for make in (*of_texts, image_bundles, caption_bundles, audio_bundles, speech_bundles):
        root = make()
        for path in root.iterdir():
            if path.is_dir():
                shutil.copytree(path, folder / path.name, dirs_exist_ok=True)
    manifest = folder / "tiny-decoder" / "1" / "bundle.json"
    described = json.loads(manifest.read_text("utf-8")) | {"chat_template": CHAT_TEMPLATE}
    manifest.write_text(json.dumps(described), "utf-8")
    config = ServerConfig(
        bundles=folder,
        max_length=max_length,
        num_slots=4,
        max_queue=8,
        max_input_bytes=max_input_bytes,
    )
    busy, metrics = BusyLanes(), Metrics()
    backends = make_backends(config, busy)
    engine = build_engine(config, metrics, busy, _die)
    catalog = Catalog(config, backends, engine, metrics, _ignore)
    await catalog.load_all()
    missing = {model for *_, models in CALLS for model in models} - catalog.registry.names
    assert not missing, f"refused: {missing}"
    threads = FairExecutor(ThreadPoolExecutor(1, "tokenize"), 1, config.max_tokenizing)
    context = ServiceContext(config, catalog, engine, metrics, threads, ServingState(engine))
    layer = InferenceService(context)
    shared = HttpContext(layer, HttpSettings.of(config), Access(config), BodyBudget(1 << 24))
    routes = [
        cast("Route", route)
        for protocol in PROTOCOLS
        for route in protocol(shared)
        if "POST" in (cast("Route", route).methods or ())
    ]
    servicer = InferenceServicer(layer)
    return Service(asyncio.get_running_loop(), servicer, layer, tuple(routes))


async def _ignore(_: Registry) -> None:
    """Ignores health updates."""


def _die(error: BaseException) -> NoReturn:
    raise AssertionError("the engine died") from error
