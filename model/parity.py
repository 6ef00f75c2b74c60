"""``parity.json``: how a bundle's graphs compare with the eager module. Imports no torch."""

import msgspec

from model.graph_spec import LargeCount, Record
from model.shortlist import ShortlistLoss


class MatrixError(Record, frozen=True, kw_only=True):
    """``relative_error``: of a linear map's output, ``|error| / |output|``, on the same inputs."""

    name: str
    relative_error: float


class Fidelity(Record, frozen=True, kw_only=True):
    """How close the bundle's graphs are to the fp32 graphs. Only figures of the model's task.

    Attributes:
        num_texts: prompts, sources or texts that were compared.
        num_tokens: of the fp32 graphs' greedy answers, or masked tokens of the texts.
        top1_agreement: the share of tokens, labels or answers whose best choice is the same.
        kl_divergence: of a token (fp32 || bundle), in nats.
        rms_logprob_difference: of the tokens of fp32, in nats.
        mean_probability: which fp32 gives to its own tokens.
        identical_outputs: the share of an encoder-decoder's greedy outputs that are fp32's.
        chrf: of these outputs with those of fp32 as references, in percent.
        min_cosine: of a text's vector to that of fp32.
        mean_cosine: of all texts.
        retrieval_agreement: the share of texts whose nearest other text is the same.
        max_probability_difference: of a label or a token of an answer.
        worst_matrices: the linear maps with the largest errors, the worst first.
        matrix_errors: the root mean square of the errors of each kind of linear map.
        exceeded_limits: limits that ``--accept-loss`` set aside; empty if all were met.
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


class Parity(Record, frozen=True, kw_only=True):
    """``parity.json``: the graphs in ONNX Runtime compared with the eager PyTorch module.

    Attributes:
        max_absolute_error: of the fp32 graphs' outputs. The greedy tokens are also theirs.
        min_cosine: of the bundle's graphs: the lowest of any row of embeddings or logits.
        evaluation_tokens: tokens over which the perplexities are measured.
        perplexity: of the bundle's graphs, if the model generates text.
        fp32_perplexity: of the fp32 graphs.
        float_cache_perplexity: of the bundle's graphs before their cache became int8.
        shortlist: what the shortlist costs, if there is one.
        fidelity: of the bundle's graphs, if they are not the fp32 graphs.
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
