"""``InferenceService``: the wire, and nothing else."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TypeVar

from protos.triune.v1 import common_pb2, inference_pb2_grpc
from protos.triune.v1 import inference_pb2 as pb
from server.engine.requests.sequence import Completion
from server.frontends.grpc import messages
from server.frontends.grpc.calls import Context, guarded
from server.frontends.grpc.stream_writer import Writer
from server.service import (
    answering,
    embedding,
    generation,
    labels,
    masks,
    ranking,
    scoring,
    tokenization,
)
from server.service.accounting import timing
from server.service.caller import Caller
from server.service.context import Services
from server.service.generation import TextChunk
from server.service.prepare import PreparedRequest, prepare_generate, prepare_translate

Unary = TypeVar("Unary", pb.GenerateResponse, pb.TranslateResponse)
Streamed = TypeVar("Streamed", pb.GenerateStreamResponse, pb.TranslateStreamResponse)


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Maps each call to its implementation."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        async with self._guarded("Generate", request.model, context):
            prepared = await prepare_generate(request, self._services, Caller.of(context))
            return await self._collect(prepared, pb.GenerateResponse)

    async def GenerateStream(  # type: ignore[override]
        self, request: pb.GenerateStreamRequest, context: Context
    ) -> None:
        async with self._guarded("GenerateStream", request.model, context):
            prepared = await prepare_generate(request, self._services, Caller.of(context))
            await self._stream(prepared, pb.GenerateStreamResponse, context)

    async def Translate(
        self, request: pb.TranslateRequest, context: Context
    ) -> pb.TranslateResponse:
        async with self._guarded("Translate", request.model, context):
            prepared = await prepare_translate(request, self._services, Caller.of(context))
            return await self._collect(prepared, pb.TranslateResponse)

    async def TranslateStream(  # type: ignore[override]
        self, request: pb.TranslateStreamRequest, context: Context
    ) -> None:
        async with self._guarded("TranslateStream", request.model, context):
            prepared = await prepare_translate(request, self._services, Caller.of(context))
            await self._stream(prepared, pb.TranslateStreamResponse, context)

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        async with self._guarded("Embed", request.model, context):
            return await embedding.embed(request, self._services, Caller.of(context))

    async def Classify(self, request: pb.ClassifyRequest, context: Context) -> pb.ClassifyResponse:
        async with self._guarded("Classify", request.model, context):
            return await labels.classify(request, self._services, Caller.of(context))

    async def EmbedStream(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.EmbedStreamRequest], context: Context
    ) -> None:
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        if first is None:
            return
        async with self._guarded("EmbedStream", first.model, context):
            bulk = embedding.Bulk(self._services, Caller.of(context))
            async with (
                self._writer(context) as writer,
                aclosing(bulk.answers(first, requests)) as answers,
            ):
                async for answer in answers:
                    await writer.write(answer)

    async def Tag(self, request: pb.TagRequest, context: Context) -> pb.TagResponse:
        async with self._guarded("Tag", request.model, context):
            return await labels.tag(request, self._services, Caller.of(context))

    async def FillMask(self, request: pb.FillMaskRequest, context: Context) -> pb.FillMaskResponse:
        async with self._guarded("FillMask", request.model, context):
            return await masks.fill_mask(request, self._services, Caller.of(context))

    async def Answer(self, request: pb.AnswerRequest, context: Context) -> pb.AnswerResponse:
        async with self._guarded("Answer", request.model, context):
            return await answering.answer(request, self._services, Caller.of(context))

    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResponse:
        async with self._guarded("Rerank", request.model, context):
            return await ranking.rerank(request, self._services, Caller.of(context))

    async def Score(self, request: pb.ScoreRequest, context: Context) -> pb.ScoreResponse:
        async with self._guarded("Score", request.model, context):
            return await scoring.score(request, self._services, Caller.of(context))

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        async with self._guarded("Tokenize", request.model, context):
            return await tokenization.tokenize(request, self._services, Caller.of(context))

    def _guarded(
        self, method: str, model: str, context: Context
    ) -> AbstractAsyncContextManager[None]:
        services = self._services
        return guarded(method, model, context, services.catalog, services.metrics)

    def _writer(self, context: Context) -> Writer:
        return Writer(context, self._services.config.stall_seconds)

    async def _stream(
        self, prepared: PreparedRequest, response: type[Streamed], context: Context
    ) -> None:
        made = generation.generate(prepared, self._services, is_streamed=True)
        async with self._writer(context) as writer, aclosing(made) as pieces:
            async for piece in pieces:
                await writer.write(_streamed(prepared, piece, response))

    async def _collect(self, prepared: PreparedRequest, response: type[Unary]) -> Unary:
        """All outputs of a request, in the order of its inputs."""
        outputs: list[dict[int, list[TextChunk]]] = [{} for _ in prepared.jobs]
        made = generation.generate(prepared, self._services, is_streamed=False)
        async with aclosing(made) as pieces:
            async for piece in pieces:
                outputs[piece.index].setdefault(piece.hypothesis, []).append(piece)
        ends = [
            piece.finish
            for hypotheses in outputs
            for hypothesis in hypotheses.values()
            for piece in hypothesis
            if piece.finish is not None
        ]
        return response(
            model=prepared.model.manifest.name,
            outputs=[messages.output(prepared, hypotheses) for hypotheses in outputs],
            usage=generation.total_usage([end.usage for end in ends]),
            timing=_timing(prepared, [end.end for end in ends]),
        )


def _streamed(prepared: PreparedRequest, piece: TextChunk, response: type[Streamed]) -> Streamed:
    message = response(
        model=prepared.model.manifest.name,
        index=piece.index,
        hypothesis=piece.hypothesis,
        text=piece.text,
        token_ids=piece.token_ids if prepared.wants_token_ids else (),
        logprobs=messages.logprobs(prepared, piece.token_ids, piece.logprobs),
    )
    if piece.finish is not None:
        message.finish_reason = piece.finish.reason
        message.usage.CopyFrom(piece.finish.usage)
        message.timing.CopyFrom(_timing(prepared, [piece.finish.end]))
        message.prompt_logprobs.extend(messages.prompt_logprobs(prepared, piece))
        if piece.finish.score is not None:
            message.score = piece.finish.score
        if piece.finish.attention is not None:
            message.attention.CopyFrom(piece.finish.attention)
    return message


def _timing(prepared: PreparedRequest, ends: list[Completion]) -> common_pb2.Timing:
    return timing(ends, prepared.tokenize_seconds, prepared.started)
