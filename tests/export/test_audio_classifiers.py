"""Exports of classifiers of recordings: precisions, fidelity, and manifests that do not fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from export.bundle_writer import write_bundle
from export.checkpoint import Checkpoint
from export.errors import UnsupportedError
from export.sources import load_checkpoint
from model.bundle import MANIFEST_FILE, BundleError, Device, Precision
from model.bundle_files import read_manifest, read_parity
from tests import audio_models

SAVERS: dict[str, Callable[[Path], object]] = {
    "waveform": audio_models.save,
    "spectrogram": audio_models.save_ast,
    "log-mel": audio_models.save_whisper,
}


def checkpoint_of(kind: str, folder: Path) -> Checkpoint:
    SAVERS[kind](folder)
    return load_checkpoint(str(folder))


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT4])
@pytest.mark.parametrize("kind", SAVERS)
def test_fidelity_is_of_labels(tmp_path: Path, kind: str, precision: Precision) -> None:
    checkpoint = checkpoint_of(kind, tmp_path / "checkpoint")
    path = write_bundle(checkpoint, tmp_path, name="sounds", precision=precision)
    fidelity = read_parity(path).fidelity
    assert fidelity is not None
    assert fidelity.top1_agreement is not None
    assert fidelity.top1_agreement >= (0.95 if precision == Precision.INT8 else 0.8)
    assert fidelity.exceeded_limits == ()
    errors = fidelity.matrix_errors
    assert {"mixer.qkv", "feed_forward.input", "head.output"} <= set(errors)
    # Spectrograms stay in floating point.
    assert all(error < 1e-5 for name, error in errors.items() if "spectrogram" in name)


@pytest.mark.parametrize("kind", SAVERS)
def test_graphs_for_gpus_are_refused(tmp_path: Path, kind: str) -> None:
    checkpoint = checkpoint_of(kind, tmp_path / "checkpoint")
    with pytest.raises(UnsupportedError, match="encoders of speech are supported on CPUs only"):
        write_bundle(checkpoint, tmp_path, device=Device.CUDA, precision=Precision.FP16)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, root = tmp_path_factory.mktemp("checkpoints"), tmp_path_factory.mktemp("bundles")
    return {
        kind: write_bundle(checkpoint_of(kind, folder / kind), root, name=kind)
        for kind in ("waveform", "spectrogram")
    }


@pytest.mark.parametrize(
    ("kind", "field", "change", "message"),
    [
        ("waveform", "labels", ["a"], "labels: the graph encode does not return their logits"),
        ("waveform", "audio", {"hop_size": 160}, "does not have 1499 frames"),
        ("spectrogram", "labels", ["a"], "labels: the graph encode does not return their logits"),
        ("spectrogram", "audio", {"num_samples": 16_000}, "does not take"),
        ("spectrogram", "audio", {"frame_size": 400}, "only one of frame_size and hop_size"),
        ("spectrogram", "audio", {"frame_size": 400, "hop_size": 160}, "does not have 47 frames"),
    ],
)
def test_manifests_must_fit_the_graph(
    bundles: dict[str, Path], tmp_path: Path, kind: str, field: str, change: Any, message: str
) -> None:
    manifest = msgspec.json.decode((bundles[kind] / MANIFEST_FILE).read_bytes())
    is_part = isinstance(change, dict)
    manifest[field] = manifest[field] | change if is_part else change
    folder = tmp_path / kind / "1"
    folder.mkdir(parents=True)
    (folder / MANIFEST_FILE).write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(BundleError, match=message):
        read_manifest(folder)
