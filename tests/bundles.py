"""Bundles for the tests, exported once per source state and cached under ``build/``."""

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from model.bundle import KvCache, Precision

if TYPE_CHECKING:  # imports torch
    from export.checkpoint import Checkpoint

ROOT = Path(__file__).parents[1]
DEFAULTS = ("smollm2", "minilm", "en-pt", "pt-en")  # the longest export first
INT8_DEFAULTS = (
    "whisper",
    "pii",
    "bert-tiny",
    "grammar",
    "debian-sections",
    "debian-en-it",
    "debian-summaries",
    "debian-splade",
    "debian-colbert",
    "digits",
)


def _key(*folders: str) -> str:
    """The cache key: a hash of the source files."""
    digest = hashlib.sha256()
    for folder in folders:
        path = ROOT / folder
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _cached(name: str, items: Iterable[str], make: Callable[[Path, str], None]) -> Path:
    """Returns ``build/bundles/NAME`` after ``make(folder, item)`` for each item.

    Test processes that need it at the same time make different items of it.
    """
    path = ROOT / "build" / "bundles" / name
    path.mkdir(parents=True, exist_ok=True)
    missing = list(items)
    for timeout in (0, -1):  # what another process is making comes last
        waited_for = []
        for item in missing:
            complete = path / f"{item}.complete"
            try:
                with FileLock(path.with_name(f"{name}-{item}.lock"), timeout):
                    if not complete.exists():
                        make(path, item)
                        complete.touch()
            except Timeout:
                waited_for.append(item)
        missing = waited_for
    return path


def _export(checkpoint: "Checkpoint", path: Path, name: str, **options: Any) -> None:
    """Writes the bundle ``path / name``, unless it exists."""
    from export.bundle_writer import write_bundle  # noqa: PLC0415  (imports torch)

    if not (path / name).exists():
        write_bundle(checkpoint, path, name=name, **options)


def tiny_bundles() -> Path:
    """Small models trained by the tests: ``dates``, ``tiny-decoder``, ``tiny-classifier``."""

    def make(path: Path, name: str) -> None:
        from tests import tiny  # noqa: PLC0415  (imports torch)

        model = getattr(tiny, name.removeprefix("tiny-"))
        _export(model()[0], path, name, precision=Precision.FP32)

    key = _key("model", "export", "tests/tiny.py")
    return _cached(f"tiny-{key}", ("dates", "tiny-decoder", "tiny-classifier"), make)


def compact_bundles() -> Path:
    """The models of :func:`tiny_bundles` in fewer bits.

    ``classifier-int8``, ``decoder-int4``; with int8 caches ``decoder-cache8``, ``dates-cache8``.
    """
    variants = {
        "int8": (Precision.INT8, KvCache.FLOAT),
        "int4": (Precision.INT4, KvCache.FLOAT),
        "cache8": (Precision.FP32, KvCache.INT8),
    }

    def make(path: Path, name: str) -> None:
        from tests import tiny  # noqa: PLC0415  (imports torch)

        model, variant = name.split("-")
        precision, kv_cache = variants[variant]
        checkpoint = getattr(tiny, model)()[0]
        _export(checkpoint, path, name, precision=precision, kv_cache=kv_cache)

    key = _key("model", "export", "tests/tiny.py", "tests/bundles.py")
    names = ("dates-cache8", "decoder-int4", "decoder-cache8", "classifier-int8")
    return _cached(f"compact-{key}", names, make)


def recurrent_bundles() -> Path:
    """``tests.tiny_recurrent``: ``tiny-gru`` in fp32, ``tiny-gru-int8`` in int8."""

    def make(path: Path, name: str) -> None:
        from tests import tiny_recurrent  # noqa: PLC0415  (imports torch)

        is_int8 = name == tiny_recurrent.INT8_NAME
        precision = Precision.INT8 if is_int8 else Precision.FP32
        _export(tiny_recurrent.recurrent_dates(name), path, name, precision=precision)

    key = _key("model", "export", "tests/tiny.py", "tests/tiny_recurrent.py")
    return _cached(f"recurrent-{key}", ("tiny-gru", "tiny-gru-int8"), make)


def hybrid_bundles() -> Path:
    """``tests.tiny_hybrid``: ``tiny-hybrid`` in fp32, ``tiny-hybrid-int8`` with an int8 cache."""

    def make(path: Path, name: str) -> None:
        from tests import tiny_hybrid  # noqa: PLC0415  (imports torch)

        is_int8 = name == tiny_hybrid.INT8_NAME
        precision = Precision.INT8 if is_int8 else Precision.FP32
        kv_cache = KvCache.INT8 if is_int8 else KvCache.FLOAT
        checkpoint = tiny_hybrid.counting(name)
        _export(checkpoint, path, name, precision=precision, kv_cache=kv_cache)

    key = _key("model", "export", "tests/tiny.py", "tests/tiny_hybrid.py")
    return _cached(f"hybrid-{key}", ("tiny-hybrid", "tiny-hybrid-int8"), make)


def shortlist_bundles() -> Path:
    """``tests.shortlists.write_bundles``."""

    def make(path: Path, _name: str) -> None:
        from tests import shortlists  # noqa: PLC0415  (imports torch)

        shortlists.write_bundles(path)

    key = _key("model", "export", "tests/tiny.py", "tests/shortlists.py")
    return _cached(f"shortlist-{key}", ("shortlist",), make)


def head_bundles() -> Path:
    """Random encoders, one per task head: ``tests.heads.NAMES``."""
    from tests import heads  # noqa: PLC0415  (imports torch)

    key = _key("model", "export", "tests/heads.py")
    return _cached(f"heads-{key}", heads.NAMES, heads.write_bundle_of)


def retrieval_bundles() -> Path:
    """Random sparse and multi-vector models: ``tests.retrieval_models.NAMES``."""
    from tests import retrieval_models  # noqa: PLC0415  (imports torch)

    key = _key("model", "export", "tests/heads.py", "tests/retrieval_models.py")
    return _cached(f"retrieval-{key}", retrieval_models.NAMES, retrieval_models.write_bundle_of)


def gliner_bundles() -> Path:
    """Random taggers of the request's labels: ``tests.gliner_models.NAMES``."""
    from tests import gliner_models  # noqa: PLC0415  (imports torch)

    key = _key("model", "export", "tests/heads.py", "tests/gliner_models.py")
    return _cached(f"gliner-{key}", gliner_models.NAMES, gliner_models.write_bundle_of)


def m3_bundles() -> Path:
    """Random models with several kinds of vectors: ``tests.m3_models.NAMES``."""
    from tests import m3_models  # noqa: PLC0415  (imports torch)

    key = _key("model", "export", "tests/heads.py", "tests/m3_models.py")
    return _cached(f"m3-{key}", m3_models.NAMES, m3_models.write_bundle_of)


def static_bundles() -> Path:
    """Random static embeddings: ``tests.static_models.NAMES``."""
    from tests import static_models  # noqa: PLC0415  (imports torch)

    key = _key("model", "export", "tests/heads.py", "tests/static_models.py")
    return _cached(f"static-{key}", static_models.NAMES, static_models.write_bundle_of)


def image_bundles() -> Path:
    """Random models of images, and of texts with images: ``tests.image_models.CHECKPOINTS``."""
    from tests.image_models import CHECKPOINTS  # noqa: PLC0415  (imports torch)

    def make(path: Path, name: str) -> None:
        _export(CHECKPOINTS[name](), path, name)

    key = _key("model", "export", "tests/architectures.py", "tests/image_models.py")
    return _cached(f"images-{key}", CHECKPOINTS, make)


def vision_models() -> Path:
    """Decoders that read images: ``bundles``, and ``sources`` with ``tests.vision_models.SAVE``."""
    from tests import vision_models  # noqa: PLC0415  (imports torch)

    key = _key("model", "export", "tests/vision_models.py")
    return _cached(f"vision-{key}", vision_models.SAVE, vision_models.write_bundle_of)


def caption_bundles() -> Path:
    """``captioner``, a random model that writes texts about images."""

    def make(path: Path, name: str) -> None:
        from tests import caption_models  # noqa: PLC0415  (imports torch)

        _export(caption_models.checkpoint(), path, name, precision=Precision.FP32)

    files = ("architectures", "image_models", "caption_models")
    key = _key("model", "export", *(f"tests/{name}.py" for name in files))
    return _cached(f"captions-{key}", ("captioner",), make)


def audio_bundles() -> Path:
    """Random classifiers of recordings: ``sounds``, a Wav2Vec2, and ``ast``."""

    def make(path: Path, name: str) -> None:
        from export.sources import load_checkpoint  # noqa: PLC0415  (imports torch)
        from tests import audio_models  # noqa: PLC0415

        with tempfile.TemporaryDirectory() as folder:
            if name == "ast":
                audio_models.save_ast(Path(folder))
            else:
                audio_models.save(Path(folder))
            _export(load_checkpoint(folder), path, name, precision=Precision.FP32)

    key = _key("model", "export", "tests/audio_models.py", "tests/ctc_models.py")
    return _cached(f"audio-{key}", ("sounds", "ast"), make)


def speech_bundles() -> Path:
    """Random models that transcribe: ``speech`` of three languages, ``speech-en`` of English."""

    def make(path: Path, name: str) -> None:
        from tests.speech_models import checkpoint, english  # noqa: PLC0415  (imports torch)

        with tempfile.TemporaryDirectory() as folder:
            model = checkpoint(Path(folder))
        variant = english(model) if name == "speech-en" else model
        _export(variant, path, name, precision=Precision.FP32)

    key = _key("model", "export", "tests/speech_models.py")
    return _cached(f"speech-{key}", ("speech", "speech-en"), make)


def literature_bundles() -> Path:
    """Random encoders: ``tests.literature.LITERATURE``."""
    from tests.architectures import checkpoint, random_weights  # noqa: PLC0415  (imports torch)
    from tests.literature import LITERATURE  # noqa: PLC0415

    def make(path: Path, name: str) -> None:
        config = LITERATURE[name]
        model = replace(checkpoint("bert"), config=config, weights=random_weights(config))
        _export(model, path, name)

    key = _key("model", "export", "tests/architectures.py", "tests/literature.py")
    return _cached(f"literature-{key}", LITERATURE, make)


def default_bundles(precision: str) -> Path:
    """The default models; those of ``INT8_DEFAULTS`` only in int8."""
    names = DEFAULTS + (INT8_DEFAULTS if precision == "int8" else ())

    def make(path: Path, _name: str) -> None:
        command = [sys.executable, "-m", "scripts.export_defaults", *names, "--out", str(path)]
        subprocess.run([*command, "--precision", precision], check=True, cwd=ROOT)

    return _cached(f"{precision}-{_key('model', 'export')}", ("defaults",), make)
