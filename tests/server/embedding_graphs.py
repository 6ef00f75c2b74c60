"""Graphs that sum the embeddings of tokens, as the export writes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from onnx_ir.tape import Tape

from export.block_matmul import gather_rows, quantize_table
from export.blocks import BLOCK, Blocks
from export.quantized_matmul import constant, pack_bits
from server.runtime.kernels.rewrite import RewrittenGraph
from server.runtime.kernels.weights import WeightFormat
from server.runtime.memory import Array

NUM_TOKENS = 50  # not a multiple of the 16 outputs of a panel
NUM_POSITIONS, NUM_SEGMENTS = 40, 2
NUM_ROWS = 60  # more tokens than a task has
_ROUNDED = {  # bits
    WeightFormat.INT8_BLOCKS: 8,
    WeightFormat.INT6_BLOCKS: 6,
    WeightFormat.SMALL_INT4_BLOCKS: 4,
}


@dataclass(frozen=True)
class Table:
    """``weight_format``: that in which the server packs blocks; None for rows with one scale."""

    weight_format: WeightFormat | None
    size: int

    @property
    def operator(self) -> str:
        return "Embedding" if self.weight_format is None else "BlockEmbedding"

    def blocks(self) -> Blocks:
        """With one row of zeros, and with blocks of very different sizes."""
        rng = np.random.default_rng(2)
        rows = rng.standard_normal((NUM_TOKENS, self.size)).astype(np.float32)
        rows[1::3, :BLOCK] *= 0.05
        rows[2] = 0
        if self.weight_format in _ROUNDED:
            return quantize_table(rows, _ROUNDED[self.weight_format])
        numbers = rng.integers(0, 16, (NUM_TOKENS, self.size // BLOCK, BLOCK)).astype(np.uint8)
        scales = rng.uniform(0.01, 0.3, numbers.shape[:2]).astype(np.float16)
        zeros = rng.integers(0, 16, scales.shape)
        return Blocks(numbers, scales, (-zeros * scales.astype(np.float32)).astype(np.float32))

    def rounding(self) -> float:
        """By how much the server's embeddings may differ: it rounds scales to 15 bits of a row's
        largest, unless scales have 8 bits.
        """
        if self.weight_format in (None, WeightFormat.SMALL_INT4_BLOCKS):
            return 0.0
        blocks = self.blocks()
        largest = 15 if blocks.bits == 4 else 127  # of a number minus its zero point
        return float(blocks.scales.max()) * largest * (0.5 / 32767 + 2.0**-22)

    def lookup(self) -> tuple[Sequence[onnx.NodeProto], Sequence[onnx.TensorProto]]:
        """The nodes that look up ``token_ids`` as ``row [.., size]``, and their constants."""
        return self._rows() if self.weight_format is None else self._rows_in_blocks()

    def _rows(self) -> tuple[Sequence[onnx.NodeProto], Sequence[onnx.TensorProto]]:
        rng = np.random.default_rng(0)
        tables: dict[str, Array] = {
            "table": rng.integers(0, 256, (NUM_TOKENS, self.size)).astype(np.uint8),
            "scales": rng.uniform(0.001, 0.01, (NUM_TOKENS, 1)).astype(np.float32),
        }
        node = helper.make_node(
            "GatherBlockQuantized",
            ["table", "token_ids", "scales"],
            ["row"],
            domain="com.microsoft",
            bits=8,
            block_size=64,
            gather_axis=0,
            quantize_axis=1,
        )
        return [node], [numpy_helper.from_array(x, name) for name, x in tables.items()]

    def _rows_in_blocks(self) -> tuple[Sequence[onnx.NodeProto], Sequence[onnx.TensorProto]]:
        blocks, tape = self.blocks(), Tape()
        ids = ir.val("token_ids", ir.DataType.INT64, ["batch", "length"])
        stored = constant(tape, "table", pack_bits(blocks.numbers, blocks.bits))
        row = gather_rows(tape, ids, "table", stored, blocks)
        row.name = "row"
        opsets = {"": 21, "com.microsoft": 1}
        graph = ir.Graph(
            [ids],
            [row],
            nodes=tape.nodes,
            initializers=tape.initializers,
            opset_imports=opsets,
            name="lookup",
        )
        made = ir.serde.serialize_graph(graph)
        return made.node, made.initializer


ROWS = Table(None, 44)  # a size that is no multiple of any register
TABLES = {
    "rows": ROWS,
    "8 bits": Table(WeightFormat.INT8_BLOCKS, 64),
    "8 bits, odd": Table(WeightFormat.INT8_BLOCKS, 96),
    "6 bits": Table(WeightFormat.INT6_BLOCKS, 64),
    "6 bits, odd": Table(WeightFormat.INT6_BLOCKS, 96),
    "4 bits": Table(WeightFormat.SMALL_INT4_BLOCKS, 64),
    "4 bits, odd": Table(WeightFormat.SMALL_INT4_BLOCKS, 96),
    "4 bits, one block": Table(WeightFormat.SMALL_INT4_BLOCKS, 32),
    "4 bits, float16 scales": Table(WeightFormat.INT4_BLOCKS, 96),
}


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


def graph(path: Path, form: Form, table: Table = ROWS) -> Path:
    """Saves the sum as ``y``."""
    rng, size = np.random.default_rng(1), table.size
    tables: dict[str, Array] = {
        "positions": rng.standard_normal((NUM_POSITIONS, size)).astype(np.float32),
        "segments": rng.standard_normal((NUM_SEGMENTS, size)).astype(np.float32),
        "norm_scale": rng.standard_normal(size).astype(np.float32),
        "norm_bias": rng.standard_normal(size).astype(np.float32),
        "factor": np.array(form.factor or 0.0, np.float32),
        "first": np.array(form.first),
        "zero": np.array(0),
        "one": np.array(1),
        "axis": np.array([1]),
        "only": np.array([0]),
    }
    lookup, constants = table.lookup()
    nodes = list(lookup)

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
    y_info = helper.make_tensor_value_info("y", TensorProto.FLOAT, [*tokens, size])
    used = {name for node in nodes for name in node.input}
    made = helper.make_graph(
        nodes,
        "g",
        [value for value in (*inputs, cached_info) if value.name in used],
        [y_info],
        [*constants, *(numpy_helper.from_array(x, n) for n, x in tables.items() if n in used)],
        value_info=[value for value in known if value.name in used],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=10), path)
    return path


def inputs(form: Form, length: int = 7) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    shape = (NUM_ROWS, length if form.length != 1 else 1)
    given: dict[str, Array] = {
        "token_ids": rng.permutation(np.arange(shape[0] * shape[1]) % NUM_TOKENS).reshape(shape)
    }
    if form.segments:
        given["segment_ids"] = rng.integers(0, NUM_SEGMENTS, shape)
    if form.positions == "cached":
        given["num_cached_tokens"] = rng.integers(0, NUM_POSITIONS - shape[1], NUM_ROWS, np.int32)
        given["num_cached_tokens"][:2] = 0, NUM_POSITIONS - shape[1]
    return given


def operators(rewritten: RewrittenGraph | None) -> list[str]:
    assert rewritten is not None
    return [node.op_type for node in onnx.ModelProto.FromString(rewritten.model).graph.node]


def lookup_of(graph: onnx.GraphProto) -> onnx.NodeProto:
    (node,) = [node for node in graph.node if node.op_type == "GatherBlockQuantized"]
    return node
