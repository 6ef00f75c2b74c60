"""The weights of an encoder's sliding-window attention, which runs in blocks.

See :mod:`model.windows` for the blocks and :mod:`model.global_tokens` for global tokens.
"""

import math

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.tape import Tape

from export.attention_graph import OPERATOR, cross_weights, num_heads_of
from export.quantized_matmul import constant

WINDOWED = "MultiHeadAttention"
# Replaces the windows' context with its second input, that of global tokens.
_MERGE = "Where"
_MOVES = ("Cast", "Pad", "Reshape", "Slice", "Transpose")


def weights_values(node: ir.Node) -> bool:
    """Whether the output of ``node`` is the left operand of a matrix product."""
    users = [user.node for user in node.outputs[0].uses()]
    return any(user.op_type == "MatMul" and user.inputs[0] is node.outputs[0] for user in users)


def _window_before(value: ir.Value | None) -> ir.Node | None:
    node = _source(value)
    return node if node is not None and node.op_type == WINDOWED else None


def _source(value: ir.Value | None) -> ir.Node | None:
    """The node that computes ``value``, apart from reshapes and casts."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type not in _MOVES:
            return node
        value = node.inputs[0]
    return None


def _merge_after(window: ir.Node) -> ir.Node | None:
    """The node that merges the context of global tokens into that of ``window``."""
    reached = [window]
    while reached:
        for user in [user.node for user in reached.pop().outputs[0].uses()]:
            if user.op_type == _MERGE and _window_before(user.inputs[-1]) is window:
                return user
            if user.op_type in _MOVES:
                reached.append(user)
    return None


class WindowWeights:
    """The weights of an attention in blocks, moved to their positions: see :mod:`model.windows`.

    The operator's inputs are ``queries [batch * blocks, size, heads * d]``, keys and values
    ``[batch * blocks, 3 * size + globals, heads * d]``, and a bias. With sinks, queries and keys
    have further dimensions, which values lack, and a last key.
    """

    def __init__(self, tape: Tape, graph: ir.Graph, node: ir.Node) -> None:
        self.tape, self.node = tape, node
        shapes = [value.shape for value in node.inputs[:3] if value is not None]
        query, key, value = (ir.Shape(()) if shape is None else shape for shape in shapes)
        if not all(shapes):
            raise ValueError(f"{node.name}: its shapes are not known")
        has_sinks = query[2] != value[2]
        self.size, width = int(query[1]), int(query[2])  # type: ignore[arg-type]
        self.num_global = int(key[1]) - 3 * self.size - has_sinks  # type: ignore[arg-type]
        self.num_heads = num_heads_of(node)
        self.head_size = width // self.num_heads
        token_ids = next(value for value in graph.inputs if value.name == "token_ids")
        self.batch = tape.op("Shape", [token_ids], {"end": 1})
        self.length = tape.op("Shape", [token_ids], {"start": 1})
        blocks = tape.op("Div", [self.length, self.ints(self.size)])
        self.num_blocks = tape.op("Add", [blocks, self.ints(1)])

    def weights(self) -> ir.Value:
        """The weights, ``[batch, heads, length, length]``, without the blocks' padding."""
        tape, local, more = self.tape, 3 * self.size, self.num_global
        blocks = self._block_weights()  # [batch * blocks, heads, size, 3 * size + globals]
        placed = self._placed(self._slice(blocks, 3, self.ints(0), self.ints(local)))
        if not more:
            return placed
        end = self.ints(local + more)
        seen = self._slice(blocks, 3, self.ints(local), end)
        placed = tape.op("Add", [placed, self._padded(self._rows(seen, self.ints(more)))])
        return self._with_global_rows(placed)

    def _block_weights(self) -> ir.Value:
        """``softmax(Q K^T scale + bias)`` for each block."""
        tape, bias = self.tape, self.node.inputs[5]
        heads = self.ints(0, 0, self.num_heads, self.head_size)
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
        """Moves each block's ``[size, 3 * size]`` to the rows and columns of its queries and keys.

        Rows of blocks are one block longer than the matrix. Read as rows of the matrix's width,
        each block is one block farther to the right than the one before.
        """
        tape = self.tape
        by_block = self._reshape(local, self.batch, self.num_blocks, self._shape_of_block())
        by_row = tape.op("Transpose", [by_block], {"perm": [0, 2, 3, 1, 4]})
        none = self.ints(*[0] * 9)
        width = tape.op("Mul", [self.num_blocks, self.ints(self.size)])
        by_row = tape.op("Pad", [by_row, tape.op("Concat", [none, width], {"axis": 0})])
        size = self.ints(self.num_heads, self.size)
        flat = self._reshape(by_row, self.batch, size, self.ints(-1))
        columns = tape.op("Add", [width, self.ints(2 * self.size)])
        end = tape.op("Mul", [self.num_blocks, columns])
        flat = self._slice(flat, 3, self.ints(0), end)
        square = self._reshape(flat, self.batch, size, self.num_blocks, columns)
        square = tape.op("Transpose", [square], {"perm": [0, 1, 3, 2, 4]})
        heads = self.ints(self.num_heads)
        whole = self._reshape(square, self.batch, heads, self.ints(-1), columns)
        whole = self._slice(whole, 2, self.ints(0), self.length)
        start = self.ints(self.size)
        return self._slice(whole, 3, start, tape.op("Add", [self.length, start]))

    def _rows(self, blocks: ir.Value, width: ir.Value) -> ir.Value:
        """``[batch * blocks, heads, size, width]`` to ``[batch, heads, length, width]``."""
        shape = self.ints(self.num_heads, self.size)
        by_block = self._reshape(blocks, self.batch, self.num_blocks, shape, width)
        by_head = self.tape.op("Transpose", [by_block], {"perm": [0, 2, 1, 3, 4]})
        heads = self.ints(self.num_heads)
        rows = self._reshape(by_head, self.batch, heads, self.ints(-1), width)
        return self._slice(rows, 2, self.ints(0), self.length)

    def _padded(self, rows: ir.Value) -> ir.Value:
        """``[..., width]`` to ``[..., length]``, cut or padded with zeros."""
        after = self.tape.op("Concat", [self.ints(*[0] * 7), self.length], {"axis": 0})
        padded = self.tape.op("Pad", [rows, after])
        return self._slice(padded, 3, self.ints(0), self.length)

    def _with_global_rows(self, placed: ir.Value) -> ir.Value:
        """``placed`` with the rows of the global tokens, which have their own attention."""
        tape, merge = self.tape, _merge_after(self.node)
        if merge is None:
            return placed
        source = _source(merge.inputs[1])
        if source is None or source.op_type != OPERATOR:
            raise ValueError(f"{self.node.name}: the attention of its global tokens is not known")
        # [batch, 1, heads * globals, 1, length]: each head's global tokens are heads of their own
        weights = cross_weights(tape, source)
        shape = self.ints(self.num_heads, self.num_global)
        rows = self._reshape(weights, self.batch, shape, self.length)
        after = [self.ints(*[0] * 6), self.length, self.ints(0)]
        rows = tape.op("Pad", [rows, tape.op("Concat", after, {"axis": 0})])
        rows = self._slice(rows, 2, self.ints(0), self.length)
        is_global = tape.op("Unsqueeze", [merge.inputs[0], self.ints(1)])
        return tape.op("Where", [is_global, rows, placed])

    def _shape_of_block(self) -> ir.Value:
        return self.ints(self.num_heads, self.size, 3 * self.size)

    def _reshape(self, value: ir.Value, *parts: ir.Value) -> ir.Value:
        return self.tape.op("Reshape", [value, self.tape.op("Concat", parts, {"axis": 0})])

    def _slice(self, value: ir.Value, axis: int, start: ir.Value, end: ir.Value) -> ir.Value:
        return self.tape.op("Slice", [value, start, end, self.ints(axis)])

    def _float(self, value: ir.Value | None) -> ir.Value:
        if value is None:
            raise ValueError(f"{self.node.name} lacks an input")
        return self.tape.op("Cast", [value], {"to": ir.DataType.FLOAT})

    def ints(self, *values: int) -> ir.Value:
        """A constant ``[n]``."""
        return self._constant("_".join(map(str, values)), np.array(values, np.int64))

    def _constant(self, label: str, array: NDArray[np.generic]) -> ir.Value:
        """A constant of this attention; equal labels always have equal values."""
        name = f"{self.node.name}.weights.{label}"
        known = {value.name: value for value in self.tape.initializers}
        return known.get(name) or constant(self.tape, name, array)
