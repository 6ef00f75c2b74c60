"""Skeletons of bundles: graphs as they were, and random weights like those left out."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from loadtest.gpu import skeletons
from model.bundle_files import read_manifest, verify_files
from server.bench import Bench

WHOLE_BYTES = 1 << 10  # the tests' models are small


@pytest.fixture
def copied(
    tiny_bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path, Path]:
    """A bundle, its skeleton, and the bundle of that."""
    monkeypatch.setattr(skeletons, "_WHOLE", WHOLE_BYTES)
    monkeypatch.setattr(skeletons, "_SAMPLE", WHOLE_BYTES // 2)
    original = tiny_bundles / "tiny-decoder" / "1"
    skeleton, bundle = tmp_path / "skeleton", tmp_path / "tiny-decoder" / "1"
    skeletons.pack(original, skeleton)
    skeletons.unpack(skeleton, bundle)
    return original, skeleton, bundle


def test_a_skeleton_is_small(copied: tuple[Path, Path, Path]) -> None:
    original, skeleton, _ = copied
    weights = (original / "decode.onnx.data").stat().st_size
    assert (skeleton / "skeleton.bin").stat().st_size < weights / 4
    assert not (skeleton / "decode.onnx.data").exists()


def test_the_copy_is_a_valid_bundle(copied: tuple[Path, Path, Path]) -> None:
    _, _, bundle = copied
    manifest = read_manifest(bundle)
    verify_files(bundle, manifest)
    assert manifest.label == "tiny-decoder/1"


def test_small_tensors_stay_and_large_ones_have_similar_values(
    copied: tuple[Path, Path, Path],
) -> None:
    original, _, bundle = copied
    before_and_after = (onnx.load(f / "decode.onnx").graph.initializer for f in (original, bundle))
    num_large = 0
    for before, after in zip(*before_and_after, strict=True):
        ours, theirs = map(onnx.numpy_helper.to_array, (after, before))
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        if ours.nbytes <= WHOLE_BYTES:
            assert np.array_equal(ours, theirs)
        elif ours.dtype.kind == "f":
            num_large += 1
            assert not np.array_equal(ours, theirs)
            assert 0.5 < ours.std() / theirs.std() < 2
    assert num_large


async def test_the_engine_runs_the_copy(copied: tuple[Path, Path, Path]) -> None:
    _, _, bundle = copied
    bench = Bench()
    await bench.load({"model": str(bundle), "threads": 1})
    reply = await bench.run({"inputs": [[5, 6, 7]], "max_new_tokens": 3, "beams": 1})
    bench.close()
    assert len(reply["arrivals"][0]) == 3
