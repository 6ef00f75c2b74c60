"""What the tokens of a text attended to: it is read again, and weights told."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from model.bundle import ATTEND, AttentionKind
from protos.triune.v1 import inference_pb2 as pb
from server.engine.decoding.options import AttentionSelection, LogprobOptions
from server.engine.engine import Engine
from server.engine.requests.sequence import Floats, GenerationJob
from server.errors import InternalError, InvalidArgumentError
from server.models.registry import Model
from server.service.accounting import end_of
from server.text.alignment import target_spans

FIELD = "response.attention"
MAX_WEIGHTS = 8 << 20  # of a response, in float32
KINDS = {
    pb.ATTENTION_KIND_CROSS: AttentionKind.CROSS,
    pb.ATTENTION_KIND_SELF: AttentionKind.SELF,
}


@dataclass(frozen=True, slots=True)
class AttentionWanted:
    """What to tell of a text, and whether to align it with its source."""

    read: AttentionSelection
    alignments: bool

    @property
    def num_matrices(self) -> int:
        return 1 if self.read.average else len(self.read.layers) * len(self.read.heads)


def attention_wanted(response: pb.ResponseOptions, model: Model) -> AttentionWanted | None:
    """What is asked for, if anything. Raises ``InvalidArgumentError``."""
    if not response.HasField("attention"):
        return None
    options, name = response.attention, model.manifest.name
    graph = model.manifest.graphs.get(ATTEND)
    told = {} if graph is None else {output.name: output.shape for output in graph.outputs}
    kinds = [kind for kind in AttentionKind if kind in told]
    if not kinds:
        raise InvalidArgumentError(FIELD, f"{name!r} has no graph that tells it")
    kind = kinds[0]
    if options.kind:
        if options.kind not in KINDS:
            raise InvalidArgumentError(f"{FIELD}.kind", f"{options.kind} is not a kind")
        kind = KINDS[options.kind]
    if kind not in told:
        raise InvalidArgumentError(f"{FIELD}.kind", f"{name!r} has {kinds[0]} alone")
    if options.alignments and kind != AttentionKind.CROSS:
        raise InvalidArgumentError(f"{FIELD}.alignments", "are those of cross-attention")
    _, num_layers, num_heads, *_ = told[kind]
    layers = _chosen("layers", options.layers, int(num_layers))
    heads = _chosen("heads", options.heads, int(num_heads))
    return AttentionWanted(
        AttentionSelection(kind, layers, heads, options.average), options.alignments
    )


def check_size(wanted: AttentionWanted, jobs: Iterable[GenerationJob]) -> None:
    """Raises ``InvalidArgumentError`` for more weights than a response may hold."""
    num_weights = 0
    for job in jobs:
        length = len(job.prompt) + job.max_new_tokens
        source = len(job.source) if wanted.read.kind == AttentionKind.CROSS else length
        num_weights += wanted.num_matrices * length * source
    if num_weights > MAX_WEIGHTS:
        raise InvalidArgumentError(
            FIELD,
            f"could be {num_weights} weights, at most {MAX_WEIGHTS}: choose layers and heads, or "
            f"their average, and bound stopping.max_new_tokens",
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
    # A token was chosen after the one before it was read.
    first = num_start_tokens - 1
    read = GenerationJob(
        prompt=(*job.prompt[:num_start_tokens], *token_ids[:-1]),
        max_new_tokens=0,
        source=job.source,
        logprob_options=LogprobOptions(attention=replace(wanted.read, from_token=first)),
        priority=job.priority,
        deadline=job.deadline,
    )
    tickets = engine.submit(model.key, [read])
    try:
        progress = await tickets[0].next()
    finally:
        engine.cancel(tickets)
    end_of(progress)
    if progress.attention is None:
        raise InternalError("the attention could not be read")
    source = read.source if wanted.read.kind == AttentionKind.CROSS else read.prompt
    return _message(model, wanted, progress.attention, source, token_ids, source_text)


def _message(
    model: Model,
    wanted: AttentionWanted,
    weights: Floats,  # [target, layers, heads, source], of the layers and heads that are wanted
    source: tuple[int, ...],
    target: tuple[int, ...],
    source_text: str,
) -> pb.Attention:
    if wanted.read.average:
        matrices = [_matrix(-1, -1, weights[:, 0, 0])]
    else:
        matrices = [
            _matrix(layer, head, weights[:, i, j])
            for i, layer in enumerate(wanted.read.layers)
            for j, head in enumerate(wanted.read.heads)
        ]
    alignments = []
    if wanted.alignments:
        alignments = _alignments(model, weights.mean((1, 2)), target, source_text)
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
