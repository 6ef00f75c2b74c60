"""Embed: texts to vectors, in one message or as a stream of bulk work."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model.bundle import Embedding, Task
from protos.triune.v1 import encoding_pb2 as pb
from server.engine.requests.sequence import Floats
from server.errors import InvalidArgumentError, OverloadedError
from server.models.registry import Model
from server.service import encoder_options as options
from server.service import validation
from server.service.caller import Caller
from server.service.context import Services
from server.service.encoding import EncoderCall, EncoderOutput, report_of, usage_of
from server.text.windows import LongInput, TokenizedText

# Of one stream, in work at a time. Of many texts some are of one length, so that little is padded.
MAX_STREAM_TEXTS = 512
MAX_STREAM_REQUESTS = 64
SMALLEST_NORM = 1e-12  # what torch.nn.functional.normalize divides by at least


@dataclass(frozen=True, slots=True)
class _Form:
    """How vectors are sent. ``dtype``: None for one float each."""

    size: int | None
    normalize: bool
    prompt: str
    dtype: "npt.DTypeLike | None"
    encoding_format: pb.EncodingFormat.ValueType
    wants_tokens: bool


async def embed(
    request: pb.EmbedRequest, services: Services, caller: Caller, *, is_bulk: bool = False
) -> pb.EmbedResponse:
    """Raises ``ServeError``. ``is_bulk``: it has time, others may overtake it."""
    call = EncoderCall.open(
        request.model, request.version, Task.EMBED, services, caller, is_bulk=is_bulk
    )
    model = call.model
    validation.check_texts(request.inputs, services.config.max_input_bytes)
    form = _form(request.options, model)
    limit = options.limit(request.length, model, LongInput.ERROR, windows=not form.wants_tokens)
    texts = [form.prompt + text for text in request.inputs] if form.prompt else request.inputs
    readings = await call.read(texts, limit, spans=form.wants_tokens)
    outputs = await call.run(
        [
            [call.job(window, wants_tokens=form.wants_tokens) for window in reading.windows]
            for reading in readings
        ]
    )
    usage, timing = call.finish()
    return pb.EmbedResponse(
        model=model.manifest.name,
        outputs=[
            _message(reading, row, form, model)
            for reading, row in zip(readings, outputs, strict=True)
        ],
        usage=usage,
        timing=timing,
    )


def _form(given: pb.EmbedOptions, model: Model) -> _Form:
    embedding = model.manifest.embedding
    size = options.integer(
        "options.dimensions", given, None, high=model.manifest.dimensions.hidden_size
    )
    is_normalized = embedding is not None and embedding.is_normalized
    if embedding is not None and size is not None:
        allowed = embedding.truncations
        if size > embedding.size or (allowed and size not in (*allowed, embedding.size)):
            sizes = ", ".join(map(str, allowed)) or f"1 … {embedding.size}"
            raise InvalidArgumentError("options.dimensions", f"{size} is not in {sizes}")
    if is_normalized and given.HasField("normalize") and not given.normalize:
        raise InvalidArgumentError(
            "options.normalize", f"the vectors of {model.manifest.name!r} are always normalized"
        )
    return _Form(
        size=size,
        normalize=is_normalized or given.normalize,
        prompt=_prompt(given, embedding),
        dtype=options.choice("options.encoding_format", options.DTYPES, given.encoding_format),
        encoding_format=given.encoding_format,
        wants_tokens=given.token_embeddings,
    )


def _prompt(given: pb.EmbedOptions, embedding: Embedding | None) -> str:
    if given.HasField("prompt") and given.HasField("prompt_name"):
        raise InvalidArgumentError("options.prompt_name", "prompt is given as well")
    if given.HasField("prompt"):
        return given.prompt
    name = given.prompt_name if given.HasField("prompt_name") else None
    return prompt_of(embedding, name, "options.prompt_name")


def prompt_of(embedding: Embedding | None, name: str | None, field: str) -> str:
    """The prompt of this name; of the model's default one if it is None."""
    prompts = {} if embedding is None else embedding.prompts
    if name is None:
        default = None if embedding is None else embedding.default_prompt
        return "" if default is None else prompts[default]
    if name not in prompts:
        known = ", ".join(map(repr, prompts)) or "none"
        raise InvalidArgumentError(field, f"the model has no prompt {name!r}; it has {known}")
    return prompts[name]


def vector_of(
    reading: TokenizedText, outputs: Sequence[EncoderOutput], *, normalize: bool
) -> Floats:
    """The mean of the windows' vectors, weighted by their tokens."""
    if len(outputs) == 1:
        vector = outputs[0].vector
        return normalized(vector) if normalize else vector
    weights = np.array([window.size for window in reading.windows], np.float32)
    vectors = np.stack([output.vector for output in outputs])
    mean: Floats = (weights[:, None] * vectors).sum(0) / weights.sum()
    return normalized(mean) if normalize else mean


def normalized(vector: Floats) -> Floats:
    """Of length 1."""
    unit: Floats = vector / max(float(np.linalg.norm(vector)), SMALLEST_NORM)
    return unit


def _message(
    reading: TokenizedText, outputs: Sequence[EncoderOutput], form: _Form, model: Model
) -> pb.Embedding:
    vector = vector_of(reading, outputs, normalize=False)[: form.size]
    changed = form.size is not None or len(outputs) > 1
    is_unit = model.manifest.embedding is not None and model.manifest.embedding.is_normalized
    if form.normalize and (changed or not is_unit):
        vector = normalized(vector)
    message = pb.Embedding(usage=usage_of(reading), reading=report_of(reading))
    if form.dtype is None:
        message.values.extend(vector.tolist())
    else:
        message.packed = vector.astype(form.dtype).tobytes()
        message.encoding_format = form.encoding_format
    if form.wants_tokens:
        message.tokens.CopyFrom(_tokens(reading, outputs[0].token_vectors, form, model))
    return message


def _tokens(
    reading: TokenizedText, vectors: Floats | None, form: _Form, model: Model
) -> pb.TokenEmbeddings:
    if vectors is None:
        raise InvalidArgumentError(
            "options.token_embeddings", "the model's bundle has none: export it again"
        )
    window = reading.windows[0]
    spans = [(0, 0)] * len(window.token_ids)
    spans[window.start : window.start + window.size] = reading.spans[window.first :]
    return pb.TokenEmbeddings(
        tokens=model.tokenizer.tokens(window.token_ids),
        starts=[start for start, _ in spans],
        ends=[end for _, end in spans],
        packed=vectors.astype(form.dtype or "<f4").tobytes(),
        size=vectors.shape[1],
    )


def _next(
    requests: AsyncIterator[pb.EmbedStreamRequest],
) -> "asyncio.Future[pb.EmbedStreamRequest | None]":
    return asyncio.ensure_future(anext(requests, None))


class Bulk:
    """One EmbedStream: requests in, answers out, in order.

    At most :data:`MAX_STREAM_REQUESTS` are in work, and no next one while they have
    :data:`MAX_STREAM_TEXTS`. Meanwhile it is not read, and the transport's flow control stops
    the client.
    """

    def __init__(self, services: Services, caller: Caller) -> None:
        self._services = services
        self._caller = caller
        self._last = pb.EmbedRequest()  # model, version, options and length so far
        self._num_texts = 0  # in work

    async def answers(
        self, first: pb.EmbedStreamRequest, requests: AsyncIterator[pb.EmbedStreamRequest]
    ) -> AsyncGenerator[pb.EmbedStreamResponse, None]:
        """Answers ``first``, then ``requests``, in this order.

        Raises:
            ServeError: what was wrong with the first request that failed.
        """
        waiting = deque([self._start(first)])
        coming = _next(requests)
        is_open = True
        try:
            while waiting or is_open:
                has_room = is_open and self._has_room(len(waiting))
                updates: list[asyncio.Future[Any]] = [coming] if has_room else []
                updates += list(waiting)[:1]
                await asyncio.wait(updates, return_when=asyncio.FIRST_COMPLETED)
                if has_room and coming.done():
                    request = coming.result()
                    is_open = request is not None
                    if request is not None:
                        waiting.append(self._start(request))
                        coming = _next(requests)
                if waiting and waiting[0].done():
                    answer = waiting.popleft().result()
                    self._num_texts -= len(answer.outputs)
                    yield answer
        finally:
            unfinished: list[asyncio.Future[Any]] = [coming, *waiting]
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)

    def _has_room(self, num_requests: int) -> bool:
        return num_requests < MAX_STREAM_REQUESTS and self._num_texts < MAX_STREAM_TEXTS

    def _start(self, request: pb.EmbedStreamRequest) -> "asyncio.Task[pb.EmbedStreamResponse]":
        self._num_texts += len(request.inputs)
        return asyncio.create_task(self._answer(request.id, self._completed(request)))

    def _completed(self, request: pb.EmbedStreamRequest) -> pb.EmbedRequest:
        """With what earlier messages said and this one does not."""
        last = self._last
        if request.model:
            last.model, last.version = request.model, request.version
        if request.HasField("options"):
            last.options.CopyFrom(request.options)
        if request.HasField("length"):
            last.length.CopyFrom(request.length)
        whole = pb.EmbedRequest(inputs=request.inputs)
        whole.MergeFrom(last)
        return whole

    async def _answer(self, id_: int, request: pb.EmbedRequest) -> pb.EmbedStreamResponse:
        """Waits while the queue is full: bulk work has time."""
        while True:
            try:
                with self._services.catalog.calls.of(request.model):
                    response = await embed(request, self._services, self._caller, is_bulk=True)
            except OverloadedError as error:
                await asyncio.sleep(error.retry_seconds)
                continue
            return pb.EmbedStreamResponse(
                id=id_,
                model=response.model,
                outputs=response.outputs,
                usage=response.usage,
                timing=response.timing,
            )
