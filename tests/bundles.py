"""Bundles for the tests, exported once per source state and cached under ``build/``."""

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from model.bundle import KvCache, Precision

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


def _cached(name: str, make: Callable[[Path], None]) -> Path:
    """Returns ``build/bundles/NAME``; a lock lets one test process create it for all."""
    path = ROOT / "build" / "bundles" / name
    complete = path / "complete"
    path.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not complete.exists():
            make(path)
            complete.touch()
    return path


def tiny_bundles() -> Path:
    """Small models trained by the tests: ``dates``, ``tiny-decoder``, ``tiny-classifier``."""

    def make(path: Path) -> None:
        from export.bundle_writer import write_bundle  # noqa: PLC0415  (imports torch)
        from tests import tiny  # noqa: PLC0415

        for checkpoint in (tiny.dates()[0], tiny.decoder()[0], tiny.classifier()[0]):
            if not (path / checkpoint.name).exists():
                write_bundle(checkpoint, path, precision=Precision.FP32)

    return _cached(f"tiny-{_key('model', 'export', 'tests/tiny.py')}", make)


def compact_bundles() -> Path:
    """The models of :func:`tiny_bundles` in fewer bits.

    ``classifier-int8``, ``decoder-int4``; with int8 caches ``decoder-cache8``, ``dates-cache8``.
    """

    def make(path: Path) -> None:
        from export.bundle_writer import write_bundle  # noqa: PLC0415  (imports torch)
        from tests import tiny  # noqa: PLC0415

        fp32, int8, int4 = Precision.FP32, Precision.INT8, Precision.INT4
        for name, checkpoint, precision, kv_cache in (
            ("classifier-int8", tiny.classifier()[0], int8, KvCache.FLOAT),
            ("decoder-int4", tiny.decoder()[0], int4, KvCache.FLOAT),
            ("decoder-cache8", tiny.decoder()[0], fp32, KvCache.INT8),
            ("dates-cache8", tiny.dates()[0], fp32, KvCache.INT8),
        ):
            if not (path / name).exists():
                write_bundle(checkpoint, path, name=name, precision=precision, kv_cache=kv_cache)

    return _cached(f"compact-{_key('model', 'export', 'tests/tiny.py', 'tests/bundles.py')}", make)


def recurrent_bundles() -> Path:
    """``tests.tiny_recurrent``: ``tiny-gru`` in fp32, ``tiny-gru-int8`` in int8."""

    def make(path: Path) -> None:
        from export.bundle_writer import write_bundle  # noqa: PLC0415  (imports torch)
        from tests import tiny_recurrent  # noqa: PLC0415

        for name, precision in (
            (tiny_recurrent.NAME, Precision.FP32),
            (tiny_recurrent.INT8_NAME, Precision.INT8),
        ):
            if not (path / name).exists():
                write_bundle(tiny_recurrent.recurrent_dates(name), path, precision=precision)

    key = _key("model", "export", "tests/tiny.py", "tests/tiny_recurrent.py")
    return _cached(f"recurrent-{key}", make)


def shortlist_bundles() -> Path:
    """``tests.shortlists.write_bundles``."""

    def make(path: Path) -> None:
        from tests import shortlists  # noqa: PLC0415  (imports torch)

        shortlists.write_bundles(path)

    key = _key("model", "export", "tests/tiny.py", "tests/shortlists.py")
    return _cached(f"shortlist-{key}", make)


def head_bundles() -> Path:
    """Random encoders, one per task head: ``tests.heads.NAMES``."""

    def make(path: Path) -> None:
        from tests import heads  # noqa: PLC0415  (imports torch)

        heads.write_bundles(path)

    return _cached(f"heads-{_key('model', 'export', 'tests/heads.py')}", make)


def retrieval_bundles() -> Path:
    """Random sparse and multi-vector models: ``tests.retrieval_models.NAMES``."""

    def make(path: Path) -> None:
        from tests import retrieval_models  # noqa: PLC0415  (imports torch)

        retrieval_models.write_bundles(path)

    sources = ("model", "export", "tests/heads.py", "tests/retrieval_models.py")
    return _cached(f"retrieval-{_key(*sources)}", make)


def image_bundles() -> Path:
    """Random models of images, and of texts with images: ``tests.image_models.CHECKPOINTS``."""

    def make(path: Path) -> None:
        from export.bundle_writer import write_bundle  # noqa: PLC0415  (imports torch)
        from tests.image_models import CHECKPOINTS  # noqa: PLC0415

        for name, checkpoint in CHECKPOINTS.items():
            if not (path / name).exists():
                write_bundle(checkpoint(), path, name=name)

    sources = ("model", "export", "tests/architectures.py", "tests/image_models.py")
    return _cached(f"images-{_key(*sources)}", make)


def speech_bundles() -> Path:
    """Random models that transcribe: ``speech`` of three languages, ``speech-en`` of English."""

    def make(path: Path) -> None:
        from export.bundle_writer import write_bundle  # noqa: PLC0415  (imports torch)
        from tests.speech_models import checkpoint, english  # noqa: PLC0415

        with tempfile.TemporaryDirectory() as folder:
            model = checkpoint(Path(folder))
        for name, variant in (("speech", model), ("speech-en", english(model))):
            if not (path / name).exists():
                write_bundle(variant, path, precision=Precision.FP32, name=name)

    return _cached(f"speech-{_key('model', 'export', 'tests/speech_models.py')}", make)


def literature_bundles() -> Path:
    """Random encoders: ``tests.literature.LITERATURE``."""

    def make(path: Path) -> None:
        from export.bundle_writer import write_bundle  # noqa: PLC0415  (imports torch)
        from tests.architectures import checkpoint, random_weights  # noqa: PLC0415
        from tests.literature import LITERATURE  # noqa: PLC0415

        for name, config in LITERATURE.items():
            if not (path / name).exists():
                model = replace(checkpoint("bert"), config=config, weights=random_weights(config))
                write_bundle(model, path, name=name)

    sources = ("model", "export", "tests/architectures.py", "tests/literature.py")
    return _cached(f"literature-{_key(*sources)}", make)


def default_bundles(precision: str) -> Path:
    """The default models; those of ``INT8_DEFAULTS`` only in int8."""
    names = DEFAULTS + (INT8_DEFAULTS if precision == "int8" else ())

    def make(path: Path) -> None:
        command = [sys.executable, "-m", "scripts.export_defaults", *names, "--out", str(path)]
        subprocess.run([*command, "--precision", precision], check=True, cwd=ROOT)

    return _cached(f"{precision}-{_key('model', 'export')}", make)
