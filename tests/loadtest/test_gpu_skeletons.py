"""Skeletons: models as they were, but for weights like those left out."""

import struct
from pathlib import Path
from typing import Any

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


def test_the_order_of_values_is_the_same_everywhere(
    copied: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    _, skeleton, bundle = copied
    again = tmp_path / "again"
    skeletons.unpack(skeleton, again)
    name = "decode.onnx.data"
    assert (again / name).read_bytes() == (bundle / name).read_bytes()


def test_a_tensor_larger_than_the_pool_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skeletons, "_POOL", 1 << 12)
    monkeypatch.setattr(skeletons, "_PART", 1 << 10)
    monkeypatch.setattr(skeletons, "_PARTS_AT_ONCE", 3)
    model, skeleton, filled = tmp_path / "model", tmp_path / "skeleton", tmp_path / "filled"
    model.mkdir()
    values = np.random.default_rng(0).normal(size=50_001).astype(np.float16)
    small = np.arange(7, dtype=np.float32)
    write_converted(model / "model.bin", {"large": (values, 4), "small": (small, 0)})
    skeletons.pack(model, skeleton)
    assert (skeleton / "skeleton.bin").stat().st_size < values.nbytes / 4
    skeletons.unpack(skeleton, filled)
    before, after = ((each / "model.bin").read_bytes() for each in (model, filled))
    assert len(before) == len(after)
    first = before.index(values.tobytes())
    end = first + values.nbytes
    assert (before[:first], before[end:]) == (after[:first], after[end:])
    found = np.frombuffer(after[first:end], np.float16)
    assert set(found.tolist()) <= set(values.tolist())
    assert 0.9 < found.std() / values.std() < 1.1


def write_converted(path: Path, tensors: dict[str, tuple[Any, int]]) -> None:
    """A file of CTranslate2, from arrays and the numbers of their types."""

    def name(text: str) -> bytes:
        return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"

    parts = [struct.pack("<I", 6), name("TransformerSpec"), struct.pack("<II", 1, len(tensors))]
    for key, (array, kind) in tensors.items():
        shape = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        parts += [name(key), shape, struct.pack("<BI", kind, array.nbytes), array.tobytes()]
    path.write_bytes(b"".join([*parts, struct.pack("<I", 0)]))


def test_settings_have_no_weights(tmp_path: Path) -> None:
    model, skeleton = tmp_path / "model", tmp_path / "skeleton"
    (model / "1_Pooling").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "1_Pooling/config.json"):
        (model / name).write_text("{}")
    skeletons.pack_settings(model, skeleton)
    found = {str(path.relative_to(skeleton)) for path in skeleton.rglob("*") if path.is_file()}
    assert found == {"config.json", "1_Pooling/config.json"}
