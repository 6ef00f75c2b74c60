"""Embed and Classify: texts through an encoder."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.bundle import Task
from protos.triune.v1 import common_pb2
from protos.triune.v1 import inference_pb2 as pb
from server.engine.engine import Ticket
from server.engine.sequence import EncodingJob, End, Floats
from server.errors import InternalError
from server.registry import Model
from server.rpc import validation
from server.rpc.context import Services
from server.rpc.generation import failure_of

EncodingRequest = pb.EmbedRequest | pb.ClassifyRequest


@dataclass(frozen=True, slots=True)
class Encoded:
    """Vectors ``[width]`` of the inputs, in order, with their token counts."""

    vectors: list[Floats]
    num_tokens: list[int]
    timing: common_pb2.Timing

    @property
    def usage(self) -> common_pb2.Usage:
        return common_pb2.Usage(input_tokens=sum(self.num_tokens))


async def embed(
    request: pb.EmbedRequest, services: Services, deadline: float | None
) -> pb.EmbedResponse:
    """Raises ``ServeError``."""
    model = services.registry.get(request.model, request.version)
    encoded = await _encode(request, model, Task.EMBED, services, deadline)
    return pb.EmbedResponse(
        model=model.manifest.name,
        outputs=[
            pb.Embedding(values=vector.tolist(), usage=common_pb2.Usage(input_tokens=count))
            for vector, count in zip(encoded.vectors, encoded.num_tokens, strict=True)
        ],
        usage=encoded.usage,
        timing=encoded.timing,
    )


async def classify(
    request: pb.ClassifyRequest, services: Services, deadline: float | None
) -> pb.ClassifyResponse:
    """Raises ``ServeError``."""
    model = services.registry.get(request.model, request.version)
    encoded = await _encode(request, model, Task.CLASSIFY, services, deadline)
    return pb.ClassifyResponse(
        model=model.manifest.name,
        outputs=[
            pb.Classification(
                labels=_scores(vector, model.manifest.labels),
                usage=common_pb2.Usage(input_tokens=count),
            )
            for vector, count in zip(encoded.vectors, encoded.num_tokens, strict=True)
        ],
        usage=encoded.usage,
        timing=encoded.timing,
    )


def _scores(logits: Floats, labels: Sequence[str]) -> list[pb.LabelScore]:
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    return [pb.LabelScore(label=labels[index], score=weights[index]) for index in order]


async def _encode(
    request: EncodingRequest,
    model: Model,
    task: Task,
    services: Services,
    deadline: float | None,
) -> Encoded:
    started = time.monotonic()
    validation.check_task(model, task)
    validation.check_texts(request.inputs, services.config.max_input_bytes)
    rows = await services.in_thread(lambda: model.tokenizer.encode(request.inputs))
    validation.check_lengths("inputs", rows, model.max_length)
    tokenized = time.monotonic()
    tickets = services.engine.submit(model.key, [EncodingJob(row, deadline) for row in rows])
    try:
        results = [await _result(ticket) for ticket in tickets]
    finally:
        services.engine.cancel(tickets)
    num_tokens = [len(row) for row in rows]
    ends = [end for _, end in results]
    name = model.manifest.name
    for end in ends:
        services.metrics.on_phases(name, end.queue_seconds, end.prefill_seconds, end.decode_seconds)
    services.metrics.on_tokens(name, sum(num_tokens), 0)
    timing = common_pb2.Timing(
        queue_seconds=max(end.queue_seconds for end in ends),
        tokenize_seconds=tokenized - started,
        prefill_seconds=max(end.prefill_seconds for end in ends),
        total_seconds=time.monotonic() - started,
    )
    return Encoded([vector for vector, _ in results], num_tokens, timing)


async def _result(ticket: Ticket) -> tuple[Floats, End]:
    progress = await ticket.next()
    if progress.end is None:
        raise InternalError
    failure = failure_of(progress.end)
    if failure is not None:
        raise failure
    if progress.vector is None:
        raise InternalError
    return progress.vector, progress.end


async def tokenize(request: pb.TokenizeRequest, services: Services) -> pb.TokenizeResponse:
    """Raises ``ServeError``."""
    started = time.monotonic()
    model = services.registry.get(request.model, request.version)
    validation.check_texts(request.inputs, services.config.max_input_bytes)
    rows = await services.in_thread(
        lambda: model.tokenizer.encode(
            request.inputs, special_tokens=not request.without_special_tokens
        )
    )
    seconds = time.monotonic() - started
    return pb.TokenizeResponse(
        model=model.manifest.name,
        outputs=[
            pb.Tokenization(token_ids=row, tokens=model.tokenizer.tokens(row)) for row in rows
        ],
        usage=common_pb2.Usage(input_tokens=sum(len(row) for row in rows)),
        timing=common_pb2.Timing(tokenize_seconds=seconds, total_seconds=seconds),
    )
