"""Rewrites a decode graph for steps on CUDA: runs over exactly one token of each row.

The operators are those of native/cuda/linear.cc, decode_attention.cc and operators.cc. Reading the
weights bounds the time of products with few rows, so these have a separate operator.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import onnx
from onnx import TensorProto, helper

from server.runtime.contract import (
    BEST_TOKENS,
    FEW_ROWS,
    IS_LIVE,
    NEXT_NUM_CACHED_TOKENS,
    NEXT_TOKEN_IDS,
)
from server.runtime.cuda.decode_attention import replace_decode_attention
from server.runtime.cuda.one_token import ROWS, take_one_token
from server.runtime.cuda.operands import SUFFIXES, suffix_of_row
from server.runtime.cuda.rewrite import declare_domains, rewrite_model
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.graph_inputs import LOGIT_POSITIONS, NUM_CACHED_TOKENS, TOKENS
from server.runtime.rewriting.nodes import (
    DOMAIN,
    MICROSOFT,
    attributes_of,
    native_node,
    other_operand,
)
from server.runtime.rewriting.rewrites import Rewrite, apply_rewrites

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
        max_rows: the most rows of a step. Up to :data:`~server.runtime.contract.FEW_ROWS`, the
            native operator computes products.

    Returns:
        Whether the model changed.
    """
    graph = model.graph
    changed = take_one_token(graph)
    changed |= rewrite_model(model, folder, suppressed)
    changed |= apply_rewrites(graph, replace_decode_attention(GraphIndex(graph, folder)))
    if max_rows <= FEW_ROWS:
        changed |= apply_rewrites(graph, fuse_linear(GraphIndex(graph, folder)))
    changed |= _add_next_inputs(graph)
    if changed:
        declare_domains(model)
    return changed


def is_decoder(model: onnx.ModelProto) -> bool:
    """Whether a graph has the input ``logit_positions``."""
    return any(value.name == LOGIT_POSITIONS for value in model.graph.input)


def fuse_linear(graph: GraphIndex) -> Iterator[Rewrite]:
    """Replaces products with weights ``[out, in]``, the norm before and the activation after."""
    for node in graph.nodes:
        weight = _weight(graph, node)
        suffix = "" if weight is None else SUFFIXES.get(weight.data_type, "")
        if weight is None or not suffix or weight.dims[1] % _IN or weight.dims[0] % _OUT:
            continue
        norm, epilogue = _norm_before(graph, node, suffix), _epilogue(graph, node)
        x, residual, scale = node.input[0], "", ""
        outputs, epsilon = [epilogue.last.output[0]], 0.0
        if norm is not None:
            x, residual, scale = norm.input[0], norm.input[2], norm.input[3]
            outputs += [name for name in norm.output[1:] if name]  # the sum
            epsilon = attributes_of(norm)["epsilon"]
        new_node = native_node(
            f"Linear{suffix}",
            _trimmed((x, weight.name, epilogue.bias, residual, scale)),
            outputs,
            epsilon=epsilon,
            activation=epilogue.activation,
            is_gated=epilogue.is_gated,
        )
        yield Rewrite(node if norm is None else norm, (new_node,))


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


class _Epilogue(NamedTuple):
    """What follows a product: a bias that is added, or an activation, which may have a bias.

    ``last``: its last node. ``bias``: the name of a row, or "".
    """

    last: onnx.NodeProto
    bias: str = ""
    activation: int = _NO_ACTIVATION
    is_gated: int = 0


def _epilogue(graph: GraphIndex, node: onnx.NodeProto) -> _Epilogue:
    reader = graph.only_consumer(node)
    if reader is not None and reader.domain == DOMAIN and reader.op_type.startswith("Activation"):
        attributes = attributes_of(reader)
        bias = "".join(reader.input[1:2])
        return _Epilogue(reader, bias, attributes["kind"], attributes["is_gated"])
    if reader is not None and not reader.domain and reader.op_type == "Add":
        bias = other_operand(reader, node.output[0])
        if suffix_of_row(graph, bias, 2**31) is not None:
            return _Epilogue(reader, bias)
    return _Epilogue(node)


def _norm_before(graph: GraphIndex, node: onnx.NodeProto, suffix: str) -> onnx.NodeProto | None:
    """Returns the RMSNormalization before a product, if only the product reads its result."""
    norm = graph.producer(node, 0, f"Norm{suffix}")
    if norm is None or graph.only_consumer(norm) is None:
        return None
    is_centered = attributes_of(norm)["is_centered"]
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
    used = _ancestors(graph, BEST_TOKENS)
    overwritten = {TOKENS, NUM_CACHED_TOKENS}
    if any(not overwritten.isdisjoint(n.input) and used.isdisjoint(n.output) for n in graph.node):
        return False
    inputs = (BEST_TOKENS, NUM_CACHED_TOKENS, IS_LIVE)
    outputs = (NEXT_TOKEN_IDS, NEXT_NUM_CACHED_TOKENS)
    graph.node.append(native_node("Advance", inputs, outputs))
    make = helper.make_tensor_value_info
    graph.input.append(make(IS_LIVE, TensorProto.INT32, [ROWS]))
    graph.output.append(make(NEXT_TOKEN_IDS, TensorProto.INT64, [ROWS, 1]))
    graph.output.append(make(NEXT_NUM_CACHED_TOKENS, TensorProto.INT32, [ROWS]))
    return True


def _ancestors(graph: onnx.GraphProto, name: str) -> set[str]:
    """Returns the names of a value and of all values on which it depends."""
    names = {name}
    for node in reversed(graph.node):  # sorted by their dependencies
        if not names.isdisjoint(node.output):
            names.update(node.input)
    return names
