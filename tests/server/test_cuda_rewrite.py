"""Graphs rewritten for CUDA compute the same. Both run by the definitions of their operators."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from server.runtime.cuda.attention_checks import AttentionKernel
from server.runtime.memory import Array
from tests.server.cuda_graphs import (
    FLOAT16,
    MICROSOFT,
    SIZE,
    attention,
    attributes,
    gated,
    load,
    make_graph,
    node,
    random,
    rewrite,
    save,
    type_of,
    values,
)
from tests.server.cuda_operators import NEEDS_LIBRARY, run

pytestmark = NEEDS_LIBRARY

EPSILON = 1e-2
ROWS = ("batch", "length", SIZE)
# Absolute errors of outputs of about 1 that one graph rounds more often than the other.
TOLERANCES = {"float16": 0.01, "bfloat16": 0.08}
DTYPES = [np.float16, ml_dtypes.bfloat16]
NORMS = {"LayerNormalization": 1, "RMSNormalization": 0}


def rewritten_nodes(
    model: onnx.ModelProto, folder: Path, inputs: Mapping[str, Array]
) -> list[onnx.NodeProto]:
    """Rewrites a model, checks that the outputs stay the same, and returns the new nodes."""
    data = rewrite(save(model, folder))
    assert data is not None
    rewritten = load(data, folder)
    actual, expected = run(rewritten, inputs), run(model, inputs)
    assert list(actual) == list(expected)
    for name, array in expected.items():
        assert (actual[name].dtype, actual[name].shape) == (array.dtype, array.shape)
        wide = array.astype(np.float32)
        assert np.abs(wide).max() > 0.2, "large enough for the tolerance"
        tolerance = TOLERANCES[array.dtype.name]
        np.testing.assert_allclose(actual[name].astype(np.float32), wide, rtol=0, atol=tolerance)
    return list(rewritten.graph.node)


def operators(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    return [node.op_type for node in nodes]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", NORMS)
@pytest.mark.parametrize("is_sum_read", [False, True])
def test_a_norm_adds_its_residual(
    tmp_path: Path, dtype: Any, operator: str, is_sum_read: bool
) -> None:
    type_ = type_of(dtype)
    nodes = [
        node("Add", ["x", "residual"], "sum"),
        node(operator, ["sum", "scale"], "normal", epsilon=EPSILON),
        node("Add", ["normal", "sum" if is_sum_read else "normal"], "y"),
    ]
    inputs = values(type_, x=ROWS, residual=ROWS)
    weights = {"scale": random(dtype, SIZE)}
    model = make_graph(nodes, inputs, values(type_, y=ROWS), weights)
    # So small that epsilon matters.
    x, residual = random(dtype, 2, 2, 3, SIZE) * np.asarray(0.1, dtype)
    norm, _ = rewritten_nodes(model, tmp_path, {"x": x, "residual": residual})
    assert norm.op_type == ("NormFp16" if dtype is np.float16 else "NormBf16")
    assert attributes(norm) == {
        "epsilon": pytest.approx(EPSILON),
        "is_centered": NORMS[operator],
    }
    assert list(norm.output) == (["normal", "sum"] if is_sum_read else ["normal"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_biased_first", [False, True])
def test_a_norm_adds_a_bias_and_a_residual(
    tmp_path: Path, dtype: Any, is_biased_first: bool
) -> None:
    """As after a product, in a layer that normalizes sums."""
    type_ = type_of(dtype)
    operands = ["biased", "residual"] if is_biased_first else ["residual", "biased"]
    nodes = [
        node("Add", ["x", "x_bias"], "biased"),
        node("Add", operands, "sum"),
        node("LayerNormalization", ["sum", "scale", "bias"], "y"),
    ]
    names = ("x_bias", "scale", "bias")
    weights = {name: random(dtype, SIZE, seed=seed) for seed, name in enumerate(names)}
    inputs = values(type_, x=ROWS, residual=ROWS)
    model = make_graph(nodes, inputs, values(type_, y=ROWS), weights)
    x, residual = random(dtype, 2, 2, 3, SIZE)
    (norm,) = rewritten_nodes(model, tmp_path, {"x": x, "residual": residual})
    assert list(norm.input) == ["x", "x_bias", "residual", "scale", "bias"]


@pytest.mark.parametrize("operator", NORMS)
def test_a_norm_without_a_residual_of_its_shape(tmp_path: Path, operator: str) -> None:
    nodes = [
        node("Add", ["x", "row"], "sum"),
        node(operator, ["sum", "scale"], "normal"),
        node(operator, ["normal", "scale"], "y"),
    ]
    inputs = values(FLOAT16, x=ROWS, row=("batch", 1, SIZE))
    outputs = values(FLOAT16, y=ROWS)
    model = make_graph(nodes, inputs, outputs, {"scale": random(np.float16, SIZE)})
    x, row = random(np.float16, 2, 3, SIZE), random(np.float16, 2, 1, SIZE)
    made = rewritten_nodes(model, tmp_path, {"x": x, "row": row})
    assert operators(made) == ["Add", "NormFp16", "NormFp16"]


def test_a_sum_that_is_an_output_stays(tmp_path: Path) -> None:
    nodes = [
        node("Add", ["x", "residual"], "sum"),
        node("RMSNormalization", ["sum", "scale"], "y"),
    ]
    inputs = values(FLOAT16, x=ROWS, residual=ROWS)
    outputs = values(FLOAT16, y=ROWS, sum=ROWS)
    model = make_graph(nodes, inputs, outputs, {"scale": random(np.float16, SIZE)})
    x, residual = random(np.float16, 2, 2, 3, SIZE)
    (norm,) = rewritten_nodes(model, tmp_path, {"x": x, "residual": residual})
    assert list(norm.output) == ["y", "sum"]


def test_two_norms_read_one_sum(tmp_path: Path) -> None:
    """As of parallel branches, from the second layer on: GPT-NeoX."""
    nodes = [
        node("Add", ["x", "residual"], "sum"),
        node("LayerNormalization", ["sum", "scale"], "one"),
        node("LayerNormalization", ["sum", "other_scale"], "other"),
        node("Add", ["one", "other"], "branches"),
        node("Add", ["branches", "sum"], "y"),
    ]
    weights = {
        "scale": random(np.float16, SIZE),
        "other_scale": random(np.float16, SIZE, seed=1),
    }
    inputs = values(FLOAT16, x=ROWS, residual=ROWS)
    model = make_graph(nodes, inputs, values(FLOAT16, y=ROWS), weights)
    x, residual = random(np.float16, 2, 2, 3, SIZE)
    made = rewritten_nodes(model, tmp_path, {"x": x, "residual": residual})
    assert operators(made).count("NormFp16") == 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_silu_of_one_half_gates_the_other(tmp_path: Path, dtype: Any, has_bias: bool) -> None:
    weights = {"bias": random(dtype, 2 * SIZE, seed=1)} if has_bias else {}
    model = gated(type_of(dtype), weights)
    made, _ = rewritten_nodes(model, tmp_path, {"x": random(dtype, 2, 6, 2 * SIZE)})
    assert list(made.input) == ["x", *weights]
    assert attributes(made) == {"kind": 0, "is_gated": 1}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("approximate", "kind"), [("none", 2), ("tanh", 3)])
def test_gelu_adds_its_bias(tmp_path: Path, dtype: Any, approximate: str, kind: int) -> None:
    type_ = type_of(dtype)
    nodes = [
        node("Add", ["x", "bias"], "biased"),
        node("Gelu", ["biased"], "y", approximate=approximate),
    ]
    weights = {"bias": random(dtype, SIZE, seed=1)}
    model = make_graph(nodes, values(type_, x=ROWS), values(type_, y=ROWS), weights)
    (made,) = rewritten_nodes(model, tmp_path, {"x": random(dtype, 2, 3, SIZE)})
    assert list(made.input) == ["x", "bias"]
    assert attributes(made) == {"kind": kind, "is_gated": 0}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operands", [["x", "bias"], ["bias", "x"]])
def test_relu_adds_its_bias(tmp_path: Path, dtype: Any, operands: list[str]) -> None:
    nodes, type_ = [node("Add", operands, "biased"), node("Relu", ["biased"], "y")], type_of(dtype)
    weights = {"bias": random(dtype, SIZE, seed=1)}
    model = make_graph(nodes, values(type_, x=ROWS), values(type_, y=ROWS), weights)
    (made,) = rewritten_nodes(model, tmp_path, {"x": random(dtype, 2, 3, SIZE)})
    assert list(made.input) == ["x", "bias"]
    assert attributes(made) == {"kind": 1, "is_gated": 0}


def inputs_of(size: int) -> dict[str, Array]:
    """Texts of :func:`attention`, with rows of this size."""
    return {
        "packed": random(np.float16, 3, 5, size),
        "lengths": np.array([5, 1, 3], np.int32),
        "max_length": np.array(5, np.int32),
        "token_ids": np.ones((3, 5), np.int64),
    }


def angles_of(half: int) -> dict[str, Array]:
    angles = np.random.default_rng(2).uniform(0, 6, (6, half))
    return {
        "cosines": np.cos(angles).astype(np.float16),
        "sines": np.sin(angles).astype(np.float16),
    }


def attention_nodes(
    folder: Path, size: int, has_bias: bool, options: dict[str, Any], half: int
) -> dict[str, onnx.NodeProto]:
    """The rewritten nodes of :func:`attention`, by operator. ``half``: of what is rotated."""
    row = size + 2 * size // options.get("num_heads", 2) * 2
    weights = {"bias": random(np.float16, row, seed=1)} if has_bias else {}
    given = {**options, "do_rotary": int(half > 0)}
    model = attention(weights, size, angles=angles_of(half) if half else {}, **given)
    return {node.op_type: node for node in rewritten_nodes(model, folder, inputs_of(row))}


OPTIONS = pytest.mark.parametrize(
    "options", [{}, {"scale": 0.5}, {"do_rotary": 0}, {"num_heads": 4}, {"rotary_interleaved": 1}]
)


@pytest.mark.parametrize("has_bias", [False, True])
@OPTIONS
@pytest.mark.parametrize("half", [0, 8])
def test_attention_takes_separate_queries_keys_and_values(
    tmp_path: Path, has_bias: bool, options: dict[str, Any], half: int
) -> None:
    """Covers heads in groups, with rotary positions or without, of 24 or 48 elements."""
    made = attention_nodes(tmp_path, 96, has_bias, options, half)
    heads = options.get("num_heads", 2)
    split, attending = made["SplitFp16"], made["MultiHeadAttention"]
    bias = ["bias"] if has_bias else [""] * bool(half)
    assert list(split.input) == ["packed", *bias, *(["cosines", "sines"] if half else [])]
    assert attributes(split) == {
        "num_heads": heads,
        "num_kv_heads": 2,
        "is_interleaved": options.get("rotary_interleaved", 0),
    }
    ranges = made["KeyRangesFp16"]
    assert list(ranges.input) == ["packed", "lengths"]
    assert list(attending.input) == [*split.output, "", *ranges.output]
    assert attending.domain == MICROSOFT
    kept = {name: value for name, value in options.items() if name == "scale"}
    assert attributes(attending) == {"num_heads": heads, **kept}
    assert "GroupQueryAttention" not in made


@pytest.mark.parametrize("has_bias", [False, True])
@OPTIONS
@pytest.mark.parametrize("half", [0, 8])
def test_attention_of_our_own_takes_packed_heads(
    tmp_path: Path, has_bias: bool, options: dict[str, Any], half: int
) -> None:
    """Rotated ones are split before. Heads have 32 or 64 elements."""
    made = attention_nodes(tmp_path, 128, has_bias, options, half)
    heads = options.get("num_heads", 2)
    attending = made["EncoderAttentionFp16"]
    if half:
        query, key, value = made["SplitFp16"].output
        assert list(attending.input) == [query, "lengths", "", key, value]
    else:
        assert list(attending.input) == ["packed", "lengths", *["bias"] * has_bias]
    assert attributes(attending) == {
        "num_heads": heads,
        "num_kv_heads": heads if half else 2,
        "scale": options.get("scale", 0.0),
    }
    others = {"SplitFp16", "MultiHeadAttention", "KeyRangesFp16", "GroupQueryAttention", "Add"}
    assert others & made.keys() == ({"SplitFp16"} if half else set())


BIASED = {"weights": {"bias": random(np.float16, 1, 2, 5, 5)}, "position_bias": "bias"}


@pytest.mark.parametrize(
    ("size", "options", "index"),
    [
        pytest.param(12, {}, 10, id="heads of a size that is no multiple of 8"),
        pytest.param(SIZE, {"angles": angles_of(4), "do_rotary": 1}, 10, id="rotated half vectors"),
        pytest.param(SIZE, {"softcap": 5.0}, 10, id="bounded scores"),
        pytest.param(SIZE, {**BIASED, "causal": 1}, 5, id="causal with a bias"),
    ],
)
def test_other_attention_does_not_reach_padding(
    tmp_path: Path, size: int, options: dict[str, Any], index: int
) -> None:
    """ONNX Runtime's kernels would: :mod:`server.runtime.cuda.padding`."""
    model = attention(**{"weights": {}, "size": size, **options})
    before = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    inputs = [*before.input, *[""] * (11 - len(before.input))]
    data = rewrite(save(model, tmp_path))
    assert data is not None
    rewritten, given = load(data, tmp_path), inputs_of(3 * size)
    actual, expected = run(rewritten, given)["y"], run(model, given)["y"]
    is_token = np.arange(5) < given["lengths"][:, None]
    np.testing.assert_allclose(actual[is_token], expected[is_token], rtol=0, atol=1e-3)
    nodes = list(rewritten.graph.node)
    (made,) = (node for node in nodes if node.op_type == "GroupQueryAttention")
    changed = [place for place in range(11) if made.input[place] != inputs[place]]
    assert changed == [index]
    assert attributes(made) == attributes(before)
    assert nodes.index(made) > max(
        nodes.index(node) for node in nodes if node.output[0] == made.input[index]
    )


def test_the_nodes_of_a_mask_are_shared(tmp_path: Path) -> None:
    model = attention({}, softcap=5.0)
    again = attention({}, softcap=5.0).graph.node[1]
    again.input[0], again.output[0] = "attended_twice", "y_of_second"
    graph = model.graph
    graph.node.insert(2, node("Concat", ["attended"] * 3, "attended_twice", axis=-1))
    graph.node.insert(3, again)
    graph.node[-1].input[0] = "y_of_second"
    graph.value_info.extend(values(type_of(np.float16), y_of_second=("batch", "length", SIZE)))
    made = rewritten_nodes(model, tmp_path, inputs_of(3 * SIZE))
    assert operators(made).count("ConstantOfShape") == 1
    attending = [node for node in made if node.op_type == "GroupQueryAttention"]
    assert len({node.input[10] for node in attending}) == 1


def test_masks_of_other_lengths_are_not_shared(tmp_path: Path) -> None:
    """As of an image beside a text."""
    model = attention({}, softcap=5.0)
    graph = model.graph
    again = attention({}, softcap=5.0).graph.node
    again[0].output[0] = again[1].input[5] = "others"
    again[1].input[0], again[1].output[0] = "attended_twice", "y_of_second"
    graph.node.insert(2, node("Concat", ["attended"] * 3, "attended_twice", axis=-1))
    graph.node.insert(3, again[0])
    graph.node.insert(4, again[1])
    graph.node[-1].input[0] = "y_of_second"
    graph.value_info.extend(values(type_of(np.float16), y_of_second=("batch", "length", SIZE)))
    made = rewritten_nodes(model, tmp_path, inputs_of(3 * SIZE))
    assert operators(made).count("ConstantOfShape") == 2


@pytest.mark.parametrize(
    ("accurate", "expected"),
    [
        (tuple(AttentionKernel), "EncoderAttentionFp16"),
        ((AttentionKernel.MEMORY_EFFICIENT,), "MultiHeadAttention"),
        ((), "GroupQueryAttention"),
    ],
)
def test_tokens_that_nobody_attends_to_need_ranges(
    tmp_path: Path, accurate: tuple[AttentionKernel, ...], expected: str
) -> None:
    """Or the native kernel. With lengths alone, ``MultiHeadAttention`` leaves them out."""
    model = attention({}, 64)
    for value in model.graph.input:
        value.name = "attended_lengths" if value.name == "lengths" else value.name
    for one in model.graph.node:
        one.input[:] = ["attended_lengths" if name == "lengths" else name for name in one.input]
    onnx.save(model, tmp_path / "graph.onnx")
    data = rewrite(tmp_path / "graph.onnx", is_accurate=lambda kernel, *_: kernel in accurate)
    assert data is not None
    made = operators(load(data, tmp_path).graph.node)
    assert [name for name in made if "Attention" in name] == [expected]
