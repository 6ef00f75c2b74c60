"""Exports of speech encoders: precisions, their fidelity, and manifests that do not fit."""

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
from tests import ctc_models


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("checkpoint")
    ctc_models.save(folder, **ctc_models.BASE)
    return load_checkpoint(str(folder))


@pytest.fixture(scope="module")
def bundle(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bundles")
    return write_bundle(checkpoint, root, name="ctc", precision=Precision.INT8)


def test_fidelity_is_of_frames_and_transcripts(bundle: Path) -> None:
    fidelity = read_parity(bundle).fidelity
    assert fidelity is not None
    assert fidelity.num_tokens > 1000  # frames
    assert fidelity.top1_agreement is not None
    assert 0.9 < fidelity.top1_agreement < 1
    assert fidelity.identical_outputs is not None
    assert "embedding.convolutions.0.map" in fidelity.matrix_errors
    assert fidelity.exceeded_limits == ()


def test_graphs_for_gpus_are_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="encoders of speech are supported on CPUs only"):
        write_bundle(checkpoint, tmp_path, device=Device.CUDA, precision=Precision.FP16)


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("ctc", None, "needs audio.hop_size and ctc"),
        ("audio", {"hop_size": 160}, "does not have 1499 frames"),
        ("audio", {"num_samples": 399}, "shorter than a frame"),
        ("dimensions", {"vocabulary_size": 40}, "does not return tokens of frames"),
    ],
)
def test_manifests_must_fit_the_graph(
    bundle: Path, tmp_path: Path, field: str, change: dict[str, Any] | None, message: str
) -> None:
    manifest = msgspec.json.decode((bundle / MANIFEST_FILE).read_bytes())
    if change is None:
        del manifest[field]
    else:
        manifest[field] |= change
    folder = tmp_path / "ctc" / "1"
    folder.mkdir(parents=True)
    (folder / MANIFEST_FILE).write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(BundleError, match=message):
        read_manifest(folder)
