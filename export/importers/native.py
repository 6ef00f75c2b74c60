"""The checkpoints that ``python -m train`` writes (:mod:`model.native_checkpoint`)."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from torch import Tensor

from export.checkpoint import Checkpoint, HeldOutSet, check_weights
from export.errors import SourceError
from export.importers.support import bundle_name
from export.readers.safetensors_weights import SafetensorsWeights
from export.tokenization.none import NO_TOKENIZER
from model.bundle import EmbeddingKind, ScoreFunction, Task
from model.config import HeadKind, Kind
from model.examples import parse_examples
from model.images import ImageError, Pixels, decode_image
from model.native_checkpoint import (
    CONFIG_FILE,
    FORMAT,
    HELD_OUT_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    NativeConfig,
)

MAX_CONFIG_BYTES = 4 << 20
EMBEDDINGS = {
    HeadKind.EMBEDDING: EmbeddingKind.DENSE,
    HeadKind.SPARSE_EMBEDDING: EmbeddingKind.SPARSE,
    HeadKind.MULTI_VECTOR_EMBEDDING: EmbeddingKind.MULTI_VECTOR,
}


def is_native(path: Path) -> bool:
    """Whether the folder ``path`` has a ``config.json`` of this format."""
    try:
        with (path / CONFIG_FILE).open("rb") as file:
            values = json.loads(file.read(MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(values, dict) and values.get("format") == FORMAT


def import_native(path: Path) -> Checkpoint:
    """The checkpoint in the folder ``path``.

    Raises:
        SourceError: a file or a sample image is missing or damaged.
        WeightsError: the weights do not fit the configuration.
    """
    weights = SafetensorsWeights([path / WEIGHTS_FILE])
    return native_checkpoint(path, read_native_config(path), weights)


def native_checkpoint(
    path: Path, native: NativeConfig, weights: Mapping[str, Tensor]
) -> Checkpoint:
    """The checkpoint with the files of the folder ``path`` and these ``weights``.

    The errors are those of :func:`import_native`.
    """
    num_labels = native.model.head.num_labels
    if native.labels and len(native.labels) != num_labels:
        raise SourceError(
            f"{path}: {CONFIG_FILE}: {len(native.labels)} labels for a head with {num_labels}"
        )
    _check_image(path, native)
    _check_embedding(path, native)
    check_weights(native.model, weights)
    score_function = native.score_function
    if score_function is None and Task.CLASSIFY in native.tasks:
        score_function = ScoreFunction.SOFTMAX
    return Checkpoint(
        config=native.model,
        weights={name: weight.float() for name, weight in weights.items()},
        tokenizer_json=_tokenizer(path, native),
        architecture=native.architecture,
        tasks=native.tasks,
        special_tokens=native.special_tokens,
        license=native.license,
        chat_template=native.chat_template,
        languages=native.languages,
        name=bundle_name(path),
        labels=native.labels,
        score_function=score_function,
        embedding=native.embedding,
        max_input_tokens=native.max_input_tokens,
        source_language=native.source_language,
        target_language=native.target_language,
        max_length_factor=native.max_length_factor,
        image=native.image,
        sample_inputs=native.sample_inputs,
        samples=_samples(path, native),
        held_out=_held_out(path, native),
    )


def read_native_config(path: Path) -> NativeConfig:
    """``config.json`` of the folder ``path``.

    Raises:
        SourceError: it is missing or not valid; the message names the field.
    """
    try:
        return msgspec.json.decode(_read(path / CONFIG_FILE), type=NativeConfig)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SourceError(f"{path}: {CONFIG_FILE}: {error}") from error


def examples_task(tasks: Sequence[Task], kind: Kind, *, has_image: bool) -> Task:
    """The task whose examples measure a model: those of texts from texts are translations."""
    from_texts = kind == Kind.ENCODER_DECODER and not has_image
    return Task.TRANSLATE if tasks[0] == Task.GENERATE and from_texts else tasks[0]


def read_held_out(path: Path, task: Task, name: str) -> HeldOutSet:
    """The examples of ``task`` in the file ``path``, JSON lines.

    Raises:
        SourceError: the file is missing, or a line is not an example of the task.
    """
    data = _read(path)
    try:
        examples = parse_examples(data, task, path.name)
    except ValueError as error:
        raise SourceError(str(error)) from error
    if not examples:
        raise SourceError(f"{path}: no examples")
    return HeldOutSet(name, task, hashlib.sha256(data).hexdigest(), tuple(examples))


def _tokenizer(path: Path, native: NativeConfig) -> str:
    if not native.model.vocabulary_size:
        return NO_TOKENIZER
    return _read(path / TOKENIZER_FILE).decode("utf-8")


def _check_image(path: Path, native: NativeConfig) -> None:
    """Checks that ``image`` and ``model.patches`` describe the same images."""
    patches, image = native.model.patches, native.image
    fields = ("height", "width", "num_channels", "num_tokens")
    read, made = ([getattr(x, name, None) for name in fields] for x in (patches, image))
    if read != made:
        raise SourceError(f"{path}: {CONFIG_FILE}: image does not make what model.patches reads")


def _check_embedding(path: Path, native: NativeConfig) -> None:
    """Checks that ``embedding`` describes the head's vectors, with lengths that the model has."""
    model, embedding = native.model, native.embedding
    kind = EMBEDDINGS.get(model.head.kind)
    if embedding is None and kind in (None, EmbeddingKind.DENSE):
        return
    found = None if embedding is None else embedding.kind
    spec = None if embedding is None else embedding.multi_vector
    if found != kind or (spec is None) == (kind == EmbeddingKind.MULTI_VECTOR):
        raise SourceError(f"{path}: {CONFIG_FILE}: embedding is not of the head {model.head.kind}")
    if spec is None:
        return
    longest, limit = max(spec.query_length, spec.document_length), model.position.max_positions
    if longest > limit:
        raise SourceError(
            f"{path}: {CONFIG_FILE}: embedding.multi_vector has a length of {longest}, but the "
            f"model has {limit} positions"
        )
    has_unattended = model.encoder is not None and model.encoder.has_unattended
    if has_unattended != (spec.filler is not None and not spec.attends_to_filler):
        raise SourceError(
            f"{path}: {CONFIG_FILE}: model.encoder.has_unattended does not fit "
            "embedding.multi_vector"
        )
    given = (spec.query_marker, spec.document_marker, spec.filler, *spec.skipped)
    beyond = [token for token in given if token is not None and token >= model.vocabulary_size]
    if beyond:
        raise SourceError(
            f"{path}: {CONFIG_FILE}: embedding.multi_vector has the tokens {beyond}, but the model "
            f"has only {model.vocabulary_size}"
        )


def _samples(path: Path, native: NativeConfig) -> tuple[Pixels, ...]:
    if native.image is None:
        return ()
    try:
        return tuple(decode_image(data, native.image) for data in native.sample_images)
    except ImageError as error:
        raise SourceError(f"{path}: {CONFIG_FILE}: sample_images: one {error}") from error


def _held_out(path: Path, native: NativeConfig) -> HeldOutSet | None:
    if native.held_out is None or not native.tasks:
        return None
    task = examples_task(native.tasks, native.model.kind, has_image=native.image is not None)
    found = read_held_out(path / HELD_OUT_FILE, task, native.held_out.name)
    if found.sha256 != native.held_out.sha256:
        raise SourceError(f"{path}: {HELD_OUT_FILE}: its SHA-256 is not that of {CONFIG_FILE}")
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
