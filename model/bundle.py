"""The bundle: a folder that says everything a server needs to know of a model.

``export`` writes it, ``server`` reads it; neither knows the other. Imports no
torch and no ONNX package.

A bundle ``NAME/VERSION/`` holds ``bundle.json`` (the :class:`Manifest`), one or
more ``.onnx`` graphs with their weights in external data files,
``tokenizer.json`` and ``parity.json``.

Graph signatures (``batch`` and ``length`` are dynamic; all lengths int32, ids int64):

========================  =========================================================
``encode`` of an encoder  in: ``token_ids [batch, length]``, ``lengths [batch]`` (valid
                          tokens of each right-padded row), ``segment_ids [batch,
                          length]`` if the model has segments, ``logit_positions
                          [chosen]`` as below if it fills masks.
                          out: ``embeddings [batch, size]`` and ``token_embeddings
                          [batch, length, hidden]``; or ``logits``: of texts ``[batch,
                          labels]``, of tokens ``[batch, length, labels]``, of an
                          answer's start and end ``[batch, length, 2]``, of masked
                          tokens ``[chosen, vocabulary]``.
``encode`` of an          in: ``token_ids``, ``lengths``. out: one tensor for every
encoder-decoder           ``cross`` state, ``[batch, kv_heads, length, head_size]``.
``decode``                in: ``token_ids [batch, length]``, ``logit_positions
                          [chosen]`` (int32; ``row * length + index``, those after
                          which logits are wanted), ``num_cached_tokens [batch]``,
                          ``num_new_tokens [batch]`` (valid ids of each right-padded
                          row), ``max_total_length []`` (the largest sum
                          of the two), for encoder-decoders ``source_lengths
                          [batch]`` and ``max_source_length []``, and every state.
                          out: ``logits [chosen, vocabulary]``, and every state,
                          updated.
``attend``                as ``decode``, and out, as softmax weights: ``cross_attention
                          [batch, layers, heads, length, source_length]`` of an
                          encoder-decoder, ``self_attention [batch, layers, heads,
                          length, total_length]``. May be missing.
========================  =========================================================

``decode`` accepts any lengths where nothing is cached, length 1 where rows have
ragged caches, and a longer chunk over a cache for one row at a time
(``max_chunk`` = 1 in :class:`Graph` forbids more than one new token per run). With
``chunk_within_source``, any run of more than one new token holds one row, and no more
tokens than the row's source has.

*Slot state* is every tensor that a running sequence owns. A state is bound as
input and output on the same memory, with ``batch`` in front of its slot shape.
"""

import math
import re
from enum import StrEnum
from typing import Annotated

import msgspec

from model.config import Kind, PoolingKind

FORMAT_VERSION = 2
MANIFEST_FILE = "bundle.json"
PARITY_FILE = "parity.json"
TOKENIZER_FILE = "tokenizer.json"

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
MAX_MANIFEST_BYTES = 4 << 20
MAX_FILES = 1000
MAX_COUNT = 1 << 31  # of whatever a manifest counts but parameters


# The graph that tells attention.
ATTEND = "attend"


class BundleError(Exception):
    """A bundle that cannot be used. ``str(error)`` names the bundle and the reason."""


class AttentionKind(StrEnum):
    """What a decoder attends to; the name of the output of :data:`ATTEND` that tells it."""

    CROSS = "cross_attention"
    SELF = "self_attention"


class Task(StrEnum):
    GENERATE = "generate"
    TRANSLATE = "translate"
    EMBED = "embed"
    CLASSIFY = "classify"
    TAG = "tag"
    FILL_MASK = "fill_mask"
    ANSWER = "answer"
    RERANK = "rerank"


class ScoreFunction(StrEnum):
    """From a classifier's logits to scores.

    The softmax where a text has one label, the sigmoid where it may have several or the one
    logit says how well a pair fits, the logits themselves where they are measurements.
    """

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    IDENTITY = "identity"


class Precision(StrEnum):
    """Of the weights; what it means for all else depends on the :class:`Device`."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"


class Device(StrEnum):
    """What a bundle's graphs were made for."""

    CPU = "cpu"
    CUDA = "cuda"


class StateRole(StrEnum):
    """``KV`` grows by a row per token, ``CROSS`` is written once, ``RECURRENT`` has one size."""

    KV = "kv"
    CROSS = "cross"
    RECURRENT = "recurrent"


class KvCache(StrEnum):
    """What the keys and values of earlier tokens are held in: as computed, or in eight bits."""

    FLOAT = "float"
    INT8 = "int8"


class Dtype(StrEnum):
    """Named as numpy names them, and ``ml_dtypes``."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"
    INT8 = "int8"

    @property
    def num_bytes(self) -> int:
        """Of one element."""
        return int(re.sub(r"\D", "", self.value)) // 8


Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Size = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Id = Count  # of a token
LargeCount = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

# A dimension is a number, or a name for what varies: "batch", "length", ...
Shape = tuple[int | str, ...]


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class TensorSpec(_Record, frozen=True, kw_only=True):
    name: str
    dtype: Dtype
    shape: Shape


class StateSpec(_Record, frozen=True, kw_only=True):
    """One tensor that a running sequence owns.

    ``shape`` is that of one slot; the dimension ``"length"`` of a ``KV`` state
    and ``"source_length"`` of a ``CROSS`` state are the server's to choose.
    ``source`` names the output of ``encode`` that fills a ``CROSS`` state.
    """

    name: str
    role: StateRole
    dtype: Dtype
    shape: Shape
    input: str
    output: str
    source: str | None = None


class Graph(_Record, frozen=True, kw_only=True):
    """One ONNX file. ``inputs`` and ``outputs`` leave out the states.

    ``disabled_optimizers`` names transformations of the runtime that the parity check
    ran without; whoever runs the graph leaves them out as well.
    """

    file: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    states: tuple[StateSpec, ...] = ()
    max_chunk: Size | None = None
    chunk_within_source: bool = False
    disabled_optimizers: tuple[str, ...] = ()

    def output(self, name: str) -> TensorSpec:
        """The output of this name, which the graph must have."""
        (found,) = (tensor for tensor in self.outputs if tensor.name == name)
        return found

    @property
    def cache_bytes_per_token(self) -> int:
        """What one token of one sequence takes in all ``KV`` states."""
        return sum(
            math.prod(size for size in state.shape if isinstance(size, int)) * state.dtype.num_bytes
            for state in self.states
            if state.role == StateRole.KV
        )


class FileRecord(_Record, frozen=True, kw_only=True):
    path: str  # relative to the bundle, with forward slashes
    size: LargeCount
    sha256: str


class SpecialTokens(_Record, frozen=True, kw_only=True):
    """``decoder_start`` begins every target, and ``forced_first`` follows it, if there is one.

    ``suppressed`` are never generated.
    """

    eos: tuple[Id, ...] = ()
    pad: Id = 0
    bos: Id | None = None
    unk: Id | None = None
    mask: Id | None = None
    decoder_start: Id | None = None
    forced_first: Id | None = None
    suppressed: tuple[Id, ...] = ()


class Dimensions(_Record, frozen=True, kw_only=True):
    """``max_positions``: the longest sequence (of a decoder: prompt and output together)."""

    hidden_size: int
    num_layers: int
    vocabulary_size: int
    max_positions: int
    num_parameters: LargeCount


class Embedding(_Record, frozen=True, kw_only=True):
    """What the vectors of an embedding model are.

    ``truncations``: lengths to which they may be cut (Kusupati et al. 2022, Matryoshka); any
    if empty. ``prompts`` stand before a text, by name.
    """

    size: Size
    pooling: PoolingKind
    is_normalized: bool
    truncations: tuple[Size, ...] = ()
    prompts: dict[str, str] = {}
    default_prompt: str | None = None


class Manifest(_Record, frozen=True, kw_only=True):
    """Everything about one model. Field order is the order in ``bundle.json``."""

    format_version: int
    name: str
    version: str
    kind: Kind
    tasks: tuple[Task, ...]
    architecture: str  # for people; the server has no code for an architecture
    precision: Precision
    device: Device = Device.CPU
    kv_cache: KvCache = KvCache.FLOAT
    license: str
    dimensions: Dimensions
    special_tokens: SpecialTokens
    source_language: str | None = None
    target_language: str | None = None
    # Of a multilingual model: each language's token, which a source begins or ends with, and
    # which a target begins with, after decoder_start or in its place.
    languages: dict[str, Id] = {}
    labels: tuple[str, ...] = ()
    score_function: ScoreFunction | None = None  # of a model with labels for texts
    embedding: Embedding | None = None
    max_input_tokens: Size | None = None  # where a model was trained on less than it could hold
    chat_template: str | None = None  # Jinja, as Hugging Face defines it
    # Default of max_new_tokens for encoder-decoders, as a multiple of the source length.
    max_length_factor: Annotated[float, msgspec.Meta(gt=0)] | None = None
    graphs: dict[str, Graph]
    files: tuple[FileRecord, ...]

    @property
    def label(self) -> str:
        """``name/version``, for people."""
        return f"{self.name}/{self.version}"


class Parity(_Record, frozen=True, kw_only=True):
    """``parity.json``: the graphs in ONNX Runtime against the eager module.

    The first three compare the fp32 graph. ``min_cosine`` compares the graph that
    the bundle holds: embeddings or logits, the worst row.

    What a precision cost a model that writes text: the ``perplexity`` of the bundle's graphs
    beside that of the fp32 graphs, over ``evaluation_tokens`` of text. Where keys and values are
    held in eight bits, ``float_cache_perplexity`` is that of the bundle's graphs before they were.
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
