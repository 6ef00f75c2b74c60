"""The int8 key/value cache: its graphs, its perplexity, and unsupported models."""

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from export.bundle_writer import write_bundle
from export.errors import UnsupportedError
from export.graphs import export_graphs
from export.kv_cache import (
    MIN_DISTINCT_TOKENS,
    calibrate,
    calibration_set,
    check_kv_cache_supported,
    quantize_cache,
)
from export.perplexity import EvaluationSet, measure_perplexity
from model.bundle import Device, Dtype, GraphSpec, KvCache, Precision, StateRole
from model.bundle_files import read_manifest, read_parity
from model.config import ModelConfig, ScoreKind
from tests.architectures import ARCHITECTURES, checkpoint, random_weights
from tests.model.test_scores import with_score

pytestmark = pytest.mark.slow  # exports, or starts servers

ROWS = EvaluationSet([[5, 9, 2, 40, 11, 3, 8], [7, 1, 60]])


def constants(path: Path) -> dict[str, np.ndarray]:
    return {
        tensor.name: numpy_helper.to_array(tensor, str(path.parent))
        for tensor in onnx.load(str(path)).graph.initializer
    }


def attentions(path: Path) -> list[onnx.NodeProto]:
    graph = onnx.load(str(path), load_external_data=False).graph
    return [node for node in graph.node if node.op_type == "GroupQueryAttention"]


@pytest.mark.parametrize(
    ("name", "precision", "device"),
    [
        ("llama", Precision.FP32, Device.CPU),
        ("llama", Precision.INT8, Device.CPU),
        ("llama", Precision.FP16, Device.CUDA),
        ("gpt", Precision.BF16, Device.CUDA),
        ("vaswani", Precision.FP32, Device.CPU),
        ("t5", Precision.INT8, Device.CPU),
    ],
)
def test_bundle_with_int8_cache_keeps_perplexity(
    tmp_path: Path, name: str, precision: Precision, device: Device
) -> None:
    path = write_bundle(
        checkpoint(name), tmp_path, precision=precision, device=device, kv_cache=KvCache.INT8
    )
    manifest, parity = read_manifest(path), read_parity(path)
    assert manifest.kv_cache == KvCache.INT8
    for graph in (manifest.graphs["decode"], manifest.graphs["attend"]):
        kv_dtypes = {state.dtype for state in graph.states if state.role == StateRole.KV}
        other_dtypes = {state.dtype for state in graph.states if state.role != StateRole.KV}
        assert kv_dtypes == {Dtype.INT8}
        assert Dtype.INT8 not in other_dtypes
    assert parity.float_cache_perplexity is not None
    assert parity.perplexity is not None
    assert 0.98 < parity.perplexity / parity.float_cache_perplexity < 1.02
    assert parity.perplexity != parity.float_cache_perplexity
    assert 0.99 < parity.min_cosine < 0.9999999


def test_int8_cache_takes_a_quarter_of_fp32() -> None:
    graph = decode_signature("llama")
    assert graph.cache_bytes_per_token == 4 * as_int8(graph).cache_bytes_per_token
    stack = ARCHITECTURES["llama"].decoder
    assert stack is not None
    attention = stack.layers[0].attention
    assert attention is not None
    expected = 2 * len(stack.layers) * attention.num_kv_heads * attention.head_size
    assert as_int8(graph).cache_bytes_per_token == expected


def decode_signature(name: str) -> GraphSpec:
    from export.signatures import signatures  # noqa: PLC0415

    return signatures(ARCHITECTURES[name])["decode"]


def as_int8(graph: GraphSpec) -> GraphSpec:
    states = tuple(msgspec.structs.replace(state, dtype=Dtype.INT8) for state in graph.states)
    return msgspec.structs.replace(graph, states=states)


def with_heads(config: ModelConfig, num_heads: int, num_kv_heads: int) -> ModelConfig:
    """``config`` with one layer and heads of size 64."""
    assert config.decoder is not None
    layer = config.decoder.layers[0]
    assert layer.attention is not None
    attention = msgspec.structs.replace(
        layer.attention, num_heads=num_heads, num_kv_heads=num_kv_heads, head_size=64
    )
    layer = msgspec.structs.replace(layer, attention=attention)
    stack = msgspec.structs.replace(config.decoder, layers=(layer,), order=None)
    return msgspec.structs.replace(config, decoder=stack)


@pytest.mark.parametrize(
    ("device", "num_heads", "num_kv_heads", "granularity"),
    [
        (Device.CUDA, 4, 1, "PER_TENSOR"),
        (Device.CUDA, 3, 1, "PER_CHANNEL"),
        (Device.CPU, 4, 1, "PER_CHANNEL"),
    ],
)
def test_cache_scales_come_from_calibration_and_fit_the_kernel(
    tmp_path: Path, device: Device, num_heads: int, num_kv_heads: int, granularity: str
) -> None:
    config = with_heads(ARCHITECTURES["llama"], num_heads, num_kv_heads)
    graphs = export_graphs(config, random_weights(config), tmp_path)
    before = measure_perplexity(ROWS, tmp_path, graphs).perplexity
    largest = calibrate(ROWS, tmp_path, graphs)
    graphs = quantize_cache(graphs, tmp_path, largest, device)
    assert measure_perplexity(ROWS, tmp_path, graphs).perplexity == pytest.approx(before, rel=0.02)
    (node,) = attentions(tmp_path / "decode.onnx")
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    assert attributes["k_quant_type"] == attributes["v_quant_type"] == granularity.encode()
    assert attributes["kv_cache_bit_width"] == 8
    tensors = constants(tmp_path / "decode.onnx")
    key, value = largest["key.0"], largest["value.0"]
    assert key.shape == value.shape == (num_kv_heads, 64)
    if granularity == "PER_TENSOR":
        assert node.input[12] == node.input[13]  # the same tensor, as XQA requires
        # Values are scaled up to the keys' range, to within a factor of two.
        (scale,) = tensors[node.input[12]]
        assert key.max() / 127 * 0.999 <= scale < 2 * key.max() / 127
        (larger,) = (tensors[name] for name in tensors if name.endswith(".larger"))
        assert larger.shape == ((num_heads + 2 * num_kv_heads) * 64,)
        assert (larger[:-64] == 1).all()
        assert (larger[-64:] * value.max() <= key.max()).all()
        assert (larger[-64:] * value.max() > key.max() / 2).all()
    else:
        np.testing.assert_allclose(tensors[node.input[12]], key[None, :, None] / 127, rtol=1e-6)
        np.testing.assert_allclose(tensors[node.input[13]], value[None, :, None] / 127, rtol=1e-6)


def test_calibration_adds_random_rows_to_short_texts() -> None:
    config = ARCHITECTURES["llama"]
    rows = calibration_set(config, ROWS).rows
    assert rows[:2] == ROWS.rows
    assert len(rows) > 2
    assert max(map(max, rows)) < config.vocabulary_size
    assert calibration_set(config, None).rows == rows[2:]
    long_text = EvaluationSet([list(range(MIN_DISTINCT_TOKENS))])
    assert calibration_set(config, long_text) == long_text


@pytest.mark.parametrize("name", ["bert", "ssru"])
def test_model_without_kv_cache_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedError, match="this model has no key/value cache"):
        write_bundle(checkpoint(name), tmp_path, kv_cache=KvCache.INT8)
    assert list(tmp_path.iterdir()) == []


def test_additive_scores_are_rejected() -> None:
    additive = with_score(ARCHITECTURES["gpt"], ScoreKind.ADDITIVE)
    with pytest.raises(UnsupportedError, match="additive scores read the cache"):
        check_kv_cache_supported(additive, Device.CPU)


def test_attention_bias_is_rejected_on_cuda_only() -> None:
    with pytest.raises(UnsupportedError, match="attention with a bias"):
        check_kv_cache_supported(ARCHITECTURES["t5"], Device.CUDA)
    check_kv_cache_supported(ARCHITECTURES["t5"], Device.CPU)
