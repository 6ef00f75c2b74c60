"""Options of the calls to encoders: from the wire to checked values. Each names what it refuses."""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from model.bundle import ScoreFunction
from protos.triune.v1 import encoding_pb2 as pb
from server.engine.requests.sequence import Floats
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.text.entities import Aggregation
from server.text.windows import LengthLimit, LongInput

_T = TypeVar("_T")
MAX_INTEGER = 2**31 - 1

FITS = {
    pb.LONG_INPUT_ERROR: LongInput.ERROR,
    pb.LONG_INPUT_TRUNCATE_RIGHT: LongInput.CUT_RIGHT,
    pb.LONG_INPUT_TRUNCATE_LEFT: LongInput.CUT_LEFT,
    pb.LONG_INPUT_WINDOWS: LongInput.WINDOWS,
}
AGGREGATIONS = {
    pb.AGGREGATION_UNSPECIFIED: Aggregation.SIMPLE,
    pb.AGGREGATION_NONE: Aggregation.NONE,
    pb.AGGREGATION_SIMPLE: Aggregation.SIMPLE,
    pb.AGGREGATION_FIRST: Aggregation.FIRST,
    pb.AGGREGATION_AVERAGE: Aggregation.AVERAGE,
    pb.AGGREGATION_MAX: Aggregation.MAX,
}
SCORE_FUNCTIONS = {
    pb.SCORE_FUNCTION_SOFTMAX: ScoreFunction.SOFTMAX,
    pb.SCORE_FUNCTION_SIGMOID: ScoreFunction.SIGMOID,
    pb.SCORE_FUNCTION_IDENTITY: ScoreFunction.IDENTITY,
}
DTYPES = {
    pb.ENCODING_FORMAT_UNSPECIFIED: None,
    pb.ENCODING_FORMAT_FLOAT: None,
    pb.ENCODING_FORMAT_FLOAT32_BYTES: np.dtype("<f4"),
    pb.ENCODING_FORMAT_FLOAT16_BYTES: np.dtype("<f2"),
}


def softmax(logits: Floats) -> Floats:
    """Over the last axis."""
    weights: Floats = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights


def _sigmoid(logits: Floats) -> Floats:
    scores: Floats = 0.5 * (1 + np.tanh(0.5 * logits))  # does not overflow
    return scores


SCORES: dict[ScoreFunction, Callable[[Floats], Floats]] = {
    ScoreFunction.SOFTMAX: softmax,
    ScoreFunction.SIGMOID: _sigmoid,
    ScoreFunction.IDENTITY: lambda logits: logits,
}


def choice(field: str, table: Mapping[Any, _T], value: int) -> _T:
    """``table[value]``; refuses a number that the enumeration does not have."""
    if value not in table:
        raise InvalidArgumentError(field, f"{value} is not one of its values")
    return table[value]


def integer(
    field: str, options: Any, default: int | None, *, low: int = 1, high: int = MAX_INTEGER
) -> int | None:
    """The integer at the end of the path ``field``; ``default`` if it is not set."""
    name = field.rpartition(".")[2]
    if not options.HasField(name):
        return default
    value = int(getattr(options, name))
    if not low <= value <= high:
        raise InvalidArgumentError(field, f"{value} is not in {low} … {high}")
    return value


def fraction(field: str, options: Any) -> float:
    """A number from 0 to 1; 0 if it is not set."""
    value = float(getattr(options, field.rpartition(".")[2]))
    if math.isnan(value) or not 0 <= value <= 1:
        raise InvalidArgumentError(field, f"{value} is not in 0 … 1")
    return value


def scores(field: str, value: int, model: Model) -> Callable[[Floats], Floats]:
    """The function that is asked for, or that the model was trained for."""
    if value == pb.SCORE_FUNCTION_UNSPECIFIED:
        return SCORES[model.manifest.score_function or ScoreFunction.SOFTMAX]
    return SCORES[choice(field, SCORE_FUNCTIONS, value)]


def limit(
    options: pb.LengthOptions, model: Model, default: LongInput, *, windows: bool = True
) -> LengthLimit:
    """How long inputs are read.

    Texts up to ``max_tokens``, if it is set, else up to what the model takes, are read whole.
    What is longer is cut to, or read in windows of, as much as the model was trained on.

    Args:
        options: of the request.
        model: that reads.
        default: where the request does not say.
        windows: whether the call can read in windows.
    """
    fit = default
    if options.long_input != pb.LONG_INPUT_UNSPECIFIED:
        fit = choice("length.long_input", FITS, options.long_input)
    if fit == LongInput.WINDOWS and not windows:
        raise InvalidArgumentError("length.long_input", "this call does not read in windows")
    longest = model.max_length
    given = integer("length.max_tokens", options, None, high=longest)
    trained = min(model.manifest.max_input_tokens or longest, longest)
    return LengthLimit(
        fit=fit,
        max_tokens=given or trained,
        max_whole_tokens=given or (longest if fit == LongInput.ERROR else trained),
        stride=integer("length.stride", options, None, low=0, high=longest),
    )
