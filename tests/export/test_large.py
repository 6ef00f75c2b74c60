"""Large models: the same results with less memory."""

import dataclasses
import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from export.bundle_writer import write_bundle
from export.decoding import DecodingInputs, decode_eagerly, decode_eagerly_batched
from export.float64_reference import float64_model
from export.graphs import export_graphs
from export.offload import LARGE_BYTES, OffloadedWeights, num_bytes
from model.bundle import Precision
from model.bundle_files import read_parity
from model.kernels import Step
from model.transformer import from_weights
from tests.architectures import ARCHITECTURES, checkpoint, random_weights


@pytest.fixture
def treat_all_models_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("float64_reference", "parity", "bundle_writer"):
        monkeypatch.setattr(f"export.{module}.LARGE_BYTES", 1)


def test_offloading_keeps_values_and_empties_the_dictionary(tmp_path: Path) -> None:
    weights = random_weights(ARCHITECTURES["llama"])
    # Neither fp32 nor contiguous.
    weights["half"] = torch.arange(6.0).view(2, 3).T.to(torch.float16)
    expected = dict(weights)
    offloaded = OffloadedWeights(weights, tmp_path / "weights")
    assert weights == {}
    assert num_bytes(offloaded) == sum(4 * weight.numel() for weight in expected.values())
    for name, weight in expected.items():
        torch.testing.assert_close(offloaded[name], weight.float(), rtol=0, atol=0)


@pytest.mark.usefixtures("treat_all_models_as_large")
@pytest.mark.parametrize("name", ["llama", "ssru", "bert"])
def test_lazy_float64_conversion_keeps_the_outputs(name: str) -> None:
    config = ARCHITECTURES[name]
    weights = random_weights(config)
    whole, parts = from_weights(config, weights).double(), float64_model(config, weights)
    ids, lengths = torch.tensor([[3, 1, 4, 1, 5]]), torch.tensor([5], dtype=torch.int32)
    with torch.inference_mode():
        for _ in range(2):  # a run leaves the weights unchanged
            if config.encoder is not None:
                segments = [torch.zeros_like(ids)] if config.embedding.num_segments else []
                expected, actual = (m.encode(ids, lengths, *segments) for m in (whole, parts))
            else:
                step = Step.whole(lengths)
                expected, actual = (m.logits(m.decode(ids, step).hidden) for m in (whole, parts))
            assert actual.dtype == torch.float64
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)
            assert all(weight.dtype == torch.float32 for weight in parts.parameters())


def test_batched_eager_decoding_equals_single_sequences() -> None:
    config = ARCHITECTURES["llama"]
    model = from_weights(config, random_weights(config)).double()
    inputs = DecodingInputs(prompts=[[3, 1, 4, 1, 5], [9], [2, 6]], num_steps=4)
    tokens = np.array([[5, 3, 5, 8], [9, 7, 9, 3], [2, 3, 8, 4]])
    with torch.inference_mode():
        alone = decode_eagerly(model, inputs, tokens, None)
        batched = decode_eagerly_batched(model, inputs, tokens)
    np.testing.assert_allclose(batched, alone, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("treat_all_models_as_large")
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.INT8])
def test_large_model_gives_the_same_bundle(tmp_path: Path, precision: Precision) -> None:
    source = checkpoint("llama")
    kept = write_bundle(source, tmp_path / "kept", precision=precision)
    assert source.weights
    consumed = dataclasses.replace(source, weights=dict(source.weights))
    moved = write_bundle(consumed, tmp_path / "moved", precision=precision, keep_weights=False)
    assert consumed.weights == {}
    assert sorted(p.name for p in moved.iterdir()) == sorted(p.name for p in kept.iterdir())
    for name in ("decode.onnx.data", "tokenizer.json"):
        assert (moved / name).read_bytes() == (kept / name).read_bytes()
    assert read_parity(moved).max_absolute_error <= 1e-5


def test_small_models_are_not_large() -> None:
    assert num_bytes(random_weights(ARCHITECTURES["llama"])) < LARGE_BYTES


def test_export_releases_the_weights(tmp_path: Path) -> None:
    arrays = {name: w.numpy().copy() for name, w in random_weights(ARCHITECTURES["llama"]).items()}
    references = [weakref.ref(array) for array in arrays.values()]
    # A tensor keeps its source array alive.
    weights = {name: torch.from_numpy(arrays.pop(name)) for name in list(arrays)}
    assert all(reference() is not None for reference in references)
    export_graphs(ARCHITECTURES["llama"], weights, tmp_path)
    del weights
    gc.collect()
    assert all(reference() is None for reference in references)
