"""The bundle: a folder with everything that a server needs to run a model.

``export`` writes it, ``server`` reads it: their only contract. Imports no torch, no ONNX package.
``NAME/VERSION/`` holds ``bundle.json`` (the :class:`Manifest`), ``tokenizer.json``, ``parity.json``
and ``.onnx`` graphs (:mod:`model.graph_spec`) with their weights in data files.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

from model.adapters import AdapterSpec
from model.audio_config import AudioSpec, CtcTokens, TranscriptionTokens
from model.config import Kind
from model.edits import Edit, EditKind, EditVocabulary
from model.embedding_spec import (
    Embedding,
    EmbeddingKind,
    MultiVector,
    StaticTokens,
    TokenVectors,
    TokenWeights,
)
from model.fill_in_middle import FillInMiddle
from model.graph_spec import (
    ATTEND,
    ATTEND_ENCODE,
    ATTENDED_LENGTHS,
    ENCODE_IMAGES,
    IMAGE_POSITIONS,
    IMAGE_VECTORS,
    MULTI_VECTORS,
    NUM_SAMPLES,
    PIXELS,
    SAMPLES,
    SPARSE_WEIGHTS,
    WORD_POSITIONS,
    AttentionKind,
    Dtype,
    GraphSpec,
    LargeCount,
    Record,
    Shape,
    Size,
    StateRole,
    StateSpec,
    TensorSpec,
    TokenId,
)
from model.image_config import ImagePrompt, ImageSpec
from model.pair_template import PairTemplate
from model.parity import Fidelity, MatrixError, Parity
from model.shortlist import ShortlistLoss, ShortlistOrigin, ShortlistSpec
from model.span_tagging import SpanTagging

__all__ = [
    "ATTEND",
    "ATTENDED_LENGTHS",
    "ATTEND_ENCODE",
    "ENCODE_IMAGES",
    "FORMAT_VERSION",
    "IMAGE_POSITIONS",
    "IMAGE_VECTORS",
    "MANIFEST_FILE",
    "MAX_COUNT",
    "MAX_FILES",
    "MAX_MANIFEST_BYTES",
    "MULTI_VECTORS",
    "NAME_PATTERN",
    "NUM_SAMPLES",
    "PARITY_FILE",
    "PIXELS",
    "SAMPLES",
    "SHORTLIST_FILE",
    "SPARSE_WEIGHTS",
    "TOKENIZER_FILE",
    "WORD_POSITIONS",
    "AttentionKind",
    "AudioSpec",
    "BundleError",
    "CtcTokens",
    "Device",
    "Dimensions",
    "Dtype",
    "Edit",
    "EditKind",
    "EditVocabulary",
    "Embedding",
    "EmbeddingKind",
    "Fidelity",
    "FileRecord",
    "FillInMiddle",
    "GraphSpec",
    "ImagePrompt",
    "ImageSpec",
    "KvCache",
    "Manifest",
    "MatrixError",
    "MultiVector",
    "PairTemplate",
    "Parity",
    "Precision",
    "ScoreFunction",
    "Shape",
    "ShortlistLoss",
    "ShortlistOrigin",
    "ShortlistSpec",
    "SpanTagging",
    "SpecialTokens",
    "StateRole",
    "StateSpec",
    "StaticTokens",
    "Task",
    "TensorSpec",
    "TokenVectors",
    "TokenWeights",
    "TranscriptionTokens",
]

FORMAT_VERSION = 2
MANIFEST_FILE = "bundle.json"
PARITY_FILE = "parity.json"
SHORTLIST_FILE = "shortlist.bin"
TOKENIZER_FILE = "tokenizer.json"

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
MAX_MANIFEST_BYTES = 4 << 20
MAX_FILES = 1000
MAX_COUNT = 1 << 31  # exclusive limit of every size in a manifest except num_parameters


class BundleError(Exception):
    """A bundle that cannot be used. ``str(error)`` names the bundle and the reason."""


class Task(StrEnum):
    GENERATE = "generate"
    TRANSLATE = "translate"
    EMBED = "embed"
    CLASSIFY = "classify"
    TAG = "tag"
    CORRECT = "correct"
    FILL_MASK = "fill_mask"
    ANSWER = "answer"
    RERANK = "rerank"
    TRANSCRIBE = "transcribe"


class ScoreFunction(StrEnum):
    """How a classifier's logits become scores.

    Softmax for one label per text; sigmoid for several labels, or for one logit that scores a
    pair; identity for regression.
    """

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    IDENTITY = "identity"


class Precision(StrEnum):
    """Precision of the weights; the :class:`Device` decides that of activations and states."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"


class Device(StrEnum):
    """The device that a bundle's graphs are for."""

    CPU = "cpu"
    CUDA = "cuda"


class KvCache(StrEnum):
    """The type of cached keys and values: as computed, or int8."""

    FLOAT = "float"
    INT8 = "int8"


class FileRecord(Record, frozen=True, kw_only=True):
    path: str  # relative to the bundle, with forward slashes
    size: LargeCount
    sha256: str


class SpecialTokens(Record, frozen=True, kw_only=True):
    """Ids of special tokens.

    Attributes:
        decoder_start: the first token of every target.
        forced_first: if set, the target's second token.
        suppressed: never generated.
    """

    eos: tuple[TokenId, ...] = ()
    pad: TokenId = 0
    bos: TokenId | None = None
    unk: TokenId | None = None
    mask: TokenId | None = None
    decoder_start: TokenId | None = None
    forced_first: TokenId | None = None
    suppressed: tuple[TokenId, ...] = ()


class Dimensions(Record, frozen=True, kw_only=True):
    """``max_positions``: the longest sequence; in a decoder, prompt and output together.

    ``max_source_positions``: the longest source of an encoder-decoder, if it is longer.
    """

    hidden_size: int
    num_layers: int
    vocabulary_size: int
    max_positions: int
    max_source_positions: Size | None = None
    num_parameters: LargeCount


class Manifest(Record, frozen=True, kw_only=True):
    """``bundle.json``: the description of one model. Fields are in the order of the file."""

    format_version: int
    name: str
    version: str
    kind: Kind
    tasks: tuple[Task, ...]
    architecture: str  # for information; the server has no code for named architectures
    precision: Precision
    device: Device = Device.CPU
    kv_cache: KvCache = KvCache.FLOAT
    license: str
    source: str | None = None  # a pulled checkpoint's origin: hf:OWNER/NAME@COMMIT
    dimensions: Dimensions
    special_tokens: SpecialTokens
    source_language: str | None = None
    target_language: str | None = None
    # A source starts or ends with one; a target starts with one, after decoder_start or not.
    languages: dict[str, TokenId] = msgspec.field(default_factory=dict)
    labels: tuple[str, ...] = ()
    score_function: ScoreFunction | None = None  # for sequence classifiers
    edits: EditVocabulary | None = None  # for token classifiers that correct texts
    embedding: Embedding | None = None
    pair_template: PairTemplate | None = None  # for classifiers
    image: ImageSpec | None = None  # for models of images, or of texts with images
    audio: AudioSpec | None = None  # for models of speech
    transcription: TranscriptionTokens | None = None
    ctc: CtcTokens | msgspec.UnsetType = msgspec.UNSET  # of speech encoders; older servers lack it
    max_input_tokens: Size | None = None  # if shorter than max_positions: longest training texts
    chat_template: str | None = None  # Jinja, as Hugging Face defines it
    # The default of max_new_tokens in encoder-decoders: this factor times the source length.
    max_length_factor: Annotated[float, msgspec.Meta(gt=0)] | None = None
    shortlist: ShortlistSpec | None = None
    adapters: tuple[AdapterSpec, ...] | msgspec.UnsetType = msgspec.UNSET  # older servers lack it
    span_tagging: SpanTagging | msgspec.UnsetType = msgspec.UNSET  # for the request's labels
    fill_in_middle: FillInMiddle | msgspec.UnsetType = msgspec.UNSET  # older servers lack it
    graphs: dict[str, GraphSpec]
    files: tuple[FileRecord, ...]

    @property
    def reads_texts(self) -> bool:
        """Whether the model takes token ids; models of images or speech do not."""
        if self.kind == Kind.DECODER:
            return True
        inputs = self.graphs["encode"].inputs if "encode" in self.graphs else ()
        reads_others = self.image is not None or self.audio is not None
        return not reads_others or any(tensor.name == "token_ids" for tensor in inputs)

    @property
    def image_source(self) -> ImageSpec | None:
        """The sources of an encoder-decoder that writes about images; None for other models."""
        return self.image if self.kind == Kind.ENCODER_DECODER else None

    @property
    def image_prompt(self) -> ImagePrompt | None:
        """How prompts have images; None if the model reads none in prompts."""
        return None if self.image is None else self.image.prompt

    @property
    def embedding_kind(self) -> EmbeddingKind | None:
        """The output for a text in an embedding model; None for other models."""
        return None if self.embedding is None else self.embedding.kind

    @property
    def static_tokens(self) -> StaticTokens | None:
        """How a static embedding model tokenizes texts; None for other models."""
        return (self.embedding.static_tokens or None) if self.embedding else None

    @property
    def label(self) -> str:
        """``name/version``, for messages."""
        return f"{self.name}/{self.version}"
