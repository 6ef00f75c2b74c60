"""``parity.json``: the bundle's graphs compared with the eager module. Imports no torch."""

import msgspec

from model.graph_spec import LargeCount, Record
from model.shortlist import ShortlistLoss


class MatrixError(Record, frozen=True, kw_only=True):
    """``relative_error``: ``|error| / |output|`` of a linear map's output, on the same inputs."""

    name: str
    relative_error: float


class VectorFidelity(Record, frozen=True, kw_only=True):
    """The figures of :class:`Fidelity` with the same names."""

    min_cosine: float
    mean_cosine: float
    retrieval_agreement: float


class Fidelity(Record, frozen=True, kw_only=True):
    """The difference between the bundle's graphs and the fp32 graphs, in figures of the task.

    Attributes:
        num_texts: number of compared prompts, sources or texts.
        num_tokens: number of tokens in the fp32 graphs' greedy answers, or masked in the texts.
        top1_agreement: share of tokens, labels or answers with the same best choice.
        kl_divergence: per token (fp32 || bundle), in nats.
        rms_logprob_difference: over the tokens of fp32, in nats.
        mean_probability: mean probability that fp32 gives to its own tokens.
        identical_outputs: share of an encoder-decoder's greedy outputs that equal those of fp32.
        chrf: chrF of these outputs, in percent; those of fp32 are the references.
        min_cosine: lowest cosine of a text's vectors in both.
        mean_cosine: mean cosine over all texts.
        retrieval_agreement: share of texts with the same nearest other text.
        other_vectors: of a model with several kinds of vectors, by kind, those of all but the
            first; other bundles lack the field.
        max_probability_difference: largest difference of a probability of a label or answer token.
        worst_matrices: linear maps with the largest errors, the largest first.
        matrix_errors: root mean square error of each kind of linear map.
        exceeded_limits: limits that ``--accept-loss`` overrode; empty if all were met.
    """

    num_texts: LargeCount
    num_tokens: LargeCount = 0
    top1_agreement: float | None = None
    kl_divergence: float | None = None
    rms_logprob_difference: float | None = None
    mean_probability: float | None = None
    identical_outputs: float | None = None
    chrf: float | None = None
    min_cosine: float | None = None
    mean_cosine: float | None = None
    retrieval_agreement: float | None = None
    max_probability_difference: float | None = None
    worst_matrices: tuple[MatrixError, ...] = ()
    matrix_errors: dict[str, float] = msgspec.field(default_factory=dict)
    exceeded_limits: tuple[str, ...] = ()
    other_vectors: dict[str, VectorFidelity] | msgspec.UnsetType = msgspec.UNSET


class AdapterParity(Record, frozen=True, kw_only=True):
    """The graphs with a LoRA adapter, compared with the eager module with its merged weights.

    The attributes are those of :class:`Parity`.
    """

    name: str
    max_absolute_error: float
    greedy_tokens_compared: LargeCount
    greedy_tokens_equal: LargeCount
    min_cosine: float


class Parity(Record, frozen=True, kw_only=True):
    """``parity.json``: the graphs in ONNX Runtime compared with the eager PyTorch module.

    Attributes:
        max_absolute_error: largest error of the fp32 graphs' outputs; the greedy tokens are also
            theirs.
        min_cosine: lowest cosine of the bundle's graphs for any row of embeddings or logits.
        evaluation_tokens: number of tokens over which perplexities are measured.
        perplexity: that of the bundle's graphs, if the model generates text.
        fp32_perplexity: that of the fp32 graphs.
        float_cache_perplexity: that of the bundle's graphs before their cache became int8.
        shortlist: the loss from the shortlist, if there is one.
        fidelity: the bundle's graphs compared with the fp32 graphs, if they differ.
        adapters: that of each adapter; bundles without adapters lack the field.
    """

    max_absolute_error: float
    greedy_tokens_compared: LargeCount
    greedy_tokens_equal: LargeCount
    min_cosine: float
    tolerance: float
    onnxruntime: str
    torch: str
    evaluation_tokens: LargeCount = 0
    perplexity: float | None = None
    fp32_perplexity: float | None = None
    float_cache_perplexity: float | None = None
    shortlist: ShortlistLoss | None = None
    fidelity: Fidelity | None = None
    adapters: tuple[AdapterParity, ...] | msgspec.UnsetType = msgspec.UNSET

    def of_adapter(self, name: str) -> "Parity":
        """The record of one of :attr:`adapters`, without what is measured of the base only."""
        (found,) = (one for one in self.adapters or () if one.name == name)
        return Parity(
            max_absolute_error=found.max_absolute_error,
            greedy_tokens_compared=found.greedy_tokens_compared,
            greedy_tokens_equal=found.greedy_tokens_equal,
            min_cosine=found.min_cosine,
            tolerance=self.tolerance,
            onnxruntime=self.onnxruntime,
            torch=self.torch,
        )
