"""The asyncio client. ``client.sync`` has the same calls, blocking."""

from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from typing import Unpack

from client import (
    encoder_requests,
    encoder_responses,
    encoder_types,
    requests,
    responses,
    transcription_messages,
    types,
)
from client.aio_calls import AsyncCalls
from client.errors import TriuneError, typed_aio_errors
from client.requests import Images, Pairs, PairsOrImages, Recordings, Texts
from protos.triune.v1 import encoding_pb2, models_pb2
from protos.triune.v1 import inference_pb2 as wire


class AsyncClient(AsyncCalls):
    """Calls a Triune server at ``target`` ("host:port") from one event loop.

    Results have one output for each input, in order.

    Args:
        target: the server's address.
        timeout_seconds: limit of each attempt of a call; by default none.
        retry: whether refused calls are retried; by default they are not.
        security: TLS and bearer token; by default neither.

    Raises:
        TriuneError: by every call that fails (``client.errors``).
        ValueError: by a call with a value out of its field's range, such as a negative seed.
        TypeError: by a call with an unknown option.
    """

    async def generate(
        self,
        model: str,
        inputs: Texts = (),
        *,
        token_inputs: Sequence[Sequence[int]] = (),
        messages: Sequence[types.Message] = (),
        images: Images = (),
        **options: Unpack[types.GenerateOptions],
    ) -> types.TextResult:
        """Continues texts or token ids, replies to one conversation, or describes images.

        Give exactly one of ``inputs``, ``token_inputs`` (prompts that the caller tokenized),
        ``messages`` (one conversation, for models with a chat template) and ``images`` (contents
        of files, for models that read images). Decoders continue prompts; encoder-decoders that
        generate, such as summarizers, answer texts or images.
        """
        request = requests.generate(
            wire.GenerateRequest, model, inputs, token_inputs, messages, options, images
        )
        return await self._call(self._inference.Generate, request, responses.text_result)

    def generate_stream(
        self,
        model: str,
        inputs: Texts = (),
        *,
        token_inputs: Sequence[Sequence[int]] = (),
        messages: Sequence[types.Message] = (),
        images: Images = (),
        **options: Unpack[types.GenerateOptions],
    ) -> AsyncGenerator[types.Piece, None]:
        """Like ``generate``, but yields text as it is generated; pieces of outputs interleave.

        ``aclose`` before the end cancels the call.
        """
        request = requests.generate(
            wire.GenerateStreamRequest, model, inputs, token_inputs, messages, options, images
        )
        return self._stream(self._inference.GenerateStream, lambda: request, responses.piece)

    async def translate(
        self,
        model: str,
        inputs: Texts,
        *,
        source_language: str = "",
        target_language: str = "",
        **options: Unpack[types.TranslationOptions],
    ) -> types.TextResult:
        """Translates texts with an encoder-decoder.

        Languages are those of ``Model.languages``; empty ones are the model's defaults.
        """
        request = requests.translate(
            wire.TranslateRequest, model, inputs, source_language, target_language, options
        )
        return await self._call(self._inference.Translate, request, responses.text_result)

    def translate_stream(
        self,
        model: str,
        inputs: Texts,
        *,
        source_language: str = "",
        target_language: str = "",
        **options: Unpack[types.TranslationOptions],
    ) -> AsyncGenerator[types.Piece, None]:
        """Like ``translate``, but yields text as it is generated; pieces of outputs interleave.

        ``aclose`` before the end cancels the call.
        """
        request = requests.translate(
            wire.TranslateStreamRequest, model, inputs, source_language, target_language, options
        )
        return self._stream(self._inference.TranslateStream, lambda: request, responses.piece)

    async def score(
        self, model: str, pairs: Pairs, **options: Unpack[types.ScoreOptions]
    ) -> types.ScoreResult:
        """Scores how likely the second text of each pair is, given the first.

        The first is the prompt of a decoder, or the source of an encoder-decoder.
        """
        request = requests.score(model, pairs, options)
        return await self._call(self._inference.Score, request, responses.score)

    async def embed(
        self, model: str, inputs: Texts | Images, **options: Unpack[encoder_types.EmbedOptions]
    ) -> encoder_types.EmbedResult:
        """Maps texts, or images (contents of files), to vectors of ``[dimensions]`` floats."""
        request = encoder_requests.embed(model, inputs, options)
        return await self._call(self._inference.Embed, request, encoder_responses.embed)

    async def embed_stream(
        self,
        model: str,
        batches: AsyncIterable[Texts | Images],
        **options: Unpack[encoder_types.EmbedOptions],
    ) -> AsyncGenerator[encoder_types.EmbedBatch, None]:
        """Maps any number of batches to vectors, in order, in one call.

        ``batches`` are consumed as fast as the server accepts them. If they raise an error, the
        call ends and raises it too. The call is not retried.
        """
        failures: list[Exception] = []

        async def parts() -> AsyncGenerator[encoding_pb2.EmbedStreamRequest, None]:
            number = 0
            try:
                async for texts in batches:
                    yield encoder_requests.embed_part(number, model, texts, options)
                    number += 1
            except Exception as error:
                failures.append(error)
                raise

        call = self._inference.EmbedStream(
            parts(), timeout=self._timeout_seconds, metadata=self._metadata
        )
        try:
            with typed_aio_errors():
                async for message in call:
                    yield encoder_responses.embed_part(message)
        except TriuneError:
            if failures:  # gRPC ends the call with a status that does not name the error
                raise failures[0] from None
            raise
        finally:
            call.cancel()

    async def classify(
        self,
        model: str,
        inputs: Texts | Images = (),
        *,
        pairs: PairsOrImages = (),
        audio: Recordings = (),
        **options: Unpack[encoder_types.ClassifyOptions],
    ) -> encoder_types.ClassifyResult:
        """Classifies texts, pairs, images or recordings (contents of files): labels, best first."""
        request = encoder_requests.classify(model, inputs, pairs, options, audio)
        return await self._call(self._inference.Classify, request, encoder_responses.classify)

    async def tag(
        self, model: str, inputs: Texts, **options: Unpack[encoder_types.TagOptions]
    ) -> encoder_types.TagResult:
        """Finds labelled parts of texts, such as named entities."""
        request = encoder_requests.tag(model, inputs, options)
        return await self._call(self._inference.Tag, request, encoder_responses.tag)

    async def fill_mask(
        self, model: str, inputs: Texts, **options: Unpack[encoder_types.FillMaskOptions]
    ) -> encoder_types.FillMaskResult:
        """Predicts words for the masks in texts, which are written as ``Model.mask_token``."""
        request = encoder_requests.fill_mask(model, inputs, options)
        return await self._call(self._inference.FillMask, request, encoder_responses.fill_mask)

    async def answer(
        self,
        model: str,
        questions: Sequence[encoder_types.Question],
        **options: Unpack[encoder_types.AnswerOptions],
    ) -> encoder_types.AnswerResult:
        """Finds the part of each question's context that answers it (extractive)."""
        request = encoder_requests.answer(model, questions, options)
        return await self._call(self._inference.Answer, request, encoder_responses.answer)

    async def correct(
        self, model: str, inputs: Texts, **options: Unpack[encoder_types.CorrectOptions]
    ) -> encoder_types.CorrectResult:
        """Corrects texts, such as their grammar, by editing words."""
        request = encoder_requests.correct(model, inputs, options)
        return await self._call(self._inference.Correct, request, encoder_responses.correct)

    async def rerank(
        self,
        model: str,
        query: str,
        documents: Sequence[str],
        **options: Unpack[encoder_types.RerankOptions],
    ) -> encoder_types.RerankResult:
        """Sorts documents by relevance to a query, most relevant first."""
        request = encoder_requests.rerank(model, query, documents, options)
        return await self._call(self._inference.Rerank, request, encoder_responses.rerank)

    async def attend(
        self,
        model: str,
        inputs: Texts = (),
        *,
        pairs: Pairs = (),
        **options: Unpack[encoder_types.AttendOptions],
    ) -> encoder_types.AttendResult:
        """Returns an encoder's attention over texts, or pairs of texts: layers, heads or a mean."""
        request = encoder_requests.attend(model, inputs, pairs, options)
        return await self._call(self._inference.Attend, request, encoder_responses.attend)

    async def tokenize(
        self, model: str, inputs: Texts, *, without_special_tokens: bool = False, version: str = ""
    ) -> types.TokenizeResult:
        """Tokenizes texts as the model does."""
        request = requests.tokenize(model, inputs, without_special_tokens, version)
        return await self._call(self._inference.Tokenize, request, responses.tokenize)

    async def transcribe(
        self, model: str, audio: bytes, **options: Unpack[types.TranscriptionOptions]
    ) -> types.TranscribeResult:
        """Transcribes a recording, the contents of a file with at most 25 MiB.

        A file that is too large for one message is sent as a stream.
        """
        if len(audio) > transcription_messages.MAX_UNARY_BYTES:
            pieces = [piece async for piece in self.transcribe_stream(model, audio, **options)]
            return transcription_messages.joined(pieces)
        request = transcription_messages.request(model, audio, options)
        return await self._call(self._inference.Transcribe, request, transcription_messages.result)

    def transcribe_stream(
        self, model: str, audio: bytes, **options: Unpack[types.TranscriptionOptions]
    ) -> AsyncGenerator[types.TranscriptionPiece, None]:
        """Like ``transcribe``, but yields segments as they are ready.

        ``aclose`` before the end cancels the call.
        """
        parts = transcription_messages.parts(model, audio, options)
        return self._stream(self._inference.TranscribeStream, parts, transcription_messages.piece)

    async def list_models(self) -> tuple[types.Model, ...]:
        """Lists the server's models, refused ones included."""
        request = models_pb2.ListModelsRequest()
        return await self._call(self._models.ListModels, request, responses.models)

    async def get_model(self, model: str, *, version: str = "") -> types.Model:
        """Describes one model; raises NOT_FOUND for an unknown one."""
        request = models_pb2.GetModelRequest(model=model, version=version)
        return await self._call(self._models.GetModel, request, responses.model)
