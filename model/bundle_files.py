"""Reads a bundle's files and checks them against each other and against the manifest."""

import hashlib
import json
import os
import re
import stat
from pathlib import Path, PurePosixPath
from typing import TypeVar

import msgspec

from model.adapters import ADAPTERS
from model.bundle import (
    ATTEND,
    ATTEND_ENCODE,
    ENCODE_IMAGES,
    FORMAT_VERSION,
    MANIFEST_FILE,
    MAX_COUNT,
    MAX_FILES,
    MAX_MANIFEST_BYTES,
    NAME_PATTERN,
    PARITY_FILE,
    TOKENIZER_FILE,
    BundleError,
    FileRecord,
    Manifest,
    Parity,
    Task,
)
from model.bundle_checks import check_embedding, check_image, check_span_tagging, check_speech
from model.config import Kind
from model.quality import QUALITY_FILE, Quality

GRAPH_SUFFIX = ".onnx"
# Relative paths of plain names, without characters special to a file system or runtime.
_PATH_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*"

_T = TypeVar("_T")


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
    """Raises ``ValueError`` for a link, a file with several hard links, or a special file."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise ValueError("is a link")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("is not a regular file")
    if status.st_nlink != 1:
        raise ValueError(f"has {status.st_nlink} links")


def _check_keys(pairs: list[tuple[str, object]]) -> None:
    """Raises ``ValueError`` for a duplicate key, which JSON parsers resolve differently."""
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"duplicate key {key!r}")
        seen.add(key)


def read_manifest(directory: Path) -> Manifest:
    """Parses ``bundle.json`` of the bundle in ``directory`` and checks that it is consistent.

    Raises:
        BundleError: it is unreadable, of another format, or has a name or path outside the bundle.
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
        raise BundleError(f"{label}: bundle.json is of {manifest.label}")
    listed = {record.path for record in manifest.files}
    graph_files = {graph.file for graph in manifest.graphs.values()}
    shortlist_files = set() if manifest.shortlist is None else {manifest.shortlist.file}
    for path in sorted(listed | graph_files | shortlist_files | {TOKENIZER_FILE, PARITY_FILE}):
        parts = PurePosixPath(path)
        if parts.is_absolute() or ".." in parts.parts or "\\" in path or "\0" in path:
            raise BundleError(f"{label}: file {path!r} is outside the bundle")
        if not re.fullmatch(_PATH_PATTERN, path):
            raise BundleError(f"{label}: file {path!r} is not a plain path")
        if path not in listed:
            raise BundleError(f"{label}: file {path!r} is not listed in files")
    _check_suffixes(graph_files, label)
    _check_counts(manifest, label)
    _check_edits(manifest, label)
    _check_adapters(manifest, label)
    if manifest.embedding is not None:
        check_embedding(manifest, manifest.embedding, label)
    check_span_tagging(manifest, label)
    if manifest.fill_in_middle and manifest.kind != Kind.DECODER:
        raise BundleError(f"{label}: fill_in_middle: only a decoder has it")
    if manifest.shortlist is not None and manifest.kind != Kind.ENCODER_DECODER:
        raise BundleError(f"{label}: shortlist: only an encoder-decoder has one")
    expected = _expected_graphs(manifest)
    attending = {"encode": ATTEND_ENCODE, "decode": ATTEND}
    optional = {attending[name] for name in expected if name in attending}
    if set(manifest.graphs) - optional != expected:
        raise BundleError(f"{label}: graphs {sorted(manifest.graphs)}, need {sorted(expected)}")
    return manifest


def _expected_graphs(manifest: Manifest) -> set[str]:
    if manifest.kind == Kind.ENCODER:
        return {"encode"}
    if manifest.kind == Kind.ENCODER_DECODER:
        return {"encode", "decode"}
    return {"decode"} if manifest.image_prompt is None else {"decode", ENCODE_IMAGES}


def _check_adapters(manifest: Manifest, label: str) -> None:
    """Rejects adapters that the graphs do not take, and names of which two are the same."""
    names = [adapter.name for adapter in manifest.adapters or ()]
    for name in names:
        if not re.fullmatch(NAME_PATTERN, name):
            raise BundleError(f"{label}: adapter {name!r} does not match {NAME_PATTERN}")
    if len(names) != len(set(names)):
        raise BundleError(f"{label}: two adapters have the same name")
    for name, graph in manifest.graphs.items():
        if any(tensor.name == ADAPTERS for tensor in graph.inputs) != bool(names):
            raise BundleError(f"{label}: the graph {name} does not fit {len(names)} adapters")


def _check_suffixes(graph_files: set[str], label: str) -> None:
    """Libraries read files with other suffixes in other formats than those that are checked."""
    for path in sorted(graph_files):
        if not path.endswith(GRAPH_SUFFIX):
            raise BundleError(f"{label}: graph {path!r} is not an {GRAPH_SUFFIX} file")


def _check_edits(manifest: Manifest, label: str) -> None:
    num_edits = 0 if manifest.edits is None else len(manifest.edits.edits)
    if Task.CORRECT in manifest.tasks and num_edits != len(manifest.labels):
        raise BundleError(f"{label}: {num_edits} edits for {len(manifest.labels)} labels")


def read_parity(directory: Path) -> Parity:
    """Parses ``parity.json``. Raises :class:`BundleError` as :func:`read_manifest` does."""
    return _decode(directory / PARITY_FILE, Parity, f"{directory.parent.name}/{directory.name}")


def read_quality(directory: Path) -> Quality | None:
    """Parses ``quality.json``; None if the bundle has none.

    Raises:
        BundleError: as :func:`read_manifest` does.
    """
    if not (directory / QUALITY_FILE).exists():
        return None
    return _decode(directory / QUALITY_FILE, Quality, f"{directory.parent.name}/{directory.name}")


def _check_counts(manifest: Manifest, label: str) -> None:
    """Rejects sizes out of range before anything of that size is allocated."""
    if len(manifest.files) > MAX_FILES:
        raise BundleError(f"{label}: {len(manifest.files)} files, at most {MAX_FILES}")
    paths = [record.path for record in manifest.files]
    for path in paths:
        if paths.count(path) > 1:
            raise BundleError(f"{label}: file {path!r} is listed twice")
    sizes = _dimensions(manifest)
    if manifest.image is not None:
        check_image(manifest, manifest.image, label)
    if manifest.audio is not None and manifest.kind == Kind.ENCODER:
        check_speech(manifest, manifest.audio, label)
    for name, graph in manifest.graphs.items():
        for state in graph.states:
            for axis, size in enumerate(state.shape):
                if isinstance(size, int):
                    sizes[f"graphs.{name}.states.{state.name}.shape[{axis}]"] = size
    for field, size in sizes.items():
        if not 0 < size < MAX_COUNT:
            raise BundleError(f"{label}: {field} is {size}, not in 1 … {MAX_COUNT - 1}")


def _dimensions(manifest: Manifest) -> dict[str, int]:
    """The dimensions that must be positive."""
    dimensions = msgspec.structs.asdict(manifest.dimensions)
    unchecked = {"num_parameters"}
    if manifest.kind == Kind.ENCODER and not manifest.reads_texts:
        unchecked.add("vocabulary_size")
    if manifest.static_tokens is not None:
        unchecked.add("num_layers")
    return {
        name: size
        for name, size in dimensions.items()
        if size is not None and name not in unchecked
    }


def _check_nothing_else(directory: Path, manifest: Manifest, label: str) -> None:
    """Rejects a bundle with a file that the manifest does not list, and so gives no hash for."""
    listed = {MANIFEST_FILE, *(record.path for record in manifest.files)}
    for folder, folders, files in os.walk(directory):
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in (*files, *links):
            path = (Path(folder) / name).relative_to(directory).as_posix()
            if path not in listed:
                raise BundleError(f"{label}: file {path!r} is not listed in files")


def verify_files(directory: Path, manifest: Manifest) -> None:
    """Checks that the bundle has exactly the listed files, with their sizes and hashes.

    Raises:
        BundleError: names the first file that is missing, linked, outside, changed or not listed.
    """
    label = manifest.label
    _check_nothing_else(directory, manifest, label)
    for record in manifest.files:
        try:
            fault = _fault(directory, record)
        except OSError as error:
            fault = f": {error.strerror}"
        if fault:
            raise BundleError(f"{label}: file {record.path!r}{fault}")


def _fault(directory: Path, record: FileRecord) -> str:
    """The fault of a listed file; empty if it is correct. Raises ``OSError``."""
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
    """``record`` as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
