"""``InferenceService``: decodes each request, calls the service, encodes the result."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol, TypeVar, cast

from google.protobuf.message import Message

from protos.triune.v1 import inference_pb2 as pb
from protos.triune.v1 import inference_pb2_grpc
from server.frontends.grpc import encoder_codec as encoders
from server.frontends.grpc import generation_codec as generation
from server.frontends.grpc.calls import caller_of, rpc_scope
from server.frontends.grpc.codec import decode
from server.frontends.grpc.context import Context
from server.frontends.grpc.embed_codec import EmbedStreamCodec, decode_encoding, embed_response
from server.frontends.grpc.recordings import IncomingRecording, ReceivedBytes
from server.frontends.grpc.stream_writer import StreamWriter
from server.frontends.grpc.transcription_codec import chunk_response, transcribe_response
from server.service.answer import AnswerRequest
from server.service.attend import AttendRequest
from server.service.caller import Caller
from server.service.classify import ClassifyRequest
from server.service.correct import CorrectRequest
from server.service.embedding import EmbedRequest
from server.service.fill_mask import FillMaskRequest
from server.service.generation_request import GenerateRequest, TextChunk, TranslateRequest
from server.service.rerank import RerankRequest
from server.service.score import ScoreRequest
from server.service.service import Service
from server.service.tag import TagRequest
from server.service.tokenize import TokenizeRequest
from server.service.transcription_request import TranscribeRequest

# A response with up to this many values is encoded on the event loop, in at most about 0.5 ms.
MAX_INLINE_VALUES = 1024


class Reply(Protocol):
    """A result of the service, or a chunk of one."""

    @property
    def num_values(self) -> int: ...


Request = TypeVar("Request")
Result = TypeVar("Result", bound=Reply)
Response = TypeVar("Response", bound=Message)


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """The handlers of ``InferenceService``."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._received = ReceivedBytes()

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        return await self._unary(
            *("Generate", request, context, GenerateRequest, self._service.generate),
            lambda result: generation.generation_response(result, pb.GenerateResponse),
        )

    async def GenerateStream(  # type: ignore[override]
        self, request: pb.GenerateStreamRequest, context: Context
    ) -> None:
        await self._stream(
            *("GenerateStream", request, context, GenerateRequest, self._service.generate_stream),
            lambda chunk: generation.chunk_response(chunk, pb.GenerateStreamResponse),
        )

    async def Translate(
        self, request: pb.TranslateRequest, context: Context
    ) -> pb.TranslateResponse:
        return await self._unary(
            *("Translate", request, context, TranslateRequest, self._service.translate),
            lambda result: generation.generation_response(result, pb.TranslateResponse),
        )

    async def TranslateStream(  # type: ignore[override]
        self, request: pb.TranslateStreamRequest, context: Context
    ) -> None:
        await self._stream(
            *("TranslateStream", request, context, TranslateRequest),
            self._service.translate_stream,
            lambda chunk: generation.chunk_response(chunk, pb.TranslateStreamResponse),
        )

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        async with rpc_scope(self._service, "Embed", request, context):
            encoding, caller = decode_encoding(request), caller_of(context)
            result = await self._service.embed(decode(request, EmbedRequest), caller)
            return await self._encoded(result, lambda it: embed_response(it, encoding), caller)

    async def EmbedStream(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.EmbedStreamRequest], context: Context
    ) -> None:
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        if first is None:
            return
        async with rpc_scope(self._service, "EmbedStream", first, context):
            stream = EmbedStreamCodec(first, requests)
            caller = caller_of(context)
            answers = self._service.embed_stream(stream, caller)
            async with self._writer(context) as writer, aclosing(answers):
                async for id_, result in answers:
                    encode = stream.response(id_)
                    await writer.write(await self._encoded(result, encode, caller))

    async def Classify(self, request: pb.ClassifyRequest, context: Context) -> pb.ClassifyResponse:
        return await self._unary(
            *("Classify", request, context, ClassifyRequest, self._service.classify),
            encoders.classify_response,
        )

    async def Tag(self, request: pb.TagRequest, context: Context) -> pb.TagResponse:
        return await self._unary(
            *("Tag", request, context, TagRequest, self._service.tag), encoders.tag_response
        )

    async def FillMask(self, request: pb.FillMaskRequest, context: Context) -> pb.FillMaskResponse:
        return await self._unary(
            *("FillMask", request, context, FillMaskRequest, self._service.fill_mask),
            encoders.fill_mask_response,
        )

    async def Answer(self, request: pb.AnswerRequest, context: Context) -> pb.AnswerResponse:
        return await self._unary(
            *("Answer", request, context, AnswerRequest, self._service.answer),
            encoders.answer_response,
        )

    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResponse:
        return await self._unary(
            *("Rerank", request, context, RerankRequest, self._service.rerank),
            encoders.rerank_response,
        )

    async def Correct(self, request: pb.CorrectRequest, context: Context) -> pb.CorrectResponse:
        return await self._unary(
            *("Correct", request, context, CorrectRequest, self._service.correct),
            encoders.correct_response,
        )

    async def Attend(self, request: pb.AttendRequest, context: Context) -> pb.AttendResponse:
        return await self._unary(
            *("Attend", request, context, AttendRequest, self._service.attend),
            generation.attend_response,
        )

    async def Score(self, request: pb.ScoreRequest, context: Context) -> pb.ScoreResponse:
        return await self._unary(
            *("Score", request, context, ScoreRequest, self._service.score),
            generation.score_response,
        )

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        return await self._unary(
            *("Tokenize", request, context, TokenizeRequest, self._service.tokenize),
            generation.tokenize_response,
        )

    async def Transcribe(
        self, request: pb.TranscribeRequest, context: Context
    ) -> pb.TranscribeResponse:
        return await self._unary(
            *("Transcribe", request, context, TranscribeRequest, self._service.transcribe),
            transcribe_response,
        )

    async def TranscribeStream(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.TranscribeStreamRequest], context: Context
    ) -> None:
        recording = IncomingRecording(request_iterator, self._received)
        first = await recording.first()
        async with rpc_scope(self._service, "TranscribeStream", first, context):
            caller = caller_of(context)
            if first.model:
                self._service.manifest(first.model, first.version)  # before the recording arrives
            async with recording.received(caller.client) as audio:
                request = replace(decode(first, TranscribeRequest), audio=audio)
                chunks = await self._service.transcribe_stream(request, caller)
                async with self._writer(context) as writer, aclosing(chunks):
                    async for chunk in chunks:
                        await writer.write(await self._encoded(chunk, chunk_response, caller))

    async def _unary(
        self,
        method: str,
        message: Message,
        context: Context,
        kind: type[Request],
        answer: Callable[[Request, Caller], Awaitable[Result]],
        encode: Callable[[Result], Response],
    ) -> Response:
        async with rpc_scope(self._service, method, message, context):
            caller = caller_of(context)
            result = await answer(decode(message, kind), caller)
            return await self._encoded(result, encode, caller)

    async def _encoded(
        self, result: Result, encode: Callable[[Result], Response], caller: Caller
    ) -> Response:
        """Encodes a response. A large one is encoded and serialized in a thread, to ``bytes``."""
        num_values = result.num_values
        if num_values <= MAX_INLINE_VALUES:
            return encode(result)
        serialized = await self._service.build(
            num_values, lambda: encode(result).SerializeToString(), caller
        )
        return cast(Response, serialized)

    async def _stream(
        self,
        method: str,
        message: Message,
        context: Context,
        kind: type[Request],
        answer: Callable[[Request, Caller], Awaitable[AsyncGenerator[TextChunk, None]]],
        encode: Callable[[TextChunk], Message],
    ) -> None:
        async with rpc_scope(self._service, method, message, context):
            caller = caller_of(context)
            chunks = await answer(decode(message, kind), caller)
            async with self._writer(context) as writer, aclosing(chunks):
                async for chunk in chunks:
                    await writer.write(await self._encoded(chunk, encode, caller))

    def _writer(self, context: Context) -> StreamWriter:
        return StreamWriter(context, self._service.stall_seconds)
