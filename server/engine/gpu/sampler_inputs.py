"""The variants of the sampling graph, and the names and shapes of its inputs and outputs."""

from dataclasses import dataclass
from enum import StrEnum

from onnx import TensorProto

# Names of inputs.
LOGITS = "logits"
ROWS = "rows"
PARAMETERS = "parameters"
EDIT_IDS = "edit_ids"
EDIT_VALUES = "edit_values"

# Names of outputs.
TOKENS = "tokens"
GATHERED = "gathered"

# Columns of ``parameters``.
TEMPERATURE, TOP_K, TOP_P, MIN_P, UNIFORM = range(5)
NUM_PARAMETERS = 5

# The ``top_p`` of a row without nucleus sampling: no sum of probabilities reaches it.
NO_TOP_P = 4.0

# The token of a row that the host has to sample.
UNDECIDED = -1

# The logit of a suppressed token: lower than any other, yet finite in all arithmetic.
SUPPRESSED_LOGIT = -1e9


class SamplingMethod(StrEnum):
    """How a row's token is selected. Each method has its own graph."""

    GREEDY = "greedy"
    MULTINOMIAL = "multinomial"  # from the whole vocabulary
    TOP_K = "top_k"  # may be restricted further by top_p and min_p
    NUCLEUS = "nucleus"  # by top_p or min_p, without top_k


@dataclass(frozen=True, slots=True)
class SamplerVariant:
    """A variant of the sampling graph.

    ``has_edits``: whether it edits the logits first. ``gathers_rows``: whether it samples only some
    rows.
    """

    method: SamplingMethod
    has_edits: bool = False
    gathers_rows: bool = False


@dataclass(frozen=True, slots=True)
class LogitsSpec:
    """Describes the logits ``[batch, vocabulary]`` that a sampling graph takes.

    ``element_type``: an ONNX ``TensorProto`` type. ``max_candidates``: how many of the likeliest
    tokens top-k and nucleus sampling rank. ``suppressed``: tokens that are never generated; their
    logits become :data:`SUPPRESSED_LOGIT`.
    """

    vocabulary: int
    element_type: int = TensorProto.FLOAT
    max_candidates: int = 256
    suppressed: tuple[int, ...] = ()

    @property
    def num_candidates(self) -> int:
        return min(self.max_candidates, self.vocabulary)
