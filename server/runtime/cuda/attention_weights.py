"""Computes attention weights in graphs that return them (:mod:`server.runtime.cuda.rewrite`).

``GroupQueryAttention`` has no output for them on CUDA (ONNX Runtime 1.31,
contrib_ops/cuda/bert/group_query_attention.cc). Standard operators compute them separately, in
fp32, from its query and the keys that it returns. These graphs run one text at a time.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from server.runtime.memory import Array
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.nodes import MICROSOFT, attributes_of, constant_node, copy_of
from server.runtime.rewriting.rewrites import Rewrite

_NEW_KEYS, _PAST_KEYS, _LAST_POSITIONS, _NUM_KEYS = 1, 3, 5, 6  # inputs
_COSINES, _BIAS, _SINKS, _KEY_SCALE, _NUM_INPUTS = 7, 10, 11, 12, 14
_KEYS, _WEIGHTS = 1, 3  # outputs
_KNOWN = {"num_heads", "kv_num_heads", "scale", "softcap", "causal", "local_window_size"}
_KNOWN |= {"do_rotary", "rotary_interleaved", "qk_output"}
_KNOWN |= {"k_quant_type", "v_quant_type", "kv_cache_bit_width"}
_SOFTMAX_WEIGHTS = 2


def compute_attention_weights(graph: GraphIndex) -> Iterator[Rewrite]:
    """Computes the fourth output of attention nodes with other nodes.

    Raises:
        ValueError: an attention has an attribute that the other nodes do not support.
    """
    for node in graph.nodes:
        if node.op_type != "GroupQueryAttention" or not any(node.output[_WEIGHTS:]):
            continue
        attributes = attributes_of(node)
        if attributes.keys() - _KNOWN or attributes.pop("qk_output") != _SOFTMAX_WEIGHTS:
            raise ValueError(f"{node.name}: its attention weights are not known")
        kept = copy_of(node)
        kept.output[:] = [*node.output[:_KEYS], node.output[_KEYS] or f"{node.output[0]}.keys"]
        kept.output.append(node.output[_KEYS + 1])
        del kept.attribute[:]
        kept.attribute.extend(helper.make_attribute(*pair) for pair in attributes.items())
        yield Rewrite(node, (kept, *_Weights(graph, kept, node.output[_WEIGHTS]).nodes))


class _Weights:
    """The nodes that compute ``softmax(Q K^T)``: ``[texts, heads, length, keys]``.

    Args:
        graph: looks up shapes and types.
        node: the attention node, which returns its keys.
        y: the name of the output with the weights.
    """

    def __init__(self, graph: GraphIndex, node: onnx.NodeProto, y: str) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._node, self._y = node, y
        self._inputs = [*node.input, *[""] * (_NUM_INPUTS - len(node.input))]
        self._attributes = attributes_of(node)
        self._heads, self._kv_heads = (
            self._attributes["num_heads"],
            self._attributes["kv_num_heads"],
        )
        shape, type_ = graph.shape(node.output[0]), graph.types[node.output[0]]
        self._size = int(shape[-1]) // self._heads
        one = self._ints(1)
        self._num_keys = self._reshape(self._cast(self._inputs[_NUM_KEYS], TensorProto.INT64), 1)
        length = self._add("Shape", node.input[0], start=1, end=2)
        steps = self._add("Range", *map(self._scalar, (self._ints(0), length, one)))
        last = self._reshape(self._cast(self._inputs[_LAST_POSITIONS], TensorProto.INT64), 0, 1)
        first = self._add("Sub", self._add("Add", last, one), length)
        has_cache = bool(self._inputs[_PAST_KEYS])
        steps = self._add("Unsqueeze", steps, self._ints(0))
        self._positions = self._add("Add", first, steps) if has_cache else steps  # [.., length]
        scores = self._add("Mul", self._products(graph), self._floats(self._scale()))
        if softcap := self._attributes.get("softcap", 0.0):
            bound = self._floats(softcap)
            scores = self._add("Mul", self._add("Tanh", self._add("Div", scores, bound)), bound)
        if self._inputs[_BIAS]:
            bias = self._cast(self._inputs[_BIAS], TensorProto.FLOAT)
            scores = self._add("Add", scores, bias)
        is_seen = self._is_seen(last)
        masked = self._add("Where", is_seen, scores, self._floats(float(np.finfo(np.float32).min)))
        weights = self._softmax(masked)
        self.nodes.append(helper.make_node("Cast", [weights], [y], name=y, to=type_))

    def _scale(self) -> float:
        return float(self._attributes.get("scale", 0.0)) or 1 / math.sqrt(self._size)

    def _products(self, graph: GraphIndex) -> str:
        """Computes the products of queries and keys: ``[texts, heads, length, keys]``."""
        query = self._inputs[0]
        if not self._inputs[_NEW_KEYS]:  # queries, keys and values together
            query = self._slice(query, self._ints(self._heads * self._size), 2)
        heads = self._reshape(query, 0, 0, self._heads, self._size)
        queries = self._add("Transpose", heads, perm=[0, 2, 1, 3])
        if self._attributes.get("do_rotary", 0):
            positions = self._add(
                "Expand", self._positions, self._add("Shape", query, start=0, end=2)
            )
            angles = self._inputs[_COSINES : _COSINES + 2]
            half = graph.shape(angles[0])[-1:] or graph.initializers[angles[0]].dims[1:]
            queries = self._add(
                *("RotaryEmbedding", queries, positions, *angles),
                domain=MICROSOFT,
                interleaved=self._attributes.get("rotary_interleaved", 0),
                num_heads=self._heads,
                rotary_embedding_dim=2 * int(half[0]),
            )
        cached = self._slice(self._node.output[_KEYS], self._num_keys, 2)
        keys = self._cast(cached, TensorProto.FLOAT)
        if self._inputs[_KEY_SCALE]:  # [1], or [1, key heads, 1, size]
            keys = self._add("Mul", keys, self._inputs[_KEY_SCALE])
        turned = self._add("Transpose", keys, perm=[0, 1, 3, 2])
        # The heads of a group are rows of one product.
        wide = self._cast(queries, TensorProto.FLOAT)
        grouped = self._reshape(wide, 0, self._kv_heads, -1, self._size)
        shape = self._add("Concat", self._ints(0, self._heads, -1), self._num_keys, axis=0)
        return self._add("Reshape", self._add("MatMul", grouped, turned), shape)

    def _is_seen(self, last: str) -> str:
        """Computes which keys a token attends to: ``[texts or 1, 1, length or 1, keys]``."""
        count = self._scalar(self._num_keys)
        zero, one = self._scalar(self._ints(0)), self._scalar(self._ints(1))
        keys = self._add("Range", zero, count, one)
        is_seen = self._add("LessOrEqual", keys, self._reshape(last, 0, 1, 1, 1))
        queries = self._add("Unsqueeze", self._positions, self._ints(1, 3))
        if self._attributes.get("causal", 1):
            is_seen = self._add("And", is_seen, self._add("LessOrEqual", keys, queries))
        if (window := self._attributes.get("local_window_size", -1)) > 0:
            first = self._add("Sub", queries, self._ints(window))
            is_seen = self._add("And", is_seen, self._add("Greater", keys, first))
        return is_seen

    def _softmax(self, scores: str) -> str:
        """Computes weights of ``scores [texts, heads, length, keys]``, beside the heads' sinks."""
        if not self._inputs[_SINKS]:
            return self._add("Softmax", scores, axis=-1)
        sinks = self._cast(self._reshape(self._inputs[_SINKS], 1, -1, 1, 1), TensorProto.FLOAT)
        rows = self._add("Shape", scores, start=0, end=3)
        shape = self._add("Concat", rows, self._ints(1), axis=0)
        all_scores = self._add("Concat", scores, self._add("Expand", sinks, shape), axis=-1)
        return self._slice(self._add("Softmax", all_scores, axis=-1), self._num_keys, 3)

    def _add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{self._y}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def _constant(self, array: Array) -> str:
        name = f"{self._y}.{len(self.nodes)}"
        self.nodes.append(constant_node(name, array))
        return name

    def _ints(self, *numbers: int) -> str:
        return self._constant(np.array(numbers, np.int64))

    def _floats(self, number: float) -> str:
        return self._constant(np.array(number, np.float32))

    def _cast(self, value: str, type_: int) -> str:
        return self._add("Cast", value, to=type_)

    def _reshape(self, value: str, *sizes: int) -> str:
        return self._add("Reshape", value, self._ints(*sizes))

    def _scalar(self, value: str) -> str:
        return self._add("Squeeze", value)

    def _slice(self, value: str, stop: str, axis: int) -> str:
        return self._add("Slice", value, self._ints(0), stop, self._ints(axis))
