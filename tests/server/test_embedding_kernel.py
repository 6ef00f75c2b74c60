"""The kernel that sums a token's embeddings equals the operators that it replaces."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from server.runtime.contract import Array
from server.runtime.kernels.library import Kernels, supported_kernels
from server.runtime.kernels.rewrite import RewrittenGraph, rewrite
from server.runtime.ort.backend import OrtBackend
from tests.server.matmul_graphs import standard_session

pytestmark = [
    pytest.mark.skipif(
        Kernels.EMBEDDING not in supported_kernels(), reason="this CPU cannot run the kernel"
    ),
    pytest.mark.usefixtures("register_bits", "all_kernels"),
]
NUM_TOKENS, NUM_POSITIONS, NUM_SEGMENTS = 50, 40, 2
NUM_ROWS = 60  # more tokens than a task has
SIZE = 44  # not a multiple of any register


@dataclass(frozen=True)
class Form:
    """What is added to a token's row, as the export writes it.

    ``length``: of ``token_ids``. ``positions``: "from 0", "cached" (after those cached), or "".
    ``first``: the first position.
    """

    length: int | str = "length"
    factor: float | None = None
    positions: str = ""
    segments: bool = False
    norm: bool = False
    first: int = 0


ENCODER = Form(factor=16.0, positions="from 0")
SEGMENTS = Form(positions="from 0", segments=True)
CACHED = Form(factor=3.7, positions="cached")
STEP = Form(length=1, factor=16.0, positions="cached")
FORMS = {
    "row alone": Form(),
    "factor": Form(factor=0.3),
    "encoder": ENCODER,
    "segments": SEGMENTS,
    "segments, norm": Form(positions="from 0", segments=True, norm=True),
    "norm": Form(norm=True),
    "cached": CACHED,
    "step": STEP,
}


def graph(path: Path, form: Form, **attributes: int) -> Path:
    """Saves the sum as ``y``; ``attributes`` of the lookup other than the export's."""
    rng = np.random.default_rng(0)
    tables: dict[str, Array] = {
        "table": rng.integers(0, 256, (NUM_TOKENS, SIZE)).astype(np.uint8),
        "scales": rng.uniform(0.001, 0.01, (NUM_TOKENS, 1)).astype(np.float32),
        "positions": rng.standard_normal((NUM_POSITIONS, SIZE)).astype(np.float32),
        "segments": rng.standard_normal((NUM_SEGMENTS, SIZE)).astype(np.float32),
        "norm_scale": rng.standard_normal(SIZE).astype(np.float32),
        "norm_bias": rng.standard_normal(SIZE).astype(np.float32),
        "factor": np.array(form.factor or 0.0, np.float32),
        "first": np.array(form.first),
        "zero": np.array(0),
        "one": np.array(1),
        "axis": np.array([1]),
        "only": np.array([0]),
    }
    settings: dict[str, Any] = {"bits": 8, "block_size": 64, "gather_axis": 0, "quantize_axis": 1}
    nodes = [
        helper.make_node(
            "GatherBlockQuantized",
            ["table", "token_ids", "scales"],
            ["row"],
            domain="com.microsoft",
            **(settings | attributes),
        )
    ]

    def add(operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    y = "row"
    if form.factor is not None:
        y = add("Mul", [y, "factor"], "scaled")
    if form.positions:
        index = "only"
        if form.length != 1:
            shape = add("Shape", ["token_ids"], "shape", start=1, end=2)
            end = add("Squeeze", [shape], "end")
            index = add("Range", ["zero", end, "one"], "range")
        if form.first:
            index = add("Add", [index, "first"], "shifted")
        if form.positions == "cached":
            cached = add("Unsqueeze", ["num_cached_tokens", "axis"], "column")
            wide = add("Cast", [cached], "wide", to=TensorProto.INT64)
            index = add("Add", [wide, index], "indices")
        y = add("Add", [y, add("Gather", ["positions", index], "position", axis=0)], "positioned")
    if form.segments:
        y = add("Add", [y, add("Gather", ["segments", "segment_ids"], "segment")], "summed")
    if form.norm:
        y = add("LayerNormalization", [y, "norm_scale", "norm_bias"], "normed", epsilon=1e-5)
    add("Neg", [y], "y")

    tokens = ["batch", form.length]
    integers = [("token_ids", tokens), ("segment_ids", tokens)]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, s) for name, s in integers]
    cached_info = helper.make_tensor_value_info("num_cached_tokens", TensorProto.INT32, ["batch"])
    known = [  # shapes that the export declares
        helper.make_tensor_value_info("range", TensorProto.INT64, [form.length]),
        helper.make_tensor_value_info("indices", TensorProto.INT64, tokens),
    ]
    y_info = helper.make_tensor_value_info("y", TensorProto.FLOAT, [*tokens, SIZE])
    used = {name for node in nodes for name in node.input}
    made = helper.make_graph(
        nodes,
        "g",
        [value for value in (*inputs, cached_info) if value.name in used],
        [y_info],
        [numpy_helper.from_array(x, name) for name, x in tables.items() if name in used],
        value_info=[value for value in known if value.name in used],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=10), path)
    return path


def inputs(form: Form, length: int = 7) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    shape = (NUM_ROWS, length if form.length != 1 else 1)
    given: dict[str, Array] = {"token_ids": rng.integers(0, NUM_TOKENS, shape)}
    if form.segments:
        given["segment_ids"] = rng.integers(0, NUM_SEGMENTS, shape)
    if form.positions == "cached":
        given["num_cached_tokens"] = rng.integers(0, NUM_POSITIONS - shape[1], NUM_ROWS, np.int32)
        given["num_cached_tokens"][:2] = 0, NUM_POSITIONS - shape[1]
    return given


def operators(rewritten: RewrittenGraph | None) -> list[str]:
    assert rewritten is not None
    return [node.op_type for node in onnx.ModelProto.FromString(rewritten.model).graph.node]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_equals_the_operators(tmp_path: Path, name: str, num_threads: int) -> None:
    """The same bits, also in several tasks, as one node; norms differ by rounding."""
    form = FORMS[name]
    file = graph(tmp_path / "graph.onnx", form)
    replaced = operators(rewrite(file, Kernels.EMBEDDING | Kernels.NORM))
    assert replaced == ["Embedding", "Neg"]
    bound = OrtBackend("cpu", num_threads).load(file, ()).bind({})
    for length in (1, 7):
        given = inputs(form, length)
        (expected,) = standard_session(file).run(None, given)
        tolerance = 2e-6 if form.norm else 0.0
        np.testing.assert_allclose(bound.run(given)["y"], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("form", "broken", "message"),
    [
        (Form(), {"token_ids": np.array([[0, NUM_TOKENS]])}, "a token id is not in the table"),
        (Form(), {"token_ids": np.array([[0, -1]])}, "a token id is not in the table"),
        (CACHED, {"num_cached_tokens": np.array([34], np.int32)}, "a position is not in the table"),
        (CACHED, {"num_cached_tokens": np.array([-1], np.int32)}, "a position is not in the table"),
        (ENCODER, {"token_ids": np.zeros((1, 41), np.int64)}, "a position is not in the table"),
        (SEGMENTS, {"segment_ids": np.full((1, 7), 2)}, "a segment id is not in the table"),
        (SEGMENTS, {"segment_ids": np.zeros((2, 7), np.int64)}, "segment_ids .batch, length"),
        (CACHED, {"num_cached_tokens": np.zeros(2, np.int32)}, "num_cached .batch."),
    ],
)
def test_an_index_outside_its_table_is_an_error(
    tmp_path: Path, form: Form, broken: dict[str, Array], message: str
) -> None:
    file = graph(tmp_path / "graph.onnx", form)
    bound = OrtBackend("cpu", 1).load(file, ()).bind({})
    given = {name: array[:1] for name, array in inputs(form).items()}
    with pytest.raises(Exception, match=message):
        bound.run(given | broken)
    bound.run(given)


@pytest.mark.parametrize(
    ("form", "num_lookups"),
    [
        (Form(positions="from 0", first=2), 1),  # of one row of positions
        (Form(positions="cached", first=2), 0),  # of one for each token, as of segments
        (Form(length=1, positions="cached", first=2), 0),
    ],
)
def test_positions_that_begin_elsewhere_keep_their_sums(
    tmp_path: Path, form: Form, num_lookups: int
) -> None:
    """As RoBERTa's, which begin after the padding token."""
    file = graph(tmp_path / "graph.onnx", form)
    found = operators(rewrite(file, Kernels.EMBEDDING))
    assert (found.count("Embedding"), found.count("Gather")) == (1, num_lookups)
    assert "Add" in found
    bound = OrtBackend("cpu", 1).load(file, ()).bind({})
    given = inputs(form)
    if "num_cached_tokens" in given:
        given["num_cached_tokens"] = np.maximum(given["num_cached_tokens"] - 2, 0)
    (reference,) = standard_session(file).run(None, given)
    np.testing.assert_array_equal(bound.run(given)["y"], reference)


@pytest.mark.parametrize("attributes", [{"bits": 4}, {"gather_axis": 1, "quantize_axis": 0}])
def test_other_lookups_stay(tmp_path: Path, attributes: dict[str, int]) -> None:
    file = graph(tmp_path / "graph.onnx", Form(), **attributes)
    assert rewrite(file, Kernels.EMBEDDING) is None
