"""Attention of decode steps: the device code, in the emulator, beside ONNX Runtime's operator."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from server.runtime.cuda.decode_attention import replace_decode_attention
from server.runtime.memory import Array
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.nodes import DOMAIN, MICROSOFT
from server.runtime.rewriting.rewrites import apply_rewrites
from tests.server.cuda_defects import library_with_defect
from tests.server.cuda_operators import NEEDS_LIBRARY
from tests.server.in_place import run_in_place

pytestmark = NEEDS_LIBRARY
FLOAT, FLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16
BFLOAT16, INT32 = TensorProto.BFLOAT16, TensorProto.INT32
Sizes = list[str | int | None]
TYPES: dict[int, float] = {FLOAT16: 2e-3, BFLOAT16: 2e-2}  # largest errors of outputs of about 1
POSITIONS = 300


class Shape(NamedTuple):
    heads: int = 4
    kv_heads: int = 2
    head: int = 64
    capacity: int = 300
    rotary: int = 0
    is_cross: bool = False


def model_of(shape: Shape, type_: int, **attributes: Any) -> onnx.ModelProto:
    """A model of ONNX Runtime's operator, with inputs of this type."""
    width = shape.heads * shape.head
    packed = width + 2 * shape.kv_heads * shape.head
    cache: Sizes = ["rows", shape.kv_heads, shape.capacity, shape.head]
    make = helper.make_tensor_value_info
    inputs = [
        make("query", type_, ["rows", 1, width if shape.is_cross else packed]),
        make("past_key", type_, cache),
        make("past_value", type_, cache),
        make("last", INT32, ["rows"]),
        make("total", INT32, []),
    ]
    names = ["query", "", "", "past_key", "past_value", "last", "total"]
    if shape.is_cross:
        empty: Sizes = ["rows", 0, shape.kv_heads * shape.head]
        inputs += [make("key", type_, empty), make("value", type_, empty)]
        names[1:3] = ["key", "value"]
        attributes["causal"] = 0
    if shape.rotary:
        angles = [POSITIONS, shape.rotary // 2]
        inputs += [make("cos", type_, angles), make("sin", type_, angles)]
        names += ["cos", "sin"]
        attributes["do_rotary"] = 1
    node = helper.make_node(
        "GroupQueryAttention",
        names,
        ["y", "present_key", "present_value"],
        domain=MICROSOFT,
        num_heads=shape.heads,
        kv_num_heads=shape.kv_heads,
        **attributes,
    )
    outputs = [
        make("y", type_, ["rows", 1, width]),
        make("present_key", type_, cache),
        make("present_value", type_, cache),
    ]
    graph = helper.make_graph([node], "attention", inputs, outputs)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def replace(graph: onnx.GraphProto) -> bool:
    return apply_rewrites(graph, replace_decode_attention(GraphIndex(graph, Path())))


def with_native_operator(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    assert replace(copy.graph)
    copy.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return copy


def inputs_of(shape: Shape, lengths: list[int]) -> dict[str, Array]:
    """In fp32, of values that both 16-bit types have. ``lengths``: with the new token."""
    random = np.random.default_rng(3)

    def normal(*sizes: int) -> Array:
        array: Array = np.round(random.normal(size=sizes) * 64).clip(-255, 255) / 64
        return array.astype(np.float32)

    rows, width = len(lengths), shape.heads * shape.head
    cache = (rows, shape.kv_heads, shape.capacity, shape.head)
    found: dict[str, Array] = {
        "query": normal(
            rows, 1, width if shape.is_cross else width + 2 * shape.kv_heads * shape.head
        ),
        "past_key": normal(*cache),
        "past_value": normal(*cache),
        "last": np.array(lengths, np.int32) - 1,
        "total": np.array(max(lengths), np.int32),
    }
    if shape.is_cross:
        for name in ("key", "value"):
            found[name] = np.zeros((rows, 0, shape.kv_heads * shape.head), np.float32)
    if shape.rotary:
        angles = np.arange(POSITIONS)[:, None] / 100 ** np.linspace(0, 1, shape.rotary // 2)
        found["cos"] = np.cos(angles).astype(np.float32)
        found["sin"] = np.sin(angles).astype(np.float32)
    return found


def run(model: onnx.ModelProto, inputs: dict[str, Array], emulated: Path | None) -> list[Array]:
    return list(run_in_place(model, inputs, emulated).values())


def check(
    shape: Shape, lengths: list[int], emulated: Path, type_: int = FLOAT16, **attributes: Any
) -> None:
    inputs = inputs_of(shape, lengths)
    expected = run(model_of(shape, FLOAT, **attributes), inputs, None)
    actual = run(with_native_operator(model_of(shape, type_, **attributes)), inputs, emulated)
    for found, wanted in zip(actual, expected, strict=True):
        assert found.shape == wanted.shape
        tolerance = TYPES[type_] * max(1, np.abs(wanted).max())
        np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)
    for name, present in (("past_key", actual[1]), ("past_value", actual[2])):
        changed = (present != inputs[name]).any(axis=(1, 3))
        for row, length in enumerate(lengths):
            assert changed[row].tolist() == [
                not shape.is_cross and position == length - 1 for position in range(shape.capacity)
            ]


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize(
    "shape",
    [
        Shape(),
        Shape(heads=2, kv_heads=2, head=32),
        Shape(heads=9, kv_heads=3),
        Shape(heads=8, kv_heads=1, head=128),
        Shape(heads=12, kv_heads=1, head=32),
        Shape(rotary=64),
        Shape(rotary=32),
        Shape(head=96, rotary=96),
        Shape(heads=2, kv_heads=1, head=256, rotary=256),
        Shape(heads=2, kv_heads=2, head=256, rotary=64),
        Shape(heads=2, kv_heads=1, head=128, rotary=32),
        Shape(heads=20, kv_heads=2, rotary=64),  # in blocks of 8 and 2
        Shape(heads=2, kv_heads=2, is_cross=True),
    ],
    ids=str,
)
def test_lengths(shape: Shape, type_: int, emulated: Path) -> None:
    check(shape, [1, 2, 33, 70], emulated, type_)


@pytest.mark.parametrize("length", [15, 16, 17, 63, 64, 65, 128, 129, 256, 257, 300])
def test_lengths_around_what_warps_and_blocks_compute_at_once(length: int, emulated: Path) -> None:
    check(Shape(heads=3, kv_heads=1, rotary=64), [length, 1], emulated)


def test_scores_that_grow_and_fall(emulated: Path) -> None:
    """The largest score so far changes with each 16 tokens, or never after the first."""
    shape = Shape(heads=2, kv_heads=1)
    inputs = inputs_of(shape, [290, 290])
    inputs["query"][...] = 0.5
    inputs["past_key"][0] = np.linspace(-3, 3, shape.capacity)[:, None]
    inputs["past_key"][1] = np.linspace(3, -3, shape.capacity)[:, None]
    inputs["past_key"] = np.round(inputs["past_key"] * 64) / 64
    expected = run(model_of(shape, FLOAT), inputs, None)
    actual = run(with_native_operator(model_of(shape, FLOAT16)), inputs, emulated)
    np.testing.assert_allclose(actual[0], expected[0], rtol=0, atol=4e-3)


@pytest.mark.parametrize("length", [5, 200])
def test_what_is_not_finite_stays_in_its_row_and_head(length: int, emulated: Path) -> None:
    shape = Shape(heads=8, kv_heads=2)
    inputs = inputs_of(shape, [length, length])
    inputs["past_key"][0, 1, 2] = np.nan
    inputs["past_value"][1, 0, 3] = np.inf
    inputs["past_value"][:, :, length:] = np.nan  # nothing reads them
    found = run(with_native_operator(model_of(shape, FLOAT16)), inputs, emulated)[0].reshape(
        2, 2, 4, 64
    )
    assert np.isnan(found[0, 1]).all()
    assert not np.isfinite(found[1, 0]).any()
    assert np.isfinite([found[0, 0], found[1, 1]]).all()


def test_many_parts(emulated: Path) -> None:
    """More than a warp has lanes."""
    shape = Shape(heads=1, kv_heads=1, head=32, capacity=5000)
    check(shape, [4500], emulated)
    check(shape, [4500], emulated, local_window_size=4300)


def test_many_rows_are_not_split(emulated: Path) -> None:
    check(Shape(heads=2, kv_heads=2, head=32), [1 + 4 * row for row in range(70)], emulated)


def test_a_row_may_be_longer_than_the_given_total(emulated: Path) -> None:
    shape = Shape(heads=1, kv_heads=1, head=32)
    inputs = inputs_of(shape, [200])
    expected = run(model_of(shape, FLOAT), inputs, None)
    inputs["total"] = np.array(40, np.int32)
    actual = run(with_native_operator(model_of(shape, FLOAT16)), inputs, emulated)
    np.testing.assert_allclose(actual[0], expected[0], rtol=0, atol=2e-3)


def test_interleaved_rotation(emulated: Path) -> None:
    check(Shape(rotary=64), [1, 5, 60], emulated, rotary_interleaved=1)


@pytest.mark.parametrize("window", [1, 7, 64, 500])
def test_window(window: int, emulated: Path) -> None:
    check(Shape(heads=2, kv_heads=1, head=32), [1, 8, 150], emulated, local_window_size=window)


def test_scale_and_softcap(emulated: Path) -> None:
    check(Shape(head=32), [3, 50], emulated, scale=0.5)
    check(Shape(head=32), [3, 50], emulated, softcap=2.0)


def test_past_and_present_must_share_memory(emulated: Path) -> None:
    shape = Shape(heads=1, kv_heads=1, head=32)
    model = with_native_operator(model_of(shape, FLOAT16))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(emulated))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    inputs = {
        name: array.astype(np.float16) if array.dtype == np.float32 else array
        for name, array in inputs_of(shape, [3]).items()
    }
    with pytest.raises(Exception, match="in different memory"):
        session.run(None, inputs)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("last", (1,)),
        ("sin", (POSITIONS, 16)),
        ("cos", (8, 32)),
    ],
)
def test_unsupported_shapes(name: str, sizes: tuple[int, ...], emulated: Path) -> None:
    shape = Shape(rotary=64)
    inputs = inputs_of(shape, [5, 9])
    model = with_native_operator(model_of(shape, FLOAT16))
    inputs[name] = inputs[name][tuple(slice(size) for size in sizes)]
    declared = next(value for value in model.graph.input if value.name == name)
    declared.type.tensor_type.ClearField("shape")
    with pytest.raises(Exception, match=r"different shapes|unsupported shape"):
        run(model, inputs, emulated)


def test_a_rotated_part_of_a_head_that_is_no_multiple_of_16_stays() -> None:
    model = model_of(Shape(rotary=24), FLOAT16)
    assert not replace(model.graph)


@pytest.mark.slow  # each compiles the emulator
@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("    wait_for_block();\n    if ((part.last", "    if ((part.last"),
        ("  wait_for_block();\n  // Threads next", "  // Threads next"),
    ],
    ids=["new token", "warps"],
)
def test_the_emulator_finds_missing_barriers(tmp_path: Path, line: str, instead: str) -> None:
    library = library_with_defect(tmp_path, "decode_attention.h", line, instead)
    with pytest.raises(AssertionError, match="Not equal"):
        check(Shape(rotary=64), [1, 30, 60], library)


def unsupported() -> dict[str, onnx.ModelProto]:
    return {
        "heads of 80": model_of(Shape(head=80), FLOAT16),
        "fp32": model_of(Shape(), FLOAT),
        "sinks": model_of(Shape(), FLOAT16, smooth_softmax=1),
        "scores": model_of(Shape(), FLOAT16, qk_output=1),
        "an unknown attribute": model_of(Shape(), FLOAT16, of_the_future=0),
    }


@pytest.mark.parametrize("name", unsupported())
def test_what_stays(name: str) -> None:
    model = unsupported()[name]
    assert not replace(model.graph)
