"""What the tokens of a translation attended to: its text is read again, and weights told."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.bundle import ATTEND, ATTENTION
from protos.triune.v1 import inference_pb2 as pb
from server.engine.engine import Engine
from server.engine.options import Reporting
from server.engine.sequence import Floats, GenerationJob
from server.errors import InternalError, InvalidArgumentError
from server.registry import Model
from server.rpc.accounting import end_of
from server.text.alignment import target_spans

FIELD = "response.attention"


@dataclass(frozen=True, slots=True)
class AttentionWanted:
    """Which layers and heads to tell, each alone or their mean; and whether to align."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    average: bool
    alignments: bool


def attention_wanted(response: pb.ResponseOptions, model: Model) -> AttentionWanted | None:
    """What is asked for, if anything. Raises ``InvalidArgumentError``."""
    if not response.HasField("attention"):
        return None
    graph = model.manifest.graphs.get(ATTEND)
    if graph is None:
        raise InvalidArgumentError(FIELD, f"{model.manifest.name!r} has no graph that tells it")
    (output,) = (output for output in graph.outputs if output.name == ATTENTION)
    _, num_layers, num_heads, *_ = output.shape
    options = response.attention
    return AttentionWanted(
        _chosen("layers", options.layers, int(num_layers)),
        _chosen("heads", options.heads, int(num_heads)),
        options.average,
        options.alignments,
    )


def _chosen(name: str, given: Sequence[int], count: int) -> tuple[int, ...]:
    for index, value in enumerate(given):
        if not 0 <= value < count:
            raise InvalidArgumentError(
                f"{FIELD}.{name}[{index}]", f"{value} is not in 0 … {count - 1}"
            )
    return tuple(given) or tuple(range(count))


async def read_attention(
    engine: Engine,
    model: Model,
    wanted: AttentionWanted,
    job: GenerationJob,
    num_start_tokens: int,
    token_ids: tuple[int, ...],
    source_text: str,
) -> pb.Attention:
    """Reads a finished text again.

    Args:
        engine: that runs ``model``.
        wanted: what to tell.
        job: that the text came from.
        num_start_tokens: of the job's prompt, before the text.
        token_ids: of the text, with what ended it.
        source_text: as the caller wrote it.
    """
    prompt = (*job.prompt[:num_start_tokens], *token_ids)
    reading = GenerationJob(
        prompt=prompt,
        max_new_tokens=0,
        source=job.source,
        reporting=Reporting(attention=True),
        priority=job.priority,
        deadline=job.deadline,
    )
    tickets = engine.submit(model.key, [reading])
    try:
        progress = await tickets[0].next()
    finally:
        engine.cancel(tickets)
    end_of(progress)
    if progress.attention is None:
        raise InternalError("the attention could not be read")
    # A token was chosen after the one before it was read.
    rows = progress.attention[num_start_tokens - 1 :][: len(token_ids)]
    return _message(model, wanted, rows, job.source, token_ids, source_text)


def _message(
    model: Model,
    wanted: AttentionWanted,
    weights: Floats,  # [target, layers, heads, source]
    source: tuple[int, ...],
    target: tuple[int, ...],
    source_text: str,
) -> pb.Attention:
    chosen = weights[:, list(wanted.layers)][:, :, list(wanted.heads)]
    if wanted.average:
        matrices = [_matrix(-1, -1, chosen.mean((1, 2)))]
    else:
        matrices = [
            _matrix(layer, head, chosen[:, i, j])
            for i, layer in enumerate(wanted.layers)
            for j, head in enumerate(wanted.heads)
        ]
    alignments = []
    if wanted.alignments:
        alignments = _alignments(model, chosen.mean((1, 2)), target, source_text)
    return pb.Attention(
        source_tokens=model.tokenizer.tokens(source),
        target_tokens=model.tokenizer.tokens(target),
        matrices=matrices,
        alignments=alignments,
    )


def _matrix(layer: int, head: int, weights: Floats) -> pb.AttentionMatrix:
    return pb.AttentionMatrix(layer=layer, head=head, weights=weights.ravel().tolist())


def _alignments(
    model: Model, weights: Floats, target: tuple[int, ...], source_text: str
) -> list[pb.Alignment]:
    """Each target token with the source token that it attended to most, special ones aside."""
    offsets = model.tokenizer.offsets(source_text)
    inside = [index for index, span in enumerate(offsets) if span is not None]
    if not inside:
        return []
    alignments = []
    for row, span in zip(weights, target_spans(model.tokenizer, target), strict=True):
        if span is None:
            continue
        best = offsets[inside[int(np.argmax(row[inside]))]]
        if best is not None:
            alignments.append(
                pb.Alignment(
                    source_start=best[0],
                    source_end=best[1],
                    target_start=span[0],
                    target_end=span[1],
                )
            )
    return alignments
