"""Rewrites graphs to use the operators of native/cuda/operators.cc, on CUDA.

Bundles hold standard operators only. Each pattern replaces nodes that read and write memory several
times by one that does so once: a launch of a kernel takes longer than most of them compute.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from server.runtime.contract import BEST_TOKENS, TARGETS, TOP_TOKENS
from server.runtime.cuda.attention_checks import AccuracyCheck
from server.runtime.cuda.attention_weights import compute_attention_weights
from server.runtime.cuda.encoders import fuse_encoder_attention
from server.runtime.cuda.operands import SUFFIXES, is_vector_size, split_bias, suffix_of_row
from server.runtime.cuda.padding import hide_padding
from server.runtime.cuda.pooling import fuse_mean_pooling
from server.runtime.cuda.ranges import convert_ranges_to_int32
from server.runtime.kernels.library import CUDA_LIBRARY
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.graph_inputs import LOGIT_POSITIONS
from server.runtime.rewriting.nodes import DOMAIN, MICROSOFT, attributes_of, native_node
from server.runtime.rewriting.patterns import find_gated_activation
from server.runtime.rewriting.rewrites import Rewrite, apply_rewrites

_MAX_SIZE = 32768  # of a row that is normalized
# Activations of native/cuda/device/arguments.h; those of ONNX's Gelu, by its attribute.
_SILU, _RELU = 0, 1
_GELUS = {b"none": 2, b"tanh": 3}
_NORMS = ("LayerNormalization", "RMSNormalization")
_LOGITS = "logits"


def rewrite_model(
    model: onnx.ModelProto,
    folder: Path,
    suppressed: tuple[int, ...] = (),
    is_accurate: AccuracyCheck = lambda *_: True,
) -> bool:
    """Rewrites a graph; its weights stay in their files.

    Adds the output :data:`~server.runtime.contract.BEST_TOKENS` to graphs with logits.

    Args:
        model: without its external weights, which are in ``folder``.
        folder: the bundle's.
        suppressed: tokens that are never the best.
        is_accurate: see :func:`server.runtime.cuda.encoders.fuse_encoder_attention`.

    Returns:
        Whether it changed. Without the library, only what would be wrong or refused does.
    """
    graph = model.graph
    patterns: list[Callable[[GraphIndex], Iterator[Rewrite]]] = [compute_attention_weights]
    changed = False
    if CUDA_LIBRARY.exists():
        patterns += [
            convert_ranges_to_int32,
            fuse_gated_activations,
            partial(fuse_encoder_attention, is_accurate=is_accurate),
            fuse_residual_norms,
            fuse_bias_activations,
            fuse_mean_pooling,
        ]
        changed = _add_best_tokens(graph, suppressed)
    for pattern in (*patterns, hide_padding):
        changed |= apply_rewrites(graph, pattern(GraphIndex(graph, folder)))
    if changed:
        declare_domains(model)
    return changed


def declare_domains(model: onnx.ModelProto) -> None:
    """Adds the domains of rewritten graphs that the model lacks."""
    declared = {opset.domain for opset in model.opset_import}
    for domain in (DOMAIN, MICROSOFT):
        if domain not in declared:
            model.opset_import.append(helper.make_opsetid(domain, 1))


def replace_operators(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which native operators find the largest elements of fp32 tensors, or the smallest.

    ONNX Runtime's reductions, cuDNN's, take 2 ms for 8 rows of 32,000 elements.

    Args:
        model: its reductions are along the last axis, which they keep, or along axis 1 of three,
            which they drop: those of :class:`server.engine.gpu.sampler_nodes.Nodes`. Or its output
            is :data:`~server.runtime.contract.TOP_TOKENS`, by ``TopK`` of logits.
    """
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    if not CUDA_LIBRARY.exists():
        return copy
    if copy.graph.output[0].name == TOP_TOKENS:
        _find_top_tokens(copy.graph)
    for node in copy.graph.node:
        if node.op_type not in ("ReduceMax", "ReduceMin"):
            continue
        keeps_axis = attributes_of(node)["keepdims"]
        attributes = {"is_min": int(node.op_type == "ReduceMin"), "is_last": keeps_axis}
        node.CopyFrom(native_node("Extreme", node.input[:1], node.output, **attributes))
    copy.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return copy


def _find_top_tokens(graph: onnx.GraphProto) -> None:
    """Also reads the wanted rows, and leaves out suppressed tokens, where the logits are."""
    (node,) = (node for node in graph.node if node.op_type == "TopK")
    index = GraphIndex(graph, Path())
    logits, count = node.input
    rows, suppressed, suppressed_logit = "", "", 0.0
    before = index.producers.get(logits)
    if before is not None and before.op_type == "Where":
        mask, value, logits = before.input
        suppressed, suppressed_logit = "suppressed", float(index.array(value))
        is_suppressed = index.array(mask)[0].astype(np.uint8)
        graph.initializer.append(onnx.numpy_helper.from_array(is_suppressed, suppressed))
        before = index.producers.get(logits)
    if before is not None and before.op_type == "Gather":
        logits, rows = before.input
    new_node = native_node(
        "TopTokens",
        [logits, rows, TARGETS if index.is_input(TARGETS) else "", suppressed],
        [TOP_TOKENS],
        count=int(index.array(count)[0]),
        suppressed_logit=suppressed_logit,
    )
    apply_rewrites(graph, [Rewrite(index.producers[TOP_TOKENS], (new_node,))])


def fuse_residual_norms(graph: GraphIndex) -> Iterator[Rewrite]:
    """``LayerNormalization`` and ``RMSNormalization``, with the addition of a residual before."""
    for node in graph.nodes:
        if node.domain or node.op_type not in _NORMS:
            continue
        attributes = attributes_of(node)
        x, scale, *biases = node.input
        suffix = suffix_of_row(graph, scale, _MAX_SIZE)
        if attributes.get("axis", -1) != -1 or suffix is None or sum(map(bool, node.output)) != 1:
            continue
        if any(bias and suffix_of_row(graph, bias, _MAX_SIZE) != suffix for bias in biases):
            continue
        bias, residual, outputs, anchor = "", "", [node.output[0]], node
        added = graph.producers.get(x)
        if added is not None and _is_residual_add(graph, added):
            if graph.only_consumer(added) is None:
                outputs.append(x)  # the sum has other readers
            anchor = added
            x, residual = added.input
            if not split_bias(graph, x)[1]:
                x, residual = residual, x
            x, bias = split_bias(graph, x)
        new_node = native_node(
            f"Norm{suffix}",
            [x, bias, residual, scale, *biases],
            outputs,
            epsilon=attributes.get("epsilon", 1e-5),
            is_centered=int(node.op_type == "LayerNormalization"),
        )
        yield Rewrite(anchor, (new_node,))


def _is_residual_add(graph: GraphIndex, node: onnx.NodeProto) -> bool:
    """Whether a node adds values of one shape, for one norm and perhaps other readers."""
    if node.op_type != "Add" or not graph.have_same_shape(*node.input):
        return False
    readers = (reader.op_type for reader in graph.consumers(node.output[0]))
    return sum(map(_NORMS.__contains__, readers)) == 1


def fuse_gated_activations(graph: GraphIndex) -> Iterator[Rewrite]:
    """``silu(a) * b`` or ``gelu(a) * b`` of the halves ``a`` and ``b`` of each row."""
    for split in graph.nodes:
        gated = find_gated_activation(graph, split)
        if gated is None:
            continue
        y = gated.product.output[0]
        if graph.types.get(y) in SUFFIXES and is_vector_size(graph.shape(y)[-1:]):
            is_gelu = gated.activation.op_type == "Gelu"
            kind = _gelu_kind(gated.activation) if is_gelu else _SILU
            x, bias = split_bias(graph, split.input[0])
            new_node = _activation(graph, x, bias, y, kind=kind, is_gated=1)
            yield Rewrite(gated.product, (new_node,))


def fuse_bias_activations(graph: GraphIndex) -> Iterator[Rewrite]:
    """``relu(x + bias)`` and ``gelu(x + bias)``."""
    for node in graph.nodes:
        if node.domain or node.op_type not in ("Relu", "Gelu"):
            continue
        y, (x, bias) = node.output[0], split_bias(graph, node.input[0])
        if bias and graph.types.get(y) in SUFFIXES:
            kind = _RELU if node.op_type == "Relu" else _gelu_kind(node)
            yield Rewrite(node, (_activation(graph, x, bias, y, kind=kind, is_gated=0),))


def _gelu_kind(node: onnx.NodeProto) -> int:
    return _GELUS[attributes_of(node).get("approximate", b"none")]


def _activation(graph: GraphIndex, x: str, bias: str, y: str, **attributes: int) -> onnx.NodeProto:
    operator = f"Activation{SUFFIXES[graph.types[y]]}"
    return native_node(operator, [x, bias] if bias else [x], [y], **attributes)


def _add_best_tokens(graph: onnx.GraphProto, suppressed: tuple[int, ...]) -> bool:
    """Adds the output BEST_TOKENS, if a decoder's logits ``[rows, vocabulary]`` are in fp32."""
    if all(value.name != LOGIT_POSITIONS for value in graph.input):
        return False
    for value in graph.output:
        type_ = value.type.tensor_type
        if value.name != _LOGITS or type_.elem_type != onnx.TensorProto.FLOAT:
            continue
        inputs = [_LOGITS]
        if suppressed:
            mask = np.zeros(type_.shape.dim[-1].dim_value, np.uint8)
            mask[list(suppressed)] = 1
            inputs.append("suppressed")
            graph.initializer.append(onnx.numpy_helper.from_array(mask, inputs[-1]))
        graph.node.append(native_node("BestToken", inputs, [BEST_TOKENS]))
        rows = type_.shape.dim[0].dim_param
        int64 = onnx.TensorProto.INT64
        graph.output.append(helper.make_tensor_value_info(BEST_TOKENS, int64, [rows]))
        return True
    return False
