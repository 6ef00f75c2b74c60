"""Codec of Embed and EmbedStream: vectors as floats or as packed bytes."""

from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np

from protos.triune.v1 import encoding_pb2 as pb
from server.errors import ServeError
from server.frontends.grpc import codec
from server.frontends.grpc.common_codec import timing, usage
from server.frontends.grpc.encoder_codec import reading
from server.service.embed_stream import BulkItem
from server.service.embedding import Embedding, EmbedRequest, EmbedResult, TokenEmbeddings


class EncodingFormat(Enum):
    """How vectors are sent: as a list of floats, or as packed little-endian numbers."""

    FLOAT = pb.ENCODING_FORMAT_FLOAT
    FLOAT32_BYTES = pb.ENCODING_FORMAT_FLOAT32_BYTES
    FLOAT16_BYTES = pb.ENCODING_FORMAT_FLOAT16_BYTES

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Element type of packed numbers. Token vectors are packed in every format."""
        return np.dtype("<f2" if self is EncodingFormat.FLOAT16_BYTES else "<f4")


@dataclass(frozen=True, slots=True)
class _Encoding:
    encoding_format: EncodingFormat = EncodingFormat.FLOAT


def decode_encoding(message: pb.EmbedRequest) -> EncodingFormat:
    """The encoding format of the response that ``message`` requests.

    Raises:
        InvalidArgumentError: the value of ``encoding_format`` is unknown.
    """
    return codec.decode(message, _Encoding).encoding_format


def embed_response(result: EmbedResult, encoding: EncodingFormat) -> pb.EmbedResponse:
    """The response to Embed, with vectors in ``encoding``."""
    return pb.EmbedResponse(
        model=result.model,
        outputs=[_embedding(output, encoding) for output in result.outputs],
        usage=usage(result.usage),
        timing=timing(result.timing),
    )


def embed_stream_response(
    id_: int, result: EmbedResult, encoding: EncodingFormat
) -> pb.EmbedStreamResponse:
    """One response of EmbedStream; ``id_`` is the id of its request."""
    return pb.EmbedStreamResponse(
        id=id_,
        model=result.model,
        outputs=[_embedding(output, encoding) for output in result.outputs],
        usage=usage(result.usage),
        timing=timing(result.timing),
    )


class EmbedStreamCodec:
    """Codec of one EmbedStream call: iterates over its requests, and encodes its responses.

    A message without model, version, options or length inherits them from earlier messages. A
    model without a version means its newest version.

    Args:
        first: the first message.
        messages: the messages after it.
    """

    def __init__(
        self, first: pb.EmbedStreamRequest, messages: AsyncIterator[pb.EmbedStreamRequest]
    ) -> None:
        self._first: pb.EmbedStreamRequest | None = first
        self._messages = messages
        self._last = pb.EmbedRequest()  # model, version, options and length so far
        self._encodings: deque[EncodingFormat] = deque()  # for the requests without a response

    def __aiter__(self) -> "EmbedStreamCodec":
        return self

    async def __anext__(self) -> BulkItem:
        """The next request, or the error if it cannot be decoded."""
        message, self._first = self._first, None
        if message is None:
            try:
                message = await anext(self._messages)
            except ServeError as error:  # the message is malformed, so its id is unknown
                return BulkItem(0, error)
        whole = self._completed(message)
        try:
            encoding = decode_encoding(whole)
            request = codec.decode(whole, EmbedRequest)
        except ServeError as error:
            return BulkItem(message.id, error)
        self._encodings.append(encoding)
        return BulkItem(message.id, request)

    def response(self, id_: int) -> Callable[[EmbedResult], pb.EmbedStreamResponse]:
        """Encodes the response to the first request that has none yet; ``id_`` is its id."""
        encoding = self._encodings.popleft()
        return lambda result: embed_stream_response(id_, result, encoding)

    def _completed(self, message: pb.EmbedStreamRequest) -> pb.EmbedRequest:
        last = self._last
        if message.model:
            last.model, last.version = message.model, message.version
        elif message.version:
            last.version = message.version
        if message.HasField("options"):
            last.options.CopyFrom(message.options)
        if message.HasField("length"):
            last.length.CopyFrom(message.length)
        whole = pb.EmbedRequest(inputs=message.inputs, images=message.images)
        whole.MergeFrom(last)
        return whole


def _embedding(output: Embedding, encoding: EncodingFormat) -> pb.Embedding:
    message = pb.Embedding(usage=usage(output.usage), reading=reading(output.truncation))
    is_packed = output.vector is not None or output.tokens is not None
    if encoding is not EncodingFormat.FLOAT and is_packed:
        message.encoding_format = encoding.value
    if output.vector is not None and encoding is EncodingFormat.FLOAT:
        message.values.extend(output.vector.tolist())
    elif output.vector is not None:
        message.packed = output.vector.astype(encoding.dtype).tobytes()
    if output.tokens is not None:
        message.tokens.CopyFrom(_token_embeddings(output.tokens, encoding))
    if output.sparse is not None:
        message.sparse.indices.extend(output.sparse.indices.tolist())
        message.sparse.values.extend(output.sparse.values.tolist())
        message.sparse.tokens.extend(output.sparse.tokens)
    return message


def _token_embeddings(tokens: TokenEmbeddings, encoding: EncodingFormat) -> pb.TokenEmbeddings:
    return pb.TokenEmbeddings(
        tokens=tokens.tokens,
        starts=[start for start, _ in tokens.offsets],
        ends=[end for _, end in tokens.offsets],
        packed=tokens.vectors.astype(encoding.dtype).tobytes(),
        size=tokens.vectors.shape[1],
    )
