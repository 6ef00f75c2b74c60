"""The service layer's interface, which the front ends of all protocols call."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import TypeVar

from model.bundle import Manifest
from server.bounds import check_name
from server.engine.requests.job import Delivery
from server.errors import Code, InternalError, ServeError
from server.service.answer import AnswerRequest, AnswerResult
from server.service.answer import answer as answer_questions
from server.service.attend import AttendRequest, AttendResult
from server.service.attend import attend as attend_to_texts
from server.service.caller import Caller
from server.service.classify import ClassifyRequest, ClassifyResult
from server.service.classify import classify as classify_texts
from server.service.collect import collect
from server.service.context import ServiceContext
from server.service.correct import CorrectRequest, CorrectResult
from server.service.correct import correct as correct_texts
from server.service.detect import DetectRequest, detect_languages
from server.service.embed import embed as embed_texts
from server.service.embed_stream import BulkItem
from server.service.embed_stream import embed_stream as embed_items
from server.service.embedding import EmbedRequest, EmbedResult
from server.service.fill_mask import FillMaskRequest, FillMaskResult
from server.service.fill_mask import fill_mask as fill_masks
from server.service.generate import prepare_generate
from server.service.generation_request import (
    GenerateRequest,
    GenerationResult,
    TextChunk,
    TranslateRequest,
)
from server.service.model_info import BundleInfo, ModelInfo, State, bundle_info, model_info
from server.service.rerank import RerankRequest, RerankResult
from server.service.rerank import rerank as rerank_documents
from server.service.score import ScoreRequest, ScoreResult
from server.service.score import score as score_texts
from server.service.tag import TagRequest, TagResult
from server.service.tag import tag as tag_texts
from server.service.text_stream import holding, stream
from server.service.tokenize import (
    DetokenizeRequest,
    DetokenizeResult,
    TokenizeRequest,
    TokenizeResult,
)
from server.service.tokenize import detokenize as detokenize_ids
from server.service.tokenize import tokenize as tokenize_texts
from server.service.transcribe import transcribe as transcribe_recording
from server.service.transcribe import transcribe_stream as transcribe_windows
from server.service.transcription_request import (
    TranscribeRequest,
    TranscribeResult,
    TranscriptionChunk,
)
from server.service.translate import prepare_translate
from server.service.translate_by_language import (
    LanguageRequest,
    LanguageResult,
    translate_by_language,
)
from server.service.translation_routes import ServedLanguage, TranslationRoutes
from server.telemetry.statistics import ModelStatistics
from server.text.language_detector import DetectedLanguage

T = TypeVar("T")

log = logging.getLogger(__name__)

# Metric label of calls whose model is not served: it keeps the number of label values bounded.
UNKNOWN_MODEL = "unknown"


class Service:
    """Handles requests. All methods raise ``ServeError`` with field names of the request types.

    A front end decodes a request, calls one method within :meth:`track_call`, and encodes the
    result.
    """

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    @property
    def is_live(self) -> bool:
        """Whether no lane has died or is stuck; stays true while the server drains."""
        return self._context.state.is_live

    @property
    def is_ready(self) -> bool:
        """Whether the server takes new calls: it is live, has started, and is not draining."""
        return self._context.state.is_ready

    @property
    def stall_seconds(self) -> float:
        """Seconds without reading after which a client's stream ends."""
        return self._context.config.stall_seconds

    @asynccontextmanager
    async def track_call(self, method: str, model: str = "") -> AsyncIterator[None]:
        """Wraps a call: counts it by status in the metrics, and keeps its model loaded.

        Args:
            method: the call's name, a metric label.
            model: the model that the request names; empty for calls that use none.

        Raises:
            ServeError: the error raised in the block. Other exceptions are logged and become
                ``InternalError``.
        """
        catalog = self._context.catalog
        started = time.monotonic()
        model = catalog.registry.name_of(model)
        was_served = model in catalog.registry.names  # it may be unloaded before the call ends
        code = Code.CANCELLED  # unless it completes or raises
        try:
            with catalog.calls.of(model):
                yield
            code = Code.OK
        except ServeError as error:
            code = error.code
            raise
        except Exception as error:
            log.exception("%s failed", method)
            code = Code.INTERNAL
            raise InternalError("the call failed") from error
        finally:
            is_known = was_served or model in catalog.registry.names
            label = model if is_known else UNKNOWN_MODEL
            seconds = time.monotonic() - started
            self._context.metrics.on_request(label, method, code, seconds)

    async def generate(self, request: GenerateRequest, caller: Caller) -> GenerationResult:
        """Continues prompts with a decoder, or maps texts or images to texts."""
        with ExitStack() as memory:
            prepared = await prepare_generate(
                request, self._context, caller, Delivery.WHOLE, memory
            )
            return await collect(prepared, self._context)

    async def generate_stream(
        self, request: GenerateRequest, caller: Caller
    ) -> AsyncGenerator[TextChunk, None]:
        """The same, but streams text as it is generated."""
        with ExitStack() as memory:
            prepared = await prepare_generate(
                request, self._context, caller, Delivery.STREAM, memory
            )
            chunks = stream(prepared, self._context)
            has_images = request.images or any(message.parts for message in request.messages)
            return holding(chunks, memory.pop_all()) if has_images else chunks

    async def translate(self, request: TranslateRequest, caller: Caller) -> GenerationResult:
        """Translates texts with an encoder-decoder."""
        prepared = await prepare_translate(request, self._context, caller, Delivery.WHOLE)
        return await collect(prepared, self._context)

    async def translate_stream(
        self, request: TranslateRequest, caller: Caller
    ) -> AsyncGenerator[TextChunk, None]:
        """The same, but streams text as it is generated."""
        prepared = await prepare_translate(request, self._context, caller, Delivery.STREAM)
        return stream(prepared, self._context)

    async def translate_by_language(
        self, request: LanguageRequest, caller: Caller
    ) -> LanguageResult:
        """Translates texts or HTML from one language to another with the served models."""
        return await translate_by_language(request, self._context, caller)

    async def detect_languages(
        self, request: DetectRequest, caller: Caller
    ) -> list[DetectedLanguage]:
        """Scores the source languages of the served models for a text, most likely first."""
        return await detect_languages(request, self._context, caller)

    def translation_languages(self) -> tuple[ServedLanguage, ...]:
        """The languages of the served models, each with its target languages."""
        return TranslationRoutes(self._context.registry).languages()

    async def embed(self, request: EmbedRequest, caller: Caller) -> EmbedResult:
        """Maps texts or images to vectors."""
        return await embed_texts(request, self._context, caller)

    def embed_stream(
        self, items: AsyncIterator[BulkItem], caller: Caller
    ) -> AsyncGenerator[tuple[int, EmbedResult], None]:
        """Maps any number of inputs to vectors. Yields results in the order of the items."""
        return embed_items(items, self._context, caller)

    async def classify(self, request: ClassifyRequest, caller: Caller) -> ClassifyResult:
        """Maps texts, pairs of texts or images to labels with scores."""
        return await classify_texts(request, self._context, caller)

    async def tag(self, request: TagRequest, caller: Caller) -> TagResult:
        """Finds entities: labelled spans of texts."""
        return await tag_texts(request, self._context, caller)

    async def fill_mask(self, request: FillMaskRequest, caller: Caller) -> FillMaskResult:
        """Predicts words for the masks in texts."""
        return await fill_masks(request, self._context, caller)

    async def answer(self, request: AnswerRequest, caller: Caller) -> AnswerResult:
        """Finds the spans of texts that answer questions."""
        return await answer_questions(request, self._context, caller)

    async def rerank(self, request: RerankRequest, caller: Caller) -> RerankResult:
        """Sorts documents by relevance to a query."""
        return await rerank_documents(request, self._context, caller)

    async def correct(self, request: CorrectRequest, caller: Caller) -> CorrectResult:
        """Corrects texts by editing their words."""
        return await correct_texts(request, self._context, caller)

    async def attend(self, request: AttendRequest, caller: Caller) -> AttendResult:
        """Returns the attention weights of an encoder."""
        return await attend_to_texts(request, self._context, caller)

    async def score(self, request: ScoreRequest, caller: Caller) -> ScoreResult:
        """Computes the log-probabilities of given texts."""
        return await score_texts(request, self._context, caller)

    async def transcribe(self, request: TranscribeRequest, caller: Caller) -> TranscribeResult:
        """Transcribes recorded speech into text with timestamps."""
        return await transcribe_recording(request, self._context, caller)

    async def transcribe_stream(
        self, request: TranscribeRequest, caller: Caller
    ) -> AsyncGenerator[TranscriptionChunk, None]:
        """The same, but streams the segments of each window of the recording, in order."""
        return await transcribe_windows(request, self._context, caller)

    async def tokenize(self, request: TokenizeRequest, caller: Caller) -> TokenizeResult:
        """Tokenizes texts with a model's tokenizer."""
        return await tokenize_texts(request, self._context, caller)

    async def build(self, num_values: int, function: Callable[[], T], caller: Caller) -> T:
        """Runs ``function``, which encodes ``num_values`` values; in a thread if there are many."""
        return await self._context.build(num_values, function, caller)

    async def detokenize(self, request: DetokenizeRequest, caller: Caller) -> DetokenizeResult:
        """Turns token ids into texts with a model's tokenizer."""
        return await detokenize_ids(request, self._context, caller)

    def token_speller(self, model: str) -> Callable[[Sequence[int]], list[bytes]]:
        """A function that maps token ids of ``model`` to the bytes that each adds to a text."""
        return self._context.registry.get(model, "").tokenizer.token_bytes

    def special_ids(self, model: str) -> frozenset[int]:
        """The ids of ``model`` that add nothing to a text."""
        return self._context.registry.get(model, "").tokenizer.special_ids

    def list_models(self) -> tuple[ModelInfo, ...]:
        """Describes every version of every model."""
        config = self._context.config
        return tuple(model_info(entry, config) for entry in self._context.registry.described)

    def served_models(self) -> list[ModelInfo]:
        """Describes the newest served version of each model."""
        served = [info for info in self.list_models() if info.state == State.READY]
        return list({info.name: info for info in served}.values())

    def get_model(self, name: str, version: str = "") -> ModelInfo:
        """Describes one version of a model; the newest if ``version`` is empty."""
        _check_names(name, version)
        entry = self._context.registry.describe(name, version)
        return model_info(entry, self._context.config)

    def manifest(self, name: str, version: str = "") -> Manifest:
        """The manifest of a served model; the newest version's if ``version`` is empty."""
        return self._context.registry.get(name, version).manifest

    def bundle(self, name: str) -> BundleInfo:
        """What the bundle of a served model has, of its newest version."""
        return bundle_info(self._context.registry.get(name, ""))

    def statistics(self, name: str) -> ModelStatistics:
        """Counts and durations of a model's calls since startup, over all of its versions."""
        return self._context.metrics.statistics(name)

    async def load_model(self, name: str, version: str = "") -> ModelInfo:
        """Loads or reloads a model. The load continues if the caller cancels."""
        _check_names(name, version)
        catalog = self._context.catalog
        model = await asyncio.shield(asyncio.ensure_future(catalog.load(name, version)))
        return self.get_model(name, model.manifest.version)

    async def unload_model(self, name: str, version: str = "") -> tuple[str, ...]:
        """Unloads one version, or all if ``version`` is empty; returns the unloaded versions."""
        _check_names(name, version)
        return await self._context.catalog.unload(name, version)


def _check_names(model: str, version: str) -> None:
    check_name("model", model)
    check_name("version", version)
