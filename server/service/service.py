"""The service: what every front end calls, whatever its protocol."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from server.errors import Code, InternalError, ServeError
from server.service import answer, classify, embed, embed_stream, fill_mask, rerank, score, tag
from server.service import tokenize as tokenization
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.embed import EmbedResult
from server.service.generate import prepare_generate
from server.service.generation_request import (
    GenerateRequest,
    GenerationResult,
    TextChunk,
    TranslateRequest,
)
from server.service.model_info import ModelInfo, model_info
from server.service.text_stream import collect, stream
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

    async def embed(self, request: embed.EmbedRequest, caller: Caller) -> embed.EmbedResult:
        """Maps texts to vectors."""
        return await embed.embed(request, self._context, caller)

    def embed_stream(
        self, items: AsyncIterator[embed_stream.BulkItem], caller: Caller
    ) -> AsyncGenerator[tuple[int, EmbedResult], None]:
        """Maps any number of texts to vectors; answers come in the order of the items."""
        return embed_stream.embed_stream(items, self._context, caller)

    async def classify(
        self, request: classify.ClassifyRequest, caller: Caller
    ) -> classify.ClassifyResult:
        """Maps texts, or pairs of texts, to labels with scores."""
        return await classify.classify(request, self._context, caller)

    async def tag(self, request: tag.TagRequest, caller: Caller) -> tag.TagResult:
        """Finds the parts of texts that have labels."""
        return await tag.tag(request, self._context, caller)

    async def fill_mask(
        self, request: fill_mask.FillMaskRequest, caller: Caller
    ) -> fill_mask.FillMaskResult:
        """Finds words for the masks of texts."""
        return await fill_mask.fill_mask(request, self._context, caller)

    async def answer(self, request: answer.AnswerRequest, caller: Caller) -> answer.AnswerResult:
        """Finds the parts of texts that answer questions."""
        return await answer.answer(request, self._context, caller)

    async def rerank(self, request: rerank.RerankRequest, caller: Caller) -> rerank.RerankResult:
        """Sorts documents by how well they fit a query."""
        return await rerank.rerank(request, self._context, caller)

    async def score(self, request: score.ScoreRequest, caller: Caller) -> score.ScoreResult:
        """Computes how likely given texts are."""
        return await score.score(request, self._context, caller)

    async def tokenize(
        self, request: tokenization.TokenizeRequest, caller: Caller
    ) -> tokenization.TokenizeResult:
        """Splits texts as a model does."""
        return await tokenization.tokenize(request, self._context, caller)

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
