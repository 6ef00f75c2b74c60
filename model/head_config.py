"""The configuration of heads. Imports no torch."""

from model.norm_config import NormConfig
from model.position_config import ConfigStruct
from model.variants import Activation, HeadKind, PoolingKind


class DenseConfig(ConfigStruct, frozen=True, kw_only=True):
    """``norm(activation(x W + b))``: BERT's pooler, or its masked language model's transform."""

    size: int
    activation: Activation | None = None
    bias: bool = True
    norm: NormConfig | None = None


class SpanConfig(ConfigStruct, frozen=True, kw_only=True):
    """Spans of words: see :class:`model.span_head.SpanHead`.

    Attributes:
        max_width: the most words of a span.
        num_recurrent_layers: bidirectional LSTM layers over the words.
    """

    max_width: int
    num_recurrent_layers: int = 0


class HeadConfig(ConfigStruct, frozen=True, kw_only=True):
    """From hidden vectors to outputs: pooling, then ``dense`` layers, then the output matrix."""

    kind: HeadKind
    bias: bool = False
    tied: bool = False  # the output matrix is the token embedding
    pooling: PoolingKind | None = None
    pooled_norm: NormConfig | None = None  # of the pooled vector, before the dense layers (AST)
    pools_last: bool = False  # after the dense layers, which run on every token (EuroBERT)
    normalize: bool = False
    dense: tuple[DenseConfig, ...] = ()
    num_labels: int = 0
    # Beside an embedding, of each token: its weight as a sparse vector has it, and its own vector.
    sparse: bool = False
    multi_vector: DenseConfig | None = None
    spans: SpanConfig | None = None  # for span classification
    log_twice: bool = False  # log(1 + log(1 + relu(x))): Shen et al. 2025, arXiv 2504.14839
    soft_cap: float | None = None  # logits become cap * tanh(logits / cap) (Gemma 2)
