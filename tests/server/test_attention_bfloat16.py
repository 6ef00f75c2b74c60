"""Beside int8 products, an encoder's attention rounds the factors of its products to bfloat16."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from server.runtime.contract import Array
from tests.server.attention_graphs import NEEDS_KERNEL, Case, graph, native_session, run

pytestmark = NEEDS_KERNEL

BFLOAT16_STEP = 2.0**-8
HAS_BFLOAT16 = "avx512_bf16" in Path("/proc/cpuinfo").read_text(encoding="ascii")


def save(case: Case, file: Path, *, has_int8_product: bool) -> Path:
    """A graph of the case's attention, and of an int8 product that nothing else reads."""
    model = graph(case.inputs(), case.all_attributes(), outputs=("y",))
    if has_int8_product:
        factors = {"a": np.ones((2, 3), np.uint8), "b": np.ones((3, 2), np.int8)}
        model.graph.initializer.extend(numpy_helper.from_array(x, n) for n, x in factors.items())
        model.graph.node.append(helper.make_node("MatMulInteger", list(factors), ["product"]))
        product = helper.make_tensor_value_info("product", onnx.TensorProto.INT32, [2, 2])
        model.graph.output.append(product)
    onnx.save(model, file)
    return file


def rounded(x: Array) -> Array:
    """To the nearest bfloat16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    upper = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return upper.view(np.float32).astype(np.float64)


def reference(case: Case, row: int) -> tuple[Array, Array]:
    """``y [length, heads * size]`` in float64, with each factor of a product rounded.

    Also how far ``y`` may be off: by four steps of bfloat16 of every weight. A weight may round the
    other way, since the kernel's powers are off by up to 8e-5; and so may a factor of its score.
    """
    inputs, heads, size = case.inputs(), case.heads[0], case.size
    length = case.lengths[row]
    vectors = [inputs["query"]] if case.packed else [inputs[x] for x in ("query", "key", "value")]
    if case.packed:
        vectors = np.split(vectors[0], 3, axis=-1)
    query, key, value = (x[row, :length].reshape(length, heads, size) for x in vectors)
    if case.angles:
        cos, sin = (inputs[name][:length, None] for name in ("cos", "sin"))
        query, key = (rotated(x, cos, sin) for x in (query, key))
    log2e = np.float32(1.442695041)
    query = query * (np.float32(size**-0.5) * log2e)
    scores = np.einsum("qhd,khd->hqk", rounded(query), rounded(key))
    weights = np.exp2(scores - scores.max(-1, keepdims=True))
    denominators = weights.sum(-1).T[:, :, None]

    def mean_of(values: Array) -> Array:
        sums: Array = np.einsum("hqk,khd->qhd", rounded(weights), values)
        return np.reshape(sums / denominators, (length, -1))

    return mean_of(rounded(value)), 4 * BFLOAT16_STEP * mean_of(np.abs(value)) + 1e-5


def rotated(x: Array, cos: Array, sin: Array) -> Array:
    half = cos.shape[-1]
    a, b, rest = np.split(x, [half, 2 * half], -1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)


@st.composite
def encoders(draw: st.DrawFn) -> Case:
    size = draw(st.sampled_from([32, 64, 96, 160]))
    lengths = st.integers(1, draw(st.sampled_from([5, 40, 130, 300])))
    rows = tuple(draw(st.lists(lengths, min_size=1, max_size=4)))
    heads = draw(st.integers(1, 3))
    return Case(
        kind="encoder",
        num_tokens=max(rows) + draw(st.integers(0, 3)),
        lengths=rows,
        heads=(heads, heads),
        size=size,
        packed=draw(st.booleans()),
        angles=draw(st.sampled_from([0, 8, size // 2])),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@pytest.mark.skipif(not HAS_BFLOAT16, reason="this CPU lacks AVX-512 BF16")
@settings(max_examples=80)
@given(case=encoders(), num_threads=st.integers(1, 2))
def test_rounds_the_factors_of_products(
    tmp_path_factory: pytest.TempPathFactory, case: Case, num_threads: int
) -> None:
    file = save(case, tmp_path_factory.mktemp("any") / "graph.onnx", has_int8_product=True)
    actual = run(native_session(file, num_threads), case.inputs())[0]
    for row, length in enumerate(case.lengths):
        expected, tolerance = reference(case, row)
        assert (np.abs(actual[row, :length] - expected) <= tolerance).all()
        assert not actual[row, length:].any()


@settings(max_examples=40)
@given(case=encoders(), has_int8_product=st.booleans())
def test_a_row_depends_neither_on_others_nor_on_padding(
    tmp_path_factory: pytest.TempPathFactory, case: Case, *, has_int8_product: bool
) -> None:
    folder = tmp_path_factory.mktemp("any")
    file = save(case, folder / "graph.onnx", has_int8_product=has_int8_product)
    native, inputs = native_session(file), case.inputs()
    for row, length in enumerate(case.lengths):
        for name in ("query", "key", "value"):
            if name in inputs:
                inputs[name][row, length:] = np.nan
    together = run(native, inputs)[0]
    for row, length in enumerate(case.lengths):
        alone = {
            name: array[row : row + 1, :length] if array.ndim == 3 else array
            for name, array in inputs.items()
        }
        alone["last"] = inputs["last"][row : row + 1]
        alone["total"] = np.array(length, np.int32)
        np.testing.assert_array_equal(run(native, alone)[0][0], together[row, :length])


@pytest.mark.parametrize("change", ["", "decoder", "grouped heads", "bias", "cap"])
def test_only_plain_encoders_round(tmp_path: Path, register_bits: int, change: str) -> None:
    case = Case(
        kind="prompt" if change == "decoder" else "encoder",
        num_tokens=40,
        lengths=(40, 17),
        heads=(4, 2) if change == "grouped heads" else (4, 4),
        bias=(True, True) if change == "bias" else None,
        attributes={"softcap": 5.0} if change == "cap" else {},
    )
    int8 = save(case, tmp_path / "int8.onnx", has_int8_product=True)
    fp32 = save(case, tmp_path / "fp32.onnx", has_int8_product=False)
    actual, exact = (run(native_session(file), case.inputs())[0] for file in (int8, fp32))
    is_exact = bool(change) or register_bits == 256 or not HAS_BFLOAT16
    assert np.array_equal(actual, exact) == is_exact


@pytest.mark.skipif(not HAS_BFLOAT16, reason="this CPU lacks AVX-512 BF16")
def test_all_blocks_of_keys_have_the_same_weight(tmp_path: Path) -> None:
    """With equal scores, an output is the mean of all values: 1 in the first half of the keys."""
    case = Case("encoder", 4096, (4096,), heads=(1, 1))
    file = save(case, tmp_path / "graph.onnx", has_int8_product=True)
    inputs = case.inputs()
    inputs["query"][..., :32] = 0.0
    inputs["query"][..., 64:] = (np.arange(4096) < 2048)[:, None]
    np.testing.assert_allclose(run(native_session(file), inputs)[0], 0.5, atol=1e-4)


@pytest.mark.skipif(not HAS_BFLOAT16, reason="this CPU lacks AVX-512 BF16")
def test_a_score_that_is_not_finite_stays_in_its_row(tmp_path: Path) -> None:
    case = Case("encoder", 20, (20, 20), heads=(2, 2))
    file = save(case, tmp_path / "graph.onnx", has_int8_product=True)
    inputs = case.inputs()
    expected = run(native_session(file), inputs)[0]
    inputs["query"][1, 3, 0] = np.nan
    actual = run(native_session(file), inputs)[0]
    np.testing.assert_array_equal(actual[0], expected[0])
    assert np.isnan(actual[1, 3, : case.size]).all()
