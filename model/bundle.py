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
``attend`` of an          as ``decode``, and out: ``cross_attention [batch, layers,
encoder-decoder           heads, length, source_length]``, softmax weights. May be
                          missing.
========================  =========================================================

``decode`` accepts any lengths where nothing is cached, length 1 where rows have
ragged caches, and a longer chunk over a cache for one row at a time
(``max_chunk`` = 1 in :class:`Graph` forbids more than one new token per run). With
``chunk_within_source``, any run of more than one new token holds one row, and no more
tokens than the row's source has.

*Slot state* is every tensor that a running sequence owns. A state is bound as
input and output on the same memory, with ``batch`` in front of its slot shape.
"""

import hashlib
import json
import os
import re
import stat
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, TypeVar

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

# A path of plain names: nothing that a file system or a runtime takes for something else.
_PATH_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*"

# The graph that tells attention.
ATTEND = "attend"


_T = TypeVar("_T")


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


class Dtype(StrEnum):
    """Named as numpy names them, and ``ml_dtypes``."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"


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


class Parity(_Record, frozen=True, kw_only=True):
    """``parity.json``: the graphs in ONNX Runtime against the eager module.

    The first three compare the fp32 graph. ``min_cosine`` compares the graph that
    the bundle holds: embeddings or logits, the worst row.

    What a precision cost a model that writes text: the ``perplexity`` of the bundle's graphs
    beside that of the fp32 graphs, over ``evaluation_tokens`` of text.
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


def _decode(path: Path, kind: type[_T], label: str) -> _T:
    try:
        _check_regular(path)
        with path.open("rb") as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise BundleError(f"{label}: {path.name}: {error.strerror}") from error
    except ValueError as error:
        raise BundleError(f"{label}: {path.name}: {error}") from error
    if len(data) > MAX_MANIFEST_BYTES:
        raise BundleError(f"{label}: {path.name}: larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        record = msgspec.json.decode(data, type=kind)
        json.loads(data, object_pairs_hook=_check_keys)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BundleError(f"{label}: {path.name}: {error}") from error
    return record


def _check_regular(path: Path) -> None:
    """Raises ``ValueError`` for a link, a second name, or what is no file, such as a pipe."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise ValueError("is a link")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("is no regular file")
    if status.st_nlink != 1:
        raise ValueError(f"has {status.st_nlink} links")


def _check_keys(pairs: list[tuple[str, object]]) -> None:
    """Two readers of a file must not read different things: each key of an object is there once."""
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"key {key!r} is there twice")
        seen.add(key)


def read_manifest(directory: Path) -> Manifest:
    """Parses ``bundle.json`` of the bundle in ``directory`` and checks it against itself.

    Raises:
        BundleError: unreadable, not of this format, or with a name or path that
            points out of the bundle.
    """
    label = f"{directory.parent.name}/{directory.name}"
    manifest = _decode(directory / MANIFEST_FILE, Manifest, label)
    if manifest.format_version != FORMAT_VERSION:
        raise BundleError(
            f"{label}: format_version {manifest.format_version}, this server reads {FORMAT_VERSION}"
        )
    for field, value in (("name", manifest.name), ("version", manifest.version)):
        if not re.fullmatch(NAME_PATTERN, value):
            raise BundleError(f"{label}: {field} {value!r} does not match {NAME_PATTERN}")
    if (manifest.name, manifest.version) != (directory.parent.name, directory.name):
        raise BundleError(f"{label}: bundle.json is of {manifest.name}/{manifest.version}")
    listed = {record.path for record in manifest.files}
    graph_files = {graph.file for graph in manifest.graphs.values()}
    for path in sorted(listed | graph_files | {TOKENIZER_FILE, PARITY_FILE}):
        parts = PurePosixPath(path)
        if parts.is_absolute() or ".." in parts.parts or "\\" in path or "\0" in path:
            raise BundleError(f"{label}: file {path!r} is outside the bundle")
        if not re.fullmatch(_PATH_PATTERN, path):
            raise BundleError(f"{label}: file {path!r} is no plain path")
        if path not in listed:
            raise BundleError(f"{label}: file {path!r} is not listed in files")
    _check_counts(manifest, label)
    embedding = manifest.embedding
    if embedding is not None and embedding.default_prompt not in (None, *embedding.prompts):
        raise BundleError(f"{label}: default_prompt {embedding.default_prompt!r} is no prompt")
    expected = {"encode"} if manifest.kind == Kind.ENCODER else {"decode"}
    if manifest.kind == Kind.ENCODER_DECODER:
        expected = {"encode", "decode"}
    optional = {ATTEND} if "decode" in expected else set()
    if set(manifest.graphs) - optional != expected:
        raise BundleError(f"{label}: graphs {sorted(manifest.graphs)}, need {sorted(expected)}")
    return manifest


def read_parity(directory: Path) -> Parity:
    """Parses ``parity.json``. Raises :class:`BundleError` as :func:`read_manifest` does."""
    return _decode(directory / PARITY_FILE, Parity, f"{directory.parent.name}/{directory.name}")


def _check_counts(manifest: Manifest, label: str) -> None:
    """Refuses what nobody could hold, before anything is made of that size."""
    if len(manifest.files) > MAX_FILES:
        raise BundleError(f"{label}: {len(manifest.files)} files, at most {MAX_FILES}")
    paths = [record.path for record in manifest.files]
    for path in paths:
        if paths.count(path) > 1:
            raise BundleError(f"{label}: file {path!r} is listed twice")
    sizes = msgspec.structs.asdict(manifest.dimensions)
    del sizes["num_parameters"]
    for name, graph in manifest.graphs.items():
        for state in graph.states:
            for axis, size in enumerate(state.shape):
                if isinstance(size, int):
                    sizes[f"graphs.{name}.states.{state.name}.shape[{axis}]"] = size
    for field, size in sizes.items():
        if not 0 < size < MAX_COUNT:
            raise BundleError(f"{label}: {field} is {size}, not in 1 … {MAX_COUNT - 1}")


def _check_nothing_else(directory: Path, manifest: Manifest, label: str) -> None:
    """Refuses a bundle with a file that nobody listed, and so nobody hashed."""
    listed = {MANIFEST_FILE, *(record.path for record in manifest.files)}
    for folder, folders, files in os.walk(directory):
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in (*files, *links):
            path = (Path(folder) / name).relative_to(directory).as_posix()
            if path not in listed:
                raise BundleError(f"{label}: file {path!r} is not listed in files")


def verify_files(directory: Path, manifest: Manifest) -> None:
    """Checks that the bundle's files are the listed ones: regular, inside, with size and hash.

    Raises:
        BundleError: names the first file that is missing, linked, outside, changed or not listed.
    """
    label = f"{manifest.name}/{manifest.version}"
    _check_nothing_else(directory, manifest, label)
    for record in manifest.files:
        try:
            fault = _fault(directory, record)
        except OSError as error:
            fault = f": {error.strerror}"
        if fault:
            raise BundleError(f"{label}: file {record.path!r}{fault}")


def _fault(directory: Path, record: FileRecord) -> str:
    """What is wrong with a listed file; empty if nothing is. Raises ``OSError``."""
    path = directory / record.path
    if path.is_symlink() or not path.resolve().is_relative_to(directory.resolve()):
        return " is outside the bundle"
    if not path.is_file():
        return " is missing"
    status = path.stat()
    if status.st_nlink != 1:
        return f" has {status.st_nlink} links"
    if status.st_size != record.size:
        return f" has {status.st_size} bytes, not {record.size}"
    if sha256_of(path) != record.sha256:
        return " does not have the listed hash"
    return ""


def sha256_of(path: Path) -> str:
    """The file's SHA-256, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def to_json(record: msgspec.Struct) -> bytes:
    """``record`` as indented JSON, for people to read as well."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
