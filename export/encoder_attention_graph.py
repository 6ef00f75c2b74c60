"""The ``attend_encode`` graph: ``encode`` with the weights of the encoder's self-attention.

It is made from the finished ``encode`` graph, in any precision, and shares its weights' file. Each
layer's weights are an output of their own: only chosen layers are copied to the host, and
``head_weights`` combines a layer's heads inside the graph.
"""

import math
from pathlib import Path

import msgspec
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.tape import Tape

from export.attention_graph import OPERATOR, SOFTMAX, num_heads_of, self_weights
from export.graph_files import load_graph
from export.quantized_matmul import constant
from model.bundle import ATTEND_ENCODE, AttentionKind, Dtype, GraphSpec, TensorSpec

WINDOWED = "MultiHeadAttention"
"""Of blocks: see :mod:`model.windows`."""
FILE = "attend_encode.onnx"
HEAD_WEIGHTS = "head_weights"


def add_encoder_attention_graph(
    graphs: dict[str, GraphSpec], directory: Path
) -> dict[str, GraphSpec]:
    """Writes ``attend_encode.onnx`` into ``directory`` and returns ``graphs`` with its signature.

    Returns ``graphs`` unchanged if there is no encoder, or if it has no attention.
    """
    encode = graphs.get("encode")
    if encode is None:
        return graphs
    model = load_graph(directory / encode.file)
    nodes = list(model.graph)
    tape = Tape()
    by_layer = [weights for node in nodes if (weights := _weights_of(tape, model.graph, node))]
    if not by_layer:
        return graphs
    num_heads = num_heads_of(next(node for node in nodes if _is_attention(node)))
    rows = ir.Value(
        name=HEAD_WEIGHTS,
        type=ir.TensorType(ir.DataType.FLOAT),
        shape=ir.Shape(("chosen", num_heads)),
    )
    model.graph.inputs.append(rows)
    specs = []
    for layer, weights in enumerate(by_layer):
        spec = TensorSpec(
            name=f"{AttentionKind.ENCODER}.{layer}",
            dtype=Dtype.FLOAT32,
            shape=("batch", "chosen", "length", "length"),
        )
        combined = _combined(tape, rows, weights, spec.name)
        combined.dtype, combined.shape = ir.DataType.FLOAT, ir.Shape(spec.shape)
        model.graph.outputs.append(combined)
        specs.append(spec)
    for value in tape.initializers:
        model.graph.register_initializer(value)
    model.graph.extend(tape.nodes)
    ir.save(model, directory / FILE)  # the model's weights stay where they are
    head_weights = TensorSpec(name=HEAD_WEIGHTS, dtype=Dtype.FLOAT32, shape=("chosen", num_heads))
    attend = msgspec.structs.replace(
        encode,
        file=FILE,
        inputs=(*encode.inputs, head_weights),
        outputs=(*encode.outputs, *specs),
    )
    return graphs | {ATTEND_ENCODE: attend}


def _combined(tape: Tape, rows: ir.Value, weights: ir.Value, name: str) -> ir.Value:
    """``rows [chosen, heads]`` times ``weights [batch, heads, n, n]``: of each row and text."""
    shape = constant(tape, f"{name}.flat", np.array([0, 0, -1], np.int64))
    flat = tape.op("Reshape", [weights, shape])
    product = tape.op("MatMul", [rows, flat])
    batch = tape.op("Shape", [weights], {"end": 1})
    length = tape.op("Shape", [weights], {"start": 2})
    chosen = tape.op("Shape", [rows], {"end": 1})
    whole = tape.op("Concat", [batch, chosen, length], {"axis": 0})
    return tape.op("Reshape", [product, whole], output=ir.Value(name=name))


def _is_attention(node: ir.Node) -> bool:
    """Whether ``node`` is an attention, fused or in plain operators, other than global tokens'."""
    if node.op_type in (OPERATOR, WINDOWED):
        return True
    return node.op_type == SOFTMAX and _weights_values(node) and _window_of(node) is None


def _weights_of(tape: Tape, graph: ir.Graph, node: ir.Node) -> ir.Value | None:
    """The weights ``[batch, heads, length, length]`` of an attention; else None."""
    if not _is_attention(node):
        return None
    if node.op_type == OPERATOR:
        return self_weights(tape, node)
    if node.op_type == SOFTMAX:
        return tape.op("Cast", [node.outputs[0]], {"to": ir.DataType.FLOAT})
    return _Windows(tape, graph, node).weights()


def _weights_values(node: ir.Node) -> bool:
    """Whether the output of ``node`` is the left side of a matrix product."""
    users = [user.node for user in node.outputs[0].uses()]
    return any(user.op_type == "MatMul" and user.inputs[0] is node.outputs[0] for user in users)


def _window_of(softmax: ir.Node) -> ir.Node | None:
    """The windowed attention whose first rows the global tokens of ``softmax`` replace."""
    return next(
        (window for concat in _concats_after(softmax) if (window := _window_before(concat))), None
    )


def _concats_after(node: ir.Node) -> list[ir.Node]:
    """Concatenations of the context that ``node`` weights: product, transposition, reshaping."""
    found, reached = [], [node]
    for _ in range(4):
        reached = [user.node for each in reached for user in each.outputs[0].uses()]
        found += [each for each in reached if each.op_type == "Concat"]
    return found


def _window_before(concat: ir.Node) -> ir.Node | None:
    """The windowed attention whose context ``concat`` has, sliced; None if there is none."""
    value = concat.inputs[-1]
    while value is not None and (node := value.producer()) is not None:
        if node.op_type == WINDOWED:
            return node
        if node.op_type not in ("Slice", "Reshape", "Transpose", "Cast"):
            return None
        value = node.inputs[0]
    return None


class _Windows:
    """The weights of an attention in blocks, put at their places: see :mod:`model.windows`.

    The operator's inputs are ``queries [batch * blocks, size, heads * d]``, keys and values
    ``[batch * blocks, 3 * size + globals, heads * d]``, and a bias.
    """

    def __init__(self, tape: Tape, graph: ir.Graph, node: ir.Node) -> None:
        self.tape, self.node = tape, node
        query, key = node.inputs[0], node.inputs[1]
        if query is None or key is None or query.shape is None or key.shape is None:
            raise ValueError(f"{node.name}: its shapes are not known")
        self.size, width = int(query.shape[1]), int(query.shape[2])  # type: ignore[arg-type]
        self.num_global = int(key.shape[1]) - 3 * self.size  # type: ignore[arg-type]
        self.num_heads = num_heads_of(node)
        self.head_size = width // self.num_heads
        token_ids = next(value for value in graph.inputs if value.name == "token_ids")
        self.batch = tape.op("Shape", [token_ids], {"end": 1})
        self.length = tape.op("Shape", [token_ids], {"start": 1})
        blocks = tape.op("Div", [self.length, self.ints("size", self.size)])
        self.num_blocks = tape.op("Add", [blocks, self.ints("one", 1)])
        self.graph = graph

    def weights(self) -> ir.Value:
        """``[batch, heads, length, length]``, without the blocks' padding."""
        tape, local, more = self.tape, 3 * self.size, self.num_global
        blocks = self._block_weights()  # [batch * blocks, heads, size, 3 * size + globals]
        placed = self._placed(self._slice(blocks, 3, self.ints("0", 0), self.ints("local", local)))
        if not more:
            return placed
        end = self.ints("all", local + more)
        seen = self._slice(blocks, 3, self.ints("local", local), end)
        placed = tape.op("Add", [placed, self._padded(self._rows(seen, self.ints("more", more)))])
        rows = self._global_rows()
        if rows is None:
            return placed
        rest = self._slice(placed, 2, self.ints("more", more), self.length)
        return tape.op("Concat", [rows, rest], {"axis": 2})

    def _block_weights(self) -> ir.Value:
        """``softmax(Q K^T scale + bias)`` of each block."""
        tape, bias = self.tape, self.node.inputs[5]
        heads = self.ints("heads", 0, 0, self.num_heads, self.head_size)
        query, key = (
            tape.op("Transpose", [tape.op("Reshape", [self._float(value), heads])], {"perm": perm})
            for value, perm in (
                (self.node.inputs[0], [0, 2, 1, 3]),
                (self.node.inputs[1], [0, 2, 3, 1]),
            )
        )
        given = self.node.attributes.get("scale")
        scale = float(given.value) if given is not None else 1 / math.sqrt(self.head_size)
        scores = tape.op("MatMul", [query, key])
        scores = tape.op("Mul", [scores, self._constant("scale", np.array(scale, np.float32))])
        scores = tape.op("Add", [scores, self._float(bias)])
        return tape.op("Softmax", [scores], {"axis": -1})

    def _placed(self, local: ir.Value) -> ir.Value:
        """Each block's ``[size, 3 * size]`` in the rows and columns of its queries and keys.

        Rows of blocks that are one block longer than the matrix shift each block by a block to
        the right of the one before it when they are read in rows of the matrix's width.
        """
        tape = self.tape
        by_block = self._reshape(local, self.batch, self.num_blocks, self._shape_of_block())
        by_row = tape.op("Transpose", [by_block], {"perm": [0, 2, 3, 1, 4]})
        none = self.ints("none", *[0] * 9)
        width = tape.op("Mul", [self.num_blocks, self.ints("size", self.size)])
        by_row = tape.op("Pad", [by_row, tape.op("Concat", [none, width], {"axis": 0})])
        size = self.ints("heads.size", self.num_heads, self.size)
        flat = self._reshape(by_row, self.batch, size, self.ints("rest", -1))
        columns = tape.op("Add", [width, self.ints("two", 2 * self.size)])
        end = tape.op("Mul", [self.num_blocks, columns])
        flat = self._slice(flat, 3, self.ints("0", 0), end)
        square = self._reshape(flat, self.batch, size, self.num_blocks, columns)
        square = tape.op("Transpose", [square], {"perm": [0, 1, 3, 2, 4]})
        heads = self.ints("num_heads", self.num_heads)
        whole = self._reshape(square, self.batch, heads, self.ints("rest", -1), columns)
        whole = self._slice(whole, 2, self.ints("0", 0), self.length)
        start = self.ints("size", self.size)
        return self._slice(whole, 3, start, tape.op("Add", [self.length, start]))

    def _rows(self, blocks: ir.Value, width: ir.Value) -> ir.Value:
        """``[batch * blocks, heads, size, width]`` to ``[batch, heads, length, width]``."""
        shape = self.ints("heads.size", self.num_heads, self.size)
        by_block = self._reshape(blocks, self.batch, self.num_blocks, shape, width)
        by_head = self.tape.op("Transpose", [by_block], {"perm": [0, 2, 1, 3, 4]})
        heads = self.ints("num_heads", self.num_heads)
        rows = self._reshape(by_head, self.batch, heads, self.ints("rest", -1), width)
        return self._slice(rows, 2, self.ints("0", 0), self.length)

    def _padded(self, rows: ir.Value) -> ir.Value:
        """``[..., width]`` to ``[..., length]``, cut or filled with zeros."""
        after = self.tape.op("Concat", [self.ints("before", *[0] * 7), self.length], {"axis": 0})
        padded = self.tape.op("Pad", [rows, after])
        return self._slice(padded, 3, self.ints("0", 0), self.length)

    def _global_rows(self) -> ir.Value | None:
        """The weights of the global tokens, which have a softmax of their own."""
        for node in self.graph:
            if node.op_type == SOFTMAX and _weights_values(node) and _window_of(node) is self.node:
                return self._float(node.outputs[0])
        return None

    def _shape_of_block(self) -> ir.Value:
        return self.ints("block", self.num_heads, self.size, 3 * self.size)

    def _reshape(self, value: ir.Value, *parts: ir.Value) -> ir.Value:
        return self.tape.op("Reshape", [value, self.tape.op("Concat", parts, {"axis": 0})])

    def _slice(self, value: ir.Value, axis: int, start: ir.Value, end: ir.Value) -> ir.Value:
        return self.tape.op("Slice", [value, start, end, self.ints(f"axis{axis}", axis)])

    def _float(self, value: ir.Value | None) -> ir.Value:
        if value is None:
            raise ValueError(f"{self.node.name} lacks an input")
        return self.tape.op("Cast", [value], {"to": ir.DataType.FLOAT})

    def ints(self, label: str, *values: int) -> ir.Value:
        """A constant ``[n]`` of this attention."""
        return self._constant(label, np.array(values, np.int64))

    def _constant(self, label: str, array: NDArray[np.generic]) -> ir.Value:
        name = f"{self.node.name}.weights.{label}"
        known = {value.name: value for value in self.tape.initializers}
        return known.get(name) or constant(self.tape, name, array)
