"""Models that a recipe could train, but that cannot be exported: refused before the training."""

from collections.abc import Iterator

from model.config import ScoreKind
from model.fused import EXPERT_ACTIVATIONS, HEAD_MULTIPLE, ROTARY_HEAD_MULTIPLE
from model.variants import MATRIX_SCORES
from train.recipe import WITH_SOURCE, ModelRecipe, ObjectiveKind, Positions


def export_conflicts(model: ModelRecipe, objective: ObjectiveKind) -> Iterator[str]:
    """Problems of a Transformer's layers, each with the field's name."""
    has_encoder = objective != ObjectiveKind.NEXT_TOKEN
    has_decoder = objective == ObjectiveKind.NEXT_TOKEN or objective in WITH_SOURCE
    in_blocks = model.window is not None and has_encoder
    if in_blocks and model.positions == Positions.RELATIVE:
        yield "model.positions: an encoder's window does not work with relative positions"
    if in_blocks and model.score == ScoreKind.ADDITIVE:
        yield f"model.score: an encoder's window does not work with {model.score} scores"
    if not in_blocks or has_decoder or model.global_tokens is not None:
        yield from _head_conflicts(model)
    kind = (model.activation, model.gated)
    if model.experts is not None and kind not in EXPERT_ACTIVATIONS:
        known = ", ".join(f"{name}{' gated' * gated}" for name, gated in EXPERT_ACTIVATIONS)
        yield f"model.activation: experts have {known}"


def _head_conflicts(model: ModelRecipe) -> Iterator[str]:
    multiple = ROTARY_HEAD_MULTIPLE if model.positions == Positions.ROTARY else HEAD_MULTIPLE
    if model.score in MATRIX_SCORES:  # exports pad all other heads
        yield from _heads("model", model.hidden_size, model.num_heads, multiple)
    if model.image_stream is not None:
        stream = model.image_stream
        yield from _heads("model.image_stream", stream.hidden_size, stream.num_heads, HEAD_MULTIPLE)


def _heads(section: str, hidden_size: int, num_heads: int, multiple: int) -> Iterator[str]:
    size, rest = divmod(hidden_size, num_heads)
    if not rest and size % multiple:
        yield f"{section}.num_heads: heads of size {size}, no multiple of {multiple}"
