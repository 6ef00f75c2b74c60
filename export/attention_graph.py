"""The ``attend`` graph: ``decode`` with attention weights as further outputs.

It is derived from the finished ``decode`` graph, in any precision, and shares its weights' file.
The operator of self-attention returns its softmax weights itself, and so does that of
cross-attention with a bias; those of other cross-attentions are computed beside the operator, from
its inputs. In plain operators (recurrent decoders), cross-attention has them as the output of a
``Softmax``.
"""

import math
from pathlib import Path

import msgspec
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.tape import Tape

from export.graph_files import load_graph
from export.quantized_matmul import constant
from model.bundle import ATTEND, AttentionKind, Dtype, GraphSpec, TensorSpec

OPERATOR = "GroupQueryAttention"
SOFTMAX = "Softmax"
BIAS = 10  # the index of the operator's input ``attention_bias``
PARTS = ("Cast", "Gather", "Slice")
FILE = "attend.onnx"


def add_attention_graph(graphs: dict[str, GraphSpec], directory: Path) -> dict[str, GraphSpec]:
    """Writes ``attend.onnx`` into ``directory`` and returns ``graphs`` with its signature.

    Returns ``graphs`` unchanged if there is no decoder, or if it has no attention.
    """
    decode = graphs.get("decode")
    if decode is None:
        return graphs
    model = load_graph(directory / decode.file)
    values = tuple(s.input for s in decode.states if s.name.startswith("cross_value."))
    plain = {node for node in model.graph if _weights_values(node, values)}
    nodes = [node for node in model.graph if node.op_type == OPERATOR or node in plain]
    tape = Tape()
    added: list[TensorSpec] = []
    for kind, matches, weights, source in (
        (AttentionKind.CROSS, _is_cross_attention, cross_weights, "source_length"),
        (AttentionKind.SELF, _is_self_attention, _self_weights, "total_length"),
    ):
        matching = [node for node in nodes if matches(node)]
        if not matching:
            continue
        stacked = tape.op(
            "Concat",
            [weights(tape, node) for node in matching],
            {"axis": 1},
            output=ir.Value(name=kind),
        )
        heads = num_heads_of(matching[0])
        spec = TensorSpec(
            name=kind,
            dtype=Dtype.FLOAT32,
            shape=("batch", len(matching), heads, "length", source),
        )
        stacked.dtype, stacked.shape = ir.DataType.FLOAT, ir.Shape(spec.shape)
        model.graph.outputs.insert(len(decode.outputs) + len(added), stacked)  # before the states
        added.append(spec)
    if not added:
        return graphs
    for value in tape.initializers:
        model.graph.register_initializer(value)
    model.graph.extend(tape.nodes)
    ir.save(model, directory / FILE)  # the model's weights stay where they are
    outputs = (*decode.outputs, *added)
    return graphs | {ATTEND: msgspec.structs.replace(decode, file=FILE, outputs=outputs)}


def _is_cross_attention(node: ir.Node) -> bool:
    """Whether ``node`` is not causal and has a past, so that all of its keys are cached."""
    if node.op_type == SOFTMAX:
        return True
    causal = node.attributes.get("causal")
    return (
        node.op_type == OPERATOR
        and causal is not None
        and causal.value == 0
        and len(node.inputs) > 3
        and node.inputs[3] is not None
    )


def _is_self_attention(node: ir.Node) -> bool:
    """Whether ``node`` appends keys to a cache."""
    return not _is_cross_attention(node) and len(node.outputs) > 1


def _weights_values(node: ir.Node, values: tuple[str, ...]) -> bool:
    """Whether ``node`` is a ``Softmax`` whose output weights one of the cached ``values``."""
    if node.op_type != SOFTMAX:
        return False
    products = [user.node for user in node.outputs[0].uses() if user.node.op_type == "MatMul"]
    return any(_origin(product.inputs[1]) in values for product in products)


def _origin(value: ir.Value | None) -> str | None:
    """The name of the value of which ``value`` is a part or a cast."""
    while value is not None:
        node = value.producer()
        if node is None or node.op_type not in PARTS:
            return value.name
        value = node.inputs[0]
    return None


def num_heads_of(node: ir.Node) -> int:
    """Number of query heads of an attention: the fused operator or a ``Softmax``."""
    attribute = node.attributes.get("num_heads")
    if attribute is not None:
        return int(attribute.value)
    shape = node.outputs[0].shape  # [batch, heads, length, source_length]
    if shape is None:
        raise ValueError(f"{node.name}: its shape is not known")
    return int(shape[1])  # type: ignore[arg-type]


def operator_weights(tape: Tape, node: ir.Node) -> ir.Value:
    """The weights that the operator returns: ``[batch, heads, length, total_length]``.

    With ``qk_output`` 2, its fourth output is the softmax weights, in the type of the query.
    """
    node.resize_outputs(4)
    weights = node.outputs[3]
    weights.name = weights.name or f"{node.name}.weights"
    node.attributes["qk_output"] = ir.AttrInt64("qk_output", 2)
    return tape.op("Cast", [weights], {"to": ir.DataType.FLOAT})


def _self_weights(tape: Tape, node: ir.Node) -> ir.Value:
    """The weights of one layer: ``[batch, 1, heads, length, total_length]``."""
    layer = constant(tape, f"{node.name}.layer", np.array([1]))
    return tape.op("Unsqueeze", [operator_weights(tape, node), layer])


def cross_weights(tape: Tape, node: ir.Node) -> ir.Value:
    """``softmax(Q K^T scale)`` over the valid keys: ``[batch, 1, heads, length, source_length]``.

    The operator's inputs are the query ``[batch, length, heads * size]``, two empty ones, keys
    ``[batch, kv_heads, source_length, size]``, values, and each row's last valid index.
    """
    if node.op_type == SOFTMAX:
        weights = tape.op("Cast", [node.outputs[0]], {"to": ir.DataType.FLOAT})
        return tape.op("Unsqueeze", [weights, constant(tape, f"{node.name}.layer", np.array([1]))])
    if len(node.inputs) > BIAS and node.inputs[BIAS] is not None:  # additive scores
        return _self_weights(tape, node)
    query, key, last = node.inputs[0], node.inputs[3], node.inputs[5]
    if query is None or key is None or last is None or key.shape is None:
        raise ValueError("a cross-attention lacks an input")
    num_heads = int(node.attributes["num_heads"].value)
    num_kv_heads = int(node.attributes["kv_num_heads"].value)
    size = int(key.shape[3])  # type: ignore[arg-type]
    given = node.attributes.get("scale")
    scale = float(given.value) if given is not None else 1 / math.sqrt(size)

    def number(label: str, value: NDArray[np.generic]) -> ir.Value:
        return constant(tape, f"{node.name}.{label}", value)

    def ints(label: str, *values: int) -> ir.Value:
        return number(label, np.array(values, np.int64))

    def floats(value: ir.Value) -> ir.Value:
        return tape.op("Cast", [value], {"to": ir.DataType.FLOAT})

    # Each key head serves consecutive query heads.
    group = num_heads // num_kv_heads
    heads = ints("heads", 0, 0, num_kv_heads, group, size)
    split = tape.op("Reshape", [floats(query), heads])  # [batch, length, kv_heads, group, size]
    queries = tape.op("Transpose", [split], {"perm": [0, 2, 3, 1, 4]})
    keys = tape.op("Transpose", [floats(key)], {"perm": [0, 1, 3, 2]})
    keys = tape.op("Unsqueeze", [keys, ints("group", 2)])  # [batch, kv_heads, 1, size, source]
    scores = tape.op("MatMul", [queries, keys])
    scores = tape.op("Mul", [scores, number("scale", np.array(scale, np.float32))])
    source = tape.op("Squeeze", [tape.op("Shape", [key], {"start": 2, "end": 3}), ints("first", 0)])
    zero, one = number("zero", np.array(0, np.int64)), number("one", np.array(1, np.int64))
    places = tape.op("Range", [zero, source, one])
    limits = tape.op("Cast", [last], {"to": ir.DataType.INT64})
    limits = tape.op("Unsqueeze", [limits, ints("axes", 1, 2, 3, 4)])
    valid = tape.op("LessOrEqual", [places, limits])
    lowest = number("lowest", np.array(np.finfo(np.float32).min, np.float32))
    masked = tape.op("Where", [valid, scores, lowest])
    weights = tape.op("Softmax", [masked], {"axis": -1})
    # [batch, kv_heads, group, length, source] to [batch, 1, heads, length, source]
    by_token = tape.op("Transpose", [weights], {"perm": [0, 3, 1, 2, 4]})
    merged = tape.op("Reshape", [by_token, ints("merged", 0, 0, num_heads, -1)])
    by_head = tape.op("Transpose", [merged], {"perm": [0, 2, 1, 3]})
    return tape.op("Unsqueeze", [by_head, ints("layer", 1)])
