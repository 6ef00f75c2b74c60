"""The service: what every front end calls, whatever its protocol."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from server.errors import Code, InternalError, ServeError
from server.service.answer import AnswerRequest, AnswerResult
from server.service.answer import answer as answer_questions
from server.service.caller import Caller
from server.service.classify import ClassifyRequest, ClassifyResult
from server.service.classify import classify as classify_texts
from server.service.context import ServiceContext
from server.service.embed import EmbedRequest, EmbedResult
from server.service.embed import embed as embed_texts
from server.service.embed_stream import BulkItem
from server.service.embed_stream import embed_stream as embed_items
from server.service.fill_mask import FillMaskRequest, FillMaskResult
from server.service.fill_mask import fill_mask as fill_masks
from server.service.generate import prepare_generate
from server.service.generation_request import (
    GenerateRequest,
    GenerationResult,
    TextChunk,
    TranslateRequest,
)
from server.service.model_info import ModelInfo, model_info
from server.service.rerank import RerankRequest, RerankResult
from server.service.rerank import rerank as rerank_documents
from server.service.score import ScoreRequest, ScoreResult
from server.service.score import score as score_texts
from server.service.tag import TagRequest, TagResult
from server.service.tag import tag as tag_texts
from server.service.text_stream import collect, stream
from server.service.tokenize import TokenizeRequest, TokenizeResult
from server.service.tokenize import tokenize as tokenize_texts
from server.service.translate import prepare_translate

log = logging.getLogger(__name__)

# The label of calls that name no model served here: label values stay bounded.
UNKNOWN_MODEL = "unknown"


class Service:
    """Answers requests. Every method raises ``ServeError``, whose fields have neutral names.

    A front end decodes a request, calls one method within :meth:`counted`, and encodes the
    result.
    """

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    @property
    def stall_seconds(self) -> float:
        """After so long without reading, a stream's client is given up."""
        return self._context.config.stall_seconds

    @asynccontextmanager
    async def counted(self, method: str, model: str = "") -> AsyncIterator[None]:
        """Around a call: counts it by its outcome, and keeps its model loaded until it ends.

        Args:
            method: the call's name, a metric label.
            model: that the request names; empty for calls that use none.

        Raises:
            ServeError: as raised inside; anything else is logged and becomes ``InternalError``.
        """
        catalog = self._context.catalog
        started = time.monotonic()
        code = Code.CANCELLED  # what remains if the call is abandoned
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
            label = model if model in catalog.registry.names else UNKNOWN_MODEL
            seconds = time.monotonic() - started
            self._context.metrics.on_request(label, method, code, seconds)

    async def generate(self, request: GenerateRequest, caller: Caller) -> GenerationResult:
        """Continues prompts, or answers texts; returns whole outputs."""
        prepared = await prepare_generate(request, self._context, caller)
        return await collect(prepared, self._context)

    async def generate_stream(
        self, request: GenerateRequest, caller: Caller
    ) -> AsyncGenerator[TextChunk, None]:
        """The same, as a stream of chunks."""
        prepared = await prepare_generate(request, self._context, caller)
        return stream(prepared, self._context)

    async def translate(self, request: TranslateRequest, caller: Caller) -> GenerationResult:
        """Translates texts; returns whole outputs."""
        prepared = await prepare_translate(request, self._context, caller)
        return await collect(prepared, self._context)

    async def translate_stream(
        self, request: TranslateRequest, caller: Caller
    ) -> AsyncGenerator[TextChunk, None]:
        """The same, as a stream of chunks."""
        prepared = await prepare_translate(request, self._context, caller)
        return stream(prepared, self._context)

    async def embed(self, request: EmbedRequest, caller: Caller) -> EmbedResult:
        """Maps texts to vectors."""
        return await embed_texts(request, self._context, caller)

    def embed_stream(
        self, items: AsyncIterator[BulkItem], caller: Caller
    ) -> AsyncGenerator[tuple[int, EmbedResult], None]:
        """Maps any number of texts to vectors; answers come in the order of the items."""
        return embed_items(items, self._context, caller)

    async def classify(self, request: ClassifyRequest, caller: Caller) -> ClassifyResult:
        """Maps texts, or pairs of texts, to labels with scores."""
        return await classify_texts(request, self._context, caller)

    async def tag(self, request: TagRequest, caller: Caller) -> TagResult:
        """Finds the parts of texts that have labels."""
        return await tag_texts(request, self._context, caller)

    async def fill_mask(self, request: FillMaskRequest, caller: Caller) -> FillMaskResult:
        """Finds words for the masks of texts."""
        return await fill_masks(request, self._context, caller)

    async def answer(self, request: AnswerRequest, caller: Caller) -> AnswerResult:
        """Finds the parts of texts that answer questions."""
        return await answer_questions(request, self._context, caller)

    async def rerank(self, request: RerankRequest, caller: Caller) -> RerankResult:
        """Sorts documents by how well they fit a query."""
        return await rerank_documents(request, self._context, caller)

    async def score(self, request: ScoreRequest, caller: Caller) -> ScoreResult:
        """Computes how likely given texts are."""
        return await score_texts(request, self._context, caller)

    async def tokenize(self, request: TokenizeRequest, caller: Caller) -> TokenizeResult:
        """Splits texts as a model does."""
        return await tokenize_texts(request, self._context, caller)

    def list_models(self) -> tuple[ModelInfo, ...]:
        """Every version of every model."""
        config = self._context.config
        return tuple(model_info(entry, config) for entry in self._context.registry.entries)

    def get_model(self, name: str, version: str = "") -> ModelInfo:
        """One version of a model; the newest if ``version`` is empty."""
        entry = self._context.registry.describe(name, version)
        return model_info(entry, self._context.config)

    async def load_model(self, name: str, version: str = "") -> ModelInfo:
        """Loads a model. It goes on if the caller leaves."""
        catalog = self._context.catalog
        model = await asyncio.shield(asyncio.ensure_future(catalog.load(name, version)))
        return self.get_model(name, model.manifest.version)

    async def unload_model(self, name: str, version: str = "") -> tuple[str, ...]:
        """Unloads a version, or all of them; returns which."""
        return await self._context.catalog.unload(name, version)
