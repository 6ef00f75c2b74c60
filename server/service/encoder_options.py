"""The common options of encoder calls, and their validation."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model.bundle import ScoreFunction
from server.bounds import MAX_INTEGER, ruled
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.text.late_interaction import LateInteraction
from server.text.windows import LengthLimit
from server.text.windows import LongInput as LongInput  # noqa: PLC0414

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthOptions:
    """How inputs over the length limit are handled. ``None`` means the call's or model's default.

    ``long_input`` selects an error, truncation or windows. ``max_tokens`` is the limit per window,
    special tokens included. ``stride`` is the overlap of adjacent windows in tokens.
    """

    long_input: LongInput | None = None
    max_tokens: int | None = ruled("1 … the model's max_length", None)
    stride: int | None = ruled("0 … the model's max_length", None)


def length_limit(
    options: LengthOptions,
    model: Model,
    default: LongInput,
    *,
    windows: bool = True,
    reader: LateInteraction | None = None,
) -> LengthLimit:
    """The length limits of one call.

    Texts of up to ``max_tokens`` (default: the model's limit) are encoded whole. Longer texts are
    truncated to, or split into windows of, the length that the model was trained on.

    Args:
        options: the request's options.
        model: the model that encodes the texts.
        default: how long inputs are handled if the request does not specify it.
        windows: whether this call supports windows.
        reader: the reader of a multi-vector (late-interaction) model, which has its own limits.

    Raises:
        InvalidArgumentError: an option is out of range or not supported; the error names it.
    """
    long_input = options.long_input or default
    if long_input == LongInput.WINDOWS and not windows:
        raise InvalidArgumentError("long_input", "this call does not support windows")
    longest = model.max_length
    check_integer("max_tokens", options.max_tokens, high=longest)
    check_integer("stride", options.stride, low=0, high=longest)
    num_markers = 0
    if reader is not None:
        longest, num_markers = min(longest, reader.max_tokens), reader.num_markers
    trained = min(model.manifest.max_input_tokens or longest, longest)
    max_tokens = min(options.max_tokens or trained, longest)
    is_whole = options.max_tokens is None and long_input == LongInput.ERROR
    return LengthLimit(
        long_input=long_input,
        max_tokens=max_tokens - num_markers,
        max_whole_tokens=(longest if is_whole else max_tokens) - num_markers,
        stride=options.stride,
    )


def check_integer(field: str, value: int | None, *, low: int = 1, high: int = MAX_INTEGER) -> None:
    """Raises ``InvalidArgumentError`` if ``value`` is not ``None`` and not in ``low … high``."""
    if value is not None and not low <= value <= high:
        raise InvalidArgumentError(field, f"{value} is not in {low} … {high}")


def softmax(logits: Floats) -> Floats:
    """Softmax over the last axis."""
    weights: Floats = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights


def _sigmoid(logits: Floats) -> Floats:
    scores: Floats = 0.5 * (1 + np.tanh(0.5 * logits))  # does not overflow
    return scores


_SCORES: dict[ScoreFunction, Callable[[Floats], Floats]] = {
    ScoreFunction.SOFTMAX: softmax,
    ScoreFunction.SIGMOID: _sigmoid,
    ScoreFunction.IDENTITY: lambda logits: logits,
}


def score_function(requested: ScoreFunction | None, model: Model) -> Callable[[Floats], Floats]:
    """The requested function; by default the one that the model was trained with."""
    return _SCORES[requested or model.manifest.score_function or ScoreFunction.SOFTMAX]
