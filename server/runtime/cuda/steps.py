"""Rewrites a decode graph for steps on CUDA: runs over exactly one token of each row.

The operators are those of native/cuda/linear.cc, decode_attention.cc and operators.cc. Reading the
weights bounds the time of products with few rows, so these have a separate operator.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from server.runtime.contract import (
    BEST_TOKENS,
    FEW_ROWS,
    IS_LIVE,
    NEXT_NUM_CACHED_TOKENS,
    NEXT_TOKEN_IDS,
)
from server.runtime.cuda import decode_attention
from server.runtime.cuda.changes import (
    MICROSOFT,
    SUFFIXES,
    Change,
    apply_changes,
    attributes_of,
    drop_unread,
    suffix_of_row,
)
from server.runtime.cuda.one_token import NUM_CACHED_TOKENS, ROWS, take_one_token
from server.runtime.cuda.rewrite import declare_domains, rewrite_model
from server.runtime.kernels.graph import LOGIT_POSITIONS, TOKENS, GraphIndex, other_operand
from server.runtime.kernels.library import DOMAIN

# Sizes that native/cuda/linear.cc takes are multiples of these.
_IN, _OUT = 32, 16
_NO_ACTIVATION = -1


def rewrite_steps(
    model: onnx.ModelProto, folder: Path, suppressed: tuple[int, ...] = (), *, max_rows: int
) -> bool:
    """Rewrites a decode graph for steps of at most ``max_rows`` rows.

    The rewritten graph has logits for every row, in order, and ignores ``logit_positions``. If it
    finds the best tokens, it also makes the inputs of the next step
    (:data:`~server.runtime.contract.NEXT_TOKEN_IDS`).

    Args:
        model: a decode graph without its external weights; those of products are ``[out, in]``
            (:func:`server.runtime.cuda.shared_weights.share_weights`).
        folder: the bundle's folder, which has the other weights.
        suppressed: tokens that are never the best tokens.
        max_rows: the most rows of a step. Up to :data:`~server.runtime.contract.FEW_ROWS`, our
            operator computes products.

    Returns:
        Whether the model changed.
    """
    graph = model.graph
    changed = take_one_token(graph)
    changed |= rewrite_model(model, folder, suppressed)
    changed |= apply_changes(graph, list(_attentions(GraphIndex(graph, folder))))
    if max_rows <= FEW_ROWS:
        changed |= apply_changes(graph, list(_products(GraphIndex(graph, folder))))
    changed |= drop_unread(graph)
    changed |= _add_next_inputs(graph)
    if changed:
        declare_domains(model)
    return changed


def is_decoder(model: onnx.ModelProto) -> bool:
    """Whether a graph has the input ``logit_positions``."""
    return any(value.name == LOGIT_POSITIONS for value in model.graph.input)


def _attentions(graph: GraphIndex) -> Iterator[Change]:
    for node in graph.nodes:
        if decode_attention.replaceable(node, graph):
            yield Change(node, (decode_attention.replaced(node, graph),))


def _products(graph: GraphIndex) -> Iterator[Change]:
    """Replaces products with weights ``[out, in]``, the norm before and the activation after."""
    for node in graph.nodes:
        weight = _weight(graph, node)
        suffix = "" if weight is None else SUFFIXES.get(weight.data_type, "")
        if weight is None or not suffix or weight.dims[1] % _IN or weight.dims[0] % _OUT:
            continue
        norm, (after, bias, attributes) = _norm_before(graph, node, suffix), _after(graph, node)
        x, residual, scale = node.input[0], "", ""
        nodes = (node, *after)
        outputs = [nodes[-1].output[0]]
        epsilon = 0.0
        if norm is not None:
            x, residual, scale = norm.input[0], norm.input[2], norm.input[3]
            outputs += [name for name in norm.output[1:] if name]  # the sum
            epsilon = next(a.f for a in norm.attribute if a.name == "epsilon")
            nodes = (norm, *nodes)
        made = helper.make_node(
            f"Linear{suffix}",
            _trimmed((x, weight.name, bias, residual, scale)),
            outputs,
            name=outputs[0],
            domain=DOMAIN,
            epsilon=epsilon,
            activation=attributes.get("activation", _NO_ACTIVATION),
            is_gated=attributes.get("is_gated", 0),
        )
        yield Change(nodes[0], (made,), nodes[1:])


def _weight(graph: GraphIndex, node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Returns the constant ``W [out, in]`` of a product ``x W^T``; None if the node is none."""
    attributes = attributes_of(node)
    is_fused = node.domain == MICROSOFT and node.op_type == "FusedMatMul"
    is_gemm = not node.domain and node.op_type == "Gemm" and not any(node.input[2:])
    plain = {"transA": 0, "transB": 1, "alpha": 1.0, "transBatchA": 0, "transBatchB": 0}
    if not (is_fused or is_gemm) or attributes.get("transB") != 1:
        return None
    if any(plain.get(name, value) != value for name, value in attributes.items()):
        return None
    tensor = graph.initializers.get(node.input[1])
    return tensor if tensor is not None and len(tensor.dims) == 2 else None


def _after(
    graph: GraphIndex, node: onnx.NodeProto
) -> tuple[tuple[onnx.NodeProto, ...], str, dict[str, int]]:
    """Returns the node after a product that adds a bias or activation; the bias; attributes."""
    y = node.output[0]
    readers = graph.consumers(y)
    if y in graph.outputs or len(readers) != 1:
        return (), "", {}
    reader = readers[0]
    if reader.domain == DOMAIN and reader.op_type.startswith("Activation"):
        attributes = {a.name: a.i for a in reader.attribute}
        attributes["activation"] = attributes.pop("kind")
        return (reader,), "".join(reader.input[1:2]), attributes
    if not reader.domain and reader.op_type == "Add":
        bias = other_operand(reader, y)
        if suffix_of_row(graph, bias, 2**31) is not None:
            return (reader,), bias, {}
    return (), "", {}


def _norm_before(graph: GraphIndex, node: onnx.NodeProto, suffix: str) -> onnx.NodeProto | None:
    """Returns the RMSNormalization before a product, if only the product reads its result."""
    norm = graph.producer(node, 0, f"Norm{suffix}")
    if norm is None or norm.output[0] in graph.outputs or len(graph.consumers(norm.output[0])) != 1:
        return None
    is_centered = next(a.i for a in norm.attribute if a.name == "is_centered")
    return None if is_centered or norm.input[1] or any(norm.input[4:]) else norm


def _trimmed(names: Sequence[str]) -> list[str]:
    """Drops the empty names at the end."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def _add_next_inputs(graph: onnx.GraphProto) -> bool:
    """Adds the inputs of the next step, over the best tokens, as outputs.

    The outputs may overwrite the inputs, so all nodes that read the inputs must run before the best
    tokens are known. Returns whether it added them.
    """
    if all(value.name != BEST_TOKENS for value in graph.output):
        return False
    before = _before(graph, BEST_TOKENS)
    read = {TOKENS, NUM_CACHED_TOKENS}
    if any(not read.isdisjoint(n.input) and before.isdisjoint(n.output) for n in graph.node):
        return False
    inputs = (BEST_TOKENS, NUM_CACHED_TOKENS, IS_LIVE)
    outputs = (NEXT_TOKEN_IDS, NEXT_NUM_CACHED_TOKENS)
    node = helper.make_node("Advance", inputs, outputs, name=NEXT_TOKEN_IDS, domain=DOMAIN)
    graph.node.append(node)
    make = helper.make_tensor_value_info
    graph.input.append(make(IS_LIVE, TensorProto.INT32, [ROWS]))
    graph.output.append(make(NEXT_TOKEN_IDS, TensorProto.INT64, [ROWS, 1]))
    graph.output.append(make(NEXT_NUM_CACHED_TOKENS, TensorProto.INT32, [ROWS]))
    return True


def _before(graph: onnx.GraphProto, name: str) -> set[str]:
    """Returns the names of a value and of all values on which it depends."""
    found = {name}
    for node in reversed(graph.node):  # sorted by their dependencies
        if not found.isdisjoint(node.output):
            found.update(node.input)
    return found
