"""Corrects attention over texts with padding, for :mod:`server.runtime.cuda.rewrite`.

On CUDA, ``GroupQueryAttention`` over whole texts uses the longest length for all of them (ONNX
Runtime 1.31, contrib_ops/cuda/bert/group_query_attention_impl.cu: ``padded_seq_lens``). Tokens
would attend to padding, unless a causal mask hides it. With a bias it uses each text's length, but
misplaces the causal mask of a shorter text (gqa_unfused_attention.cu: ``past``).
"""

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.graph_inputs import NUM_CACHED_TOKENS, TOKENS
from server.runtime.rewriting.nodes import attributes_of, constant_node, copy_of
from server.runtime.rewriting.rewrites import Rewrite

# Inputs of GroupQueryAttention.
_PAST_KEYS, _LAST_POSITIONS, _BIAS = 3, 5, 10


def hide_padding(graph: GraphIndex) -> Iterator[Rewrite]:
    """Corrects each attention that would be wrong: adds equal lengths if causal, else a zero bias.

    Equal lengths have no other effect: a causal mask hides padding, which comes last.
    """
    shared: set[str] = set()
    for node in graph.nodes:
        if node.op_type != "GroupQueryAttention":
            continue
        inputs = [*node.input, *[""] * (_BIAS + 1 - len(node.input))]
        is_causal = attributes_of(node).get("causal", 1) == 1
        is_cross = bool(inputs[_PAST_KEYS]) and not is_causal
        is_step = graph.shape(TOKENS)[1:] == (1,)
        if is_causal != bool(inputs[_BIAS]) or is_cross or is_step:
            continue
        type_ = graph.types[node.output[0]]
        name = "equal_lengths" if is_causal else f"no_bias.{type_}.{inputs[_LAST_POSITIONS]}"
        new = []
        if name not in shared:
            shared.add(name)
            new = _equal_lengths(name, graph) if is_causal else _zeros(name, node.input[0], type_)
        inputs[_LAST_POSITIONS if is_causal else _BIAS] = name
        changed = copy_of(node)
        changed.input[:] = inputs
        yield Rewrite(node, (*new, changed))


def _zeros(name: str, x: str, type_: int) -> list[onnx.NodeProto]:
    """Makes a bias ``[1, 1, length, length]`` of zeros for ``x [texts, length, size]``."""
    length, shape = f"{name}.length", f"{name}.shape"
    dtype = helper.tensor_dtype_to_np_dtype(type_)
    return [
        helper.make_node("Shape", [x], [length], name=length, start=1, end=2),
        constant_node(f"{name}.one", np.ones(1, np.int64)),
        helper.make_node("Concat", [f"{name}.one"] * 2 + [length] * 2, [shape], name=shape, axis=0),
        helper.make_node(
            "ConstantOfShape",
            [shape],
            [name],
            name=name,
            value=numpy_helper.from_array(np.zeros(1, dtype)),
        ),
    ]


def _equal_lengths(name: str, graph: GraphIndex) -> list[onnx.NodeProto]:
    """Computes, on the device, each row's last position if none had padding: int32 ``[texts]``."""
    places, counted, counts = (f"{name}.{part}" for part in ("places", "counted", "counts"))
    has_cache = graph.is_input(NUM_CACHED_TOKENS)
    new = f"{name}.new" if has_cache else name
    nodes = [
        helper.make_node("Equal", [TOKENS, TOKENS], [places], name=places),
        helper.make_node("Cast", [places], [counted], name=counted, to=TensorProto.INT32),
        constant_node(f"{name}.axis", np.ones(1, np.int64)),
        helper.make_node("ReduceSum", [counted, f"{name}.axis"], [counts], name=counts, keepdims=0),
        constant_node(f"{name}.one", np.array(1, np.int32)),
        helper.make_node("Sub", [counts, f"{name}.one"], [new], name=new),
    ]
    if has_cache:
        nodes.append(helper.make_node("Add", [new, NUM_CACHED_TOKENS], [name], name=name))
    return nodes
