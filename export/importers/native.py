"""The checkpoints that ``python -m train`` writes: see :mod:`model.native_checkpoint`."""

import hashlib
import json
from pathlib import Path

import msgspec

from export.checkpoint import Checkpoint, HeldOutSet, check_weights
from export.errors import SourceError
from export.importers.support import bundle_name
from export.readers.safetensors_weights import SafetensorsWeights
from export.tokenization.none import NO_TOKENIZER
from model.bundle import ScoreFunction, Task
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
        SourceError: a file is missing or damaged, or the image of a sample.
        WeightsError: the weights do not fit the configuration.
    """
    native = read_native_config(path)
    _check_image(path, native)
    weights = SafetensorsWeights([path / WEIGHTS_FILE])
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
        name=bundle_name(path),
        labels=native.labels,
        score_function=score_function,
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
        SourceError: it is missing or not valid; names the field.
    """
    try:
        return msgspec.json.decode(_read(path / CONFIG_FILE), type=NativeConfig)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SourceError(f"{path}: {CONFIG_FILE}: {error}") from error


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
    if not native.model.reads_texts:
        return NO_TOKENIZER
    return _read(path / TOKENIZER_FILE).decode("utf-8")


def _check_image(path: Path, native: NativeConfig) -> None:
    """Whether ``image`` and ``model.patches`` are of the same images."""
    patches, image = native.model.patches, native.image
    fields = ("height", "width", "num_channels", "num_tokens")
    read, made = ([getattr(x, name, None) for name in fields] for x in (patches, image))
    if read != made:
        raise SourceError(f"{path}: {CONFIG_FILE}: image does not make what model.patches reads")


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
    found = read_held_out(path / HELD_OUT_FILE, native.tasks[0], native.held_out.name)
    if found.sha256 != native.held_out.sha256:
        raise SourceError(f"{path}: {HELD_OUT_FILE}: its SHA-256 is not that of {CONFIG_FILE}")
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
