"""Beside int8 products, attention rounds the factors of its products to bfloat16.

That decoders give the same bits however a prompt is cut is tested in test_attention_kernel.py.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.runtime.memory import Array
from tests.server.attention_graphs import (
    NEEDS_KERNEL,
    OUTPUTS,
    Case,
    add_int8_product,
    graph,
    native_session,
    run,
)

pytestmark = NEEDS_KERNEL

BFLOAT16_STEP = 2.0**-8
HAS_BFLOAT16 = "avx512_bf16" in Path("/proc/cpuinfo").read_text(encoding="ascii")


def save(case: Case, file: Path, *, has_int8_product: bool) -> Path:
    """A graph of the case's attention and, if it ``has_int8_product``, of such a product."""
    outputs = OUTPUTS if case.capacity else OUTPUTS[:1]
    model = graph(case.inputs(), case.all_attributes(), outputs=outputs)
    if has_int8_product:
        add_int8_product(model)
    onnx.save(model, file)
    return file


def rounded(x: Array) -> Array:
    """To the nearest bfloat16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    upper = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return upper.view(np.float32).astype(np.float64)


def reference(case: Case, row: int) -> tuple[Array, Array]:
    """``y [tokens, heads * size]`` in float64, with each factor of a product rounded.

    Also how far ``y`` may be off: by four steps of bfloat16 of every weight. A weight may round the
    other way, since the kernel's powers are off by up to 8e-5; and so may a factor of its score.
    """
    inputs, (heads, kv_heads), size = case.inputs(), case.heads, case.size
    length = case.lengths[row]
    start = 0 if case.is_fresh else length - case.num_tokens
    num_new = length - start
    if case.packed:
        edges = np.cumsum([heads, kv_heads]) * size
        vectors = np.split(inputs["query"], edges, axis=-1)
    else:
        vectors = [inputs[name] for name in ("query", "key", "value")]
    query, key, value = (x[row, :num_new].reshape(num_new, -1, size) for x in vectors)
    if case.angles:
        cos, sin = (inputs[name][start:length, None] for name in ("cos", "sin"))
        query, key = (rotated(x, cos, sin) for x in (query, key))
    if start:
        pasts = (inputs[name][row, :, :start].swapaxes(0, 1) for name in ("past_key", "past_value"))
        key, value = (np.concatenate(x) for x in zip(pasts, (key, value), strict=True))
    key, value = (np.repeat(x, heads // kv_heads, axis=1) for x in (key, value))
    log2e = np.float32(1.442695041)
    query = query * (np.float32(size**-0.5) * log2e)
    scores = np.einsum("qhd,khd->hqk", rounded(query), rounded(key))
    if case.kind != "encoder":
        position, seen = np.arange(start, length)[:, None], np.arange(length)
        window = case.attributes.get("local_window_size", length)
        scores[:, (seen > position) | (seen <= position - window)] = -np.inf
    weights = np.exp2(scores - scores.max(-1, keepdims=True))
    denominators = weights.sum(-1).T[:, :, None]

    def mean_of(values: Array) -> Array:
        sums: Array = np.einsum("hqk,khd->qhd", rounded(weights), values)
        return np.reshape(sums / denominators, (num_new, -1))

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


@st.composite
def decoders(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from(["decode", "prompt", "chunk"]))
    kv_heads, group = draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 3, 4, 7]))
    lengths = st.integers(1, draw(st.sampled_from([9, 70, 200])))
    rows = tuple(draw(st.lists(lengths, min_size=1, max_size=1 if kind == "chunk" else 3)))
    size = draw(st.sampled_from([32, 64, 96, 128]))
    windows = st.none() | st.integers(1, max(rows) + 5)
    window = draw(windows)
    num_tokens = {"decode": 1, "prompt": max(rows), "chunk": draw(st.integers(1, rows[0]))}[kind]
    return Case(
        kind=kind,
        num_tokens=num_tokens,
        lengths=rows,
        heads=(kv_heads * group, kv_heads),
        size=size,
        capacity=max(rows) + draw(st.integers(0, 80)),
        packed=draw(st.booleans()),
        in_place=draw(st.booleans()),
        angles=draw(st.sampled_from([0, 8, size // 2])),
        attributes={} if window is None else {"local_window_size": window},
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@pytest.mark.skipif(not HAS_BFLOAT16, reason="this CPU lacks AVX-512 BF16")
@settings(max_examples=200)
@given(case=encoders() | decoders(), num_threads=st.integers(1, 2))
def test_rounds_the_factors_of_products(
    tmp_path_factory: pytest.TempPathFactory, case: Case, num_threads: int
) -> None:
    file = save(case, tmp_path_factory.mktemp("any") / "graph.onnx", has_int8_product=True)
    actual = run(native_session(file, num_threads), case.inputs(), in_place=case.in_place)[0]
    for row in range(len(case.lengths)):
        expected, tolerance = reference(case, row)
        num_tokens = len(expected)
        assert (np.abs(actual[row, :num_tokens] - expected) <= tolerance).all()
        assert not actual[row, num_tokens:].any()


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


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        *(("encoder", change) for change in ("", "grouped heads", "bias", "cap")),
        *(("decode", change) for change in ("", "bias", "cap", "sinks", "small heads")),
        ("prompt", "no cache"),
    ],
)
def test_only_plain_attention_rounds(
    tmp_path: Path, register_bits: int, kind: str, change: str
) -> None:
    attributes: dict[str, dict[str, int | float]] = {
        "cap": {"softcap": 5.0},
        "sinks": {"smooth_softmax": 1},
    }
    case = Case(
        kind=kind,
        num_tokens=1 if kind == "decode" else 40,
        lengths=(40, 17),
        heads=(4, 2) if change == "grouped heads" else (4, 4),
        size=24 if change == "small heads" else 32,
        capacity=50 if kind == "decode" else 0,
        bias=(True, True) if change == "bias" else None,
        has_sinks=change == "sinks",
        attributes=attributes.get(change, {}),
    )
    int8 = save(case, tmp_path / "int8.onnx", has_int8_product=True)
    fp32 = save(case, tmp_path / "fp32.onnx", has_int8_product=False)
    actual, exact = (run(native_session(file), case.inputs())[0] for file in (int8, fp32))
    is_exact = bool(change) or register_bits == 256 or not HAS_BFLOAT16
    assert np.array_equal(actual, exact) == is_exact


def test_a_prompt_whose_rounded_cache_would_be_large(tmp_path: Path) -> None:
    """Its blocks of queries round keys and values themselves: kMaxRoundedBytes."""
    num_tokens, num_first = 2100, 200
    case = Case("prompt", num_tokens, (num_tokens,), (8, 8), size=128, capacity=num_tokens)
    native = native_session(save(case, tmp_path / "graph.onnx", has_int8_product=True))
    inputs = case.inputs()
    of_all = run(native, inputs)[0]
    inputs["query"] = inputs["query"][:, :num_first]
    inputs |= {"last": np.array([num_first - 1], np.int32), "total": np.array(num_first, np.int32)}
    np.testing.assert_array_equal(of_all[:, :num_first], run(native, inputs)[0])


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
