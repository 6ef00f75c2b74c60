"""Returns attention weights of a generated text, from a second, prefill-only run of the model."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from model.bundle import ATTEND, ATTEND_ENCODE, AttentionKind
from model.config import Kind
from server.bounds import MAX_ATTENTION_WEIGHTS, MAX_REPLY_NUMBERS
from server.engine.decoding.options import AttentionSelection
from server.engine.encoder_attention import encoder_attention_shape
from server.engine.requests.job import GenerationJob
from server.errors import BundleChangedError, InternalError, InvalidArgumentError
from server.models.registry import Model
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.follow_up import submit_follow_up
from server.service.generation_options import AttentionOptions
from server.service.generation_request import Alignment, Attention, AttentionMatrix
from server.service.usage import completion_of
from server.text.alignment import target_spans

# A smaller matrix takes as long to send as one with this many weights.
_MIN_MATRIX_SIZE = 16

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Which weights to compute, and whether to align the text with its source."""

    selection: AttentionSelection
    alignments: bool
    num_heads: int
    """Attention heads per layer."""

    @property
    def num_matrices(self) -> int:
        selection = self.selection
        return 1 if selection.average else len(selection.layers) * len(selection.heads)

    @property
    def num_held(self) -> int:
        """Matrices that an encoder run holds at a time: the selected ones and those of a layer."""
        selection = self.selection
        chosen = 1 if selection.average else len(selection.heads)
        return len(selection.layers) * chosen + self.num_heads


def plan_attention(options: AttentionOptions, model: Model) -> AttentionPlan:
    """Plans the computation of the requested weights.

    Raises:
        InvalidArgumentError: the model does not return these weights.
        BundleChangedError: the weights need a graph that can no longer be loaded.
    """
    name, shapes = model.manifest.name, _shapes(model)
    # AttentionKind.ENCODER is last: an encoder-decoder returns it only on request.
    kinds = [kind for kind in AttentionKind if kind in shapes]
    lacks_encoder = (
        options.kind == AttentionKind.ENCODER
        and model.manifest.kind == Kind.ENCODER_DECODER
        and options.kind not in kinds
    )
    if not kinds or lacks_encoder:
        raise InvalidArgumentError(
            "attention",
            f"the bundle of {name!r} has no graph that returns it; if the model has attention, "
            "export it again",
        )
    kind = options.kind or kinds[0]
    if kind not in shapes:
        raise InvalidArgumentError("attention.kind", f"{name!r} has only {', '.join(kinds)}")
    if options.alignments and kind != AttentionKind.CROSS:
        raise InvalidArgumentError("attention.alignments", "require cross-attention")
    num_layers, num_heads = shapes[kind]
    layers = _selected("layers", options.layers, num_layers)
    heads = _selected("heads", options.heads, num_heads)
    selection = AttentionSelection(kind, layers, heads, options.average)
    if not model.can_run(ATTEND_ENCODE if kind == AttentionKind.ENCODER else ATTEND):
        raise BundleChangedError(model.manifest.label)
    return AttentionPlan(selection, options.alignments, num_heads)


def _shapes(model: Model) -> dict[AttentionKind, tuple[int, int]]:
    """The numbers of layers and heads, for each kind of attention that the model returns."""
    graphs, shapes = model.manifest.graphs, {}
    for output in graphs[ATTEND].outputs if ATTEND in graphs else ():
        if output.name in set(AttentionKind):
            shapes[AttentionKind(output.name)] = int(output.shape[1]), int(output.shape[2])
    if ATTEND_ENCODE in graphs:
        shapes[AttentionKind.ENCODER] = encoder_attention_shape(graphs[ATTEND_ENCODE])
    return shapes


def check_attention_size(plan: AttentionPlan, jobs: Iterable[GenerationJob]) -> None:
    """Raises ``InvalidArgumentError`` for more than :data:`MAX_REPLY_NUMBERS` weights."""
    jobs = list(jobs)
    if plan.selection.kind == AttentionKind.ENCODER:
        check_encoder_attention(plan, [len(job.source) for job in jobs])
        return
    _check_num_weights(sum(plan.num_matrices * math.prod(_matrix_shape(plan, job)) for job in jobs))


def check_encoder_attention(plan: AttentionPlan, lengths: Sequence[int]) -> None:
    """Checks the size of the reply and the memory, for texts of ``lengths`` in tokens.

    Raises:
        InvalidArgumentError: the reply could have more than :data:`MAX_REPLY_NUMBERS` weights, or
            a text needs more than :data:`MAX_ATTENTION_WEIGHTS`.
    """
    sizes = (max(length**2, _MIN_MATRIX_SIZE) for length in lengths)
    _check_num_weights(sum(plan.num_matrices * size for size in sizes))
    num_held = plan.num_held * max(lengths, default=0) ** 2
    if num_held > MAX_ATTENTION_WEIGHTS:
        raise InvalidArgumentError(
            "attention",
            f"needs {num_held} weights at a time, at most {MAX_ATTENTION_WEIGHTS}: select layers "
            "and heads, or shorten the text",
        )


def check_joined_size(
    plan: AttentionPlan, texts: Iterable[int], jobs: Iterable[GenerationJob]
) -> None:
    """Like :func:`check_attention_size`, for sentences that are joined to texts.

    ``texts`` holds the index of each job's text.
    """
    lengths: Counter[int] = Counter()
    sources: Counter[int] = Counter()
    for text, job in zip(texts, jobs, strict=True):
        length, source = _matrix_shape(plan, job)
        lengths[text] += length
        sources[text] += source
    _check_num_weights(sum(plan.num_matrices * lengths[text] * sources[text] for text in lengths))


def _matrix_shape(plan: AttentionPlan, job: GenerationJob) -> tuple[int, int]:
    """The maximum number of rows and columns of one matrix."""
    if plan.selection.kind == AttentionKind.ENCODER:
        return len(job.source), len(job.source)
    length = len(job.prompt) + job.max_new_tokens
    return length, job.num_source_tokens if plan.selection.kind == AttentionKind.CROSS else length


def _check_num_weights(num_weights: int) -> None:
    if num_weights > MAX_REPLY_NUMBERS:
        raise InvalidArgumentError(
            "attention",
            f"could be {num_weights} weights, at most {MAX_REPLY_NUMBERS}: select layers and "
            f"heads, or average, and limit texts and max_new_tokens",
        )


def _selected(name: str, given: Sequence[int], count: int) -> tuple[int, ...]:
    for index, value in enumerate(given):
        if not 0 <= value < count:
            raise InvalidArgumentError(
                f"attention.{name}[{index}]", f"{value} is not in 0 … {count - 1}"
            )
    return tuple(given) or tuple(range(count))


async def read_attention(
    context: ServiceContext,
    client: str,
    model: Model,
    plan: AttentionPlan,
    job: GenerationJob,
    num_start_tokens: int,
    token_ids: tuple[int, ...],
    source_text: str,
    num_characters: int,
) -> Attention:
    """Runs a finished output through the model again and returns its attention weights.

    Args:
        context: the server's components.
        client: the identity of the caller.
        model: the model that generated the output.
        plan: the weights to compute.
        job: the job that generated the output.
        num_start_tokens: number of tokens of the job's prompt before the output.
        token_ids: tokens of the output, including the end-of-sequence token.
        source_text: the untokenized source, for alignments.
        num_characters: length of the output's text, beyond which nothing is aligned.

    Raises:
        ServeError: the run failed.
    """
    kind = plan.selection.kind
    # The model predicts a token at the position of the token before it.
    first, prompt = num_start_tokens - 1, (*job.prompt[:num_start_tokens], *token_ids[:-1])
    if kind == AttentionKind.ENCODER:  # the output does not matter
        first, prompt, token_ids = 0, job.prompt[:1], job.source
    rerun = GenerationJob(
        prompt=prompt,
        max_new_tokens=0,
        source=job.source,
        image=job.image,
        num_image_tokens=job.num_image_tokens,
        attention=replace(plan.selection, from_token=first),
        priority=job.priority,
        deadline=job.deadline,
        cache_scope=job.cache_scope,
        adapter=job.adapter,
        client=client,
    )
    handle = await submit_follow_up(context, model.key, rerun, client=None)
    try:
        update = await handle.next()
    finally:
        context.engine.cancel([handle])
    completion_of(update)
    weights = update.prompt.attention
    if weights is None:
        raise InternalError("the model returned no attention weights")
    source = rerun.prompt if kind == AttentionKind.SELF else rerun.source

    def build() -> Attention:
        source_tokens = tuple(model.tokenizer.tokens(source))
        return Attention(
            # The vectors of an image have numbers instead of a spelling.
            source_tokens=source_tokens or tuple(map(str, range(job.num_image_tokens))),
            target_tokens=tuple(model.tokenizer.tokens(token_ids)),
            matrices=matrices_of(plan.selection, weights),
            alignments=_alignments(
                model, weights.mean((1, 2)), token_ids, source_text, num_characters
            )
            if plan.alignments
            else (),
        )

    num_values = len(source) + len(token_ids) + weights.size // 64 + len(source_text)
    return await context.build(num_values, build, Caller(client, None))


def matrices_of(selection: AttentionSelection, weights: Floats) -> tuple[AttentionMatrix, ...]:
    """Splits ``weights [target, layers, heads, source]`` into one matrix per layer and head."""
    if selection.average:
        return (AttentionMatrix(-1, -1, weights[:, 0, 0]),)
    return tuple(
        AttentionMatrix(layer, head, weights[:, i, j])
        for i, layer in enumerate(selection.layers)
        for j, head in enumerate(selection.heads)
    )


def _alignments(
    model: Model,
    weights: Floats,
    target: tuple[int, ...],
    source_text: str,
    num_characters: int,
) -> tuple[Alignment, ...]:
    """Aligns each target token with the source token that it attends to most.

    Special tokens are ignored, and so is the target text from ``num_characters`` on.
    """
    offsets = model.tokenizer.offsets(source_text)
    inside = [index for index, span in enumerate(offsets) if span is not None]
    if not inside:
        return ()
    alignments = []
    for row, span in zip(weights, target_spans(model.tokenizer, target), strict=True):
        if span is None or span[0] >= num_characters:
            continue
        best = offsets[inside[int(np.argmax(row[inside]))]]
        if best is not None:
            alignments.append(Alignment(*best, span[0], min(span[1], num_characters)))
    return tuple(alignments)
