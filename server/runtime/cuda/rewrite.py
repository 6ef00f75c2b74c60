"""Rewrites graphs to use the operators of native/cuda/operators.cc, on CUDA.

Bundles hold standard operators only. Each pattern replaces nodes that read and write memory several
times by one that does so once: a launch of a kernel takes longer than most of them compute.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from server.runtime.contract import BEST_TOKENS, TARGETS, TOP_TOKENS
from server.runtime.cuda.attention_checks import IsRight
from server.runtime.cuda.attention_weights import attention_weights
from server.runtime.cuda.changes import (
    MICROSOFT,
    SUFFIXES,
    Change,
    apply_changes,
    attributes_of,
    drop_unread,
    is_vector_size,
    suffix_of_row,
    take_bias,
)
from server.runtime.cuda.encoders import attentions, pools
from server.runtime.cuda.padding import padded_attentions
from server.runtime.cuda.ranges import ranges
from server.runtime.kernels.graph import LOGIT_POSITIONS, GraphIndex
from server.runtime.kernels.library import CUDA_LIBRARY, DOMAIN

_MAX_SIZE = 32768  # of a row that is normalized
# Activation in native/cuda/device/arguments.h, and of ONNX's Gelu by its attribute.
_SILU, _RELU = 0, 1
_GELUS = {b"none": 2, b"tanh": 3}
_NORMS = ("LayerNormalization", "RMSNormalization")
_LOGITS = "logits"


def rewrite_model(
    model: onnx.ModelProto,
    folder: Path,
    suppressed: tuple[int, ...] = (),
    is_right: IsRight = lambda *_: True,
) -> bool:
    """Rewrites a graph; its weights stay in their files.

    Adds the output :data:`~server.runtime.contract.BEST_TOKENS` to graphs with logits.

    Args:
        model: without its external weights, which are in ``folder``.
        folder: the bundle's.
        suppressed: tokens that are never the best.
        is_right: see :func:`server.runtime.cuda.encoders.attentions`.

    Returns:
        Whether it changed. Without the library, only what would be wrong or refused does.
    """
    graph = model.graph
    changed = apply_changes(graph, list(attention_weights(GraphIndex(graph, folder))))
    if CUDA_LIBRARY.exists():
        attend = partial(attentions, is_right=is_right)
        for pattern in (ranges, _gated_activations, attend, _norms, _activations, pools):
            changed |= apply_changes(graph, list(pattern(GraphIndex(graph, folder))))
        changed |= _add_best_tokens(graph, suppressed)
    changed |= apply_changes(graph, list(padded_attentions(GraphIndex(graph, folder))))
    changed |= drop_unread(graph)
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
    """A copy in which operators of ours find the largest elements of fp32 tensors, or the smallest.

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
        keeps = helper.get_attribute_value(node.attribute[0])
        attributes = {"is_min": int(node.op_type == "ReduceMin"), "is_last": keeps}
        node.CopyFrom(
            helper.make_node(
                "Extreme", node.input[:1], node.output, node.name, domain=DOMAIN, **attributes
            )
        )
    copy.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return copy


def _find_top_tokens(graph: onnx.GraphProto) -> None:
    """Also reads the wanted rows, and leaves out suppressed tokens, where the logits are."""
    (node,) = (node for node in graph.node if node.op_type == "TopK")
    made_by = {name: node for node in graph.node for name in node.output}
    values = {value.name: onnx.numpy_helper.to_array(value) for value in graph.initializer}
    logits, count = node.input
    rows, suppressed, suppressed_logit, kept = "", "", 0.0, []
    before = made_by.get(logits)
    if before is not None and before.op_type == "Where":
        mask, value, logits = before.input
        suppressed, suppressed_logit = "suppressed", float(values[value])
        kept = [onnx.numpy_helper.from_array(values[mask][0].astype(np.uint8), suppressed)]
        before = made_by.get(logits)
    if before is not None and before.op_type == "Gather":
        logits, rows = before.input
    targets = next((value.name for value in graph.input if value.name == TARGETS), "")
    made = helper.make_node(
        "TopTokens",
        [logits, rows, targets, suppressed],
        [TOP_TOKENS],
        domain=DOMAIN,
        count=int(values[count][0]),
        suppressed_logit=suppressed_logit,
    )
    made_by[TOP_TOKENS].CopyFrom(made)
    drop_unread(graph)
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _norms(graph: GraphIndex) -> Iterator[Change]:
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
        inputs = [x, "", "", scale, *biases]
        outputs, place = [node.output[0]], node
        dropped: tuple[onnx.NodeProto, ...] = ()
        added = graph.producers.get(x)
        if added is not None and _is_residual_add(graph, added):
            inputs[0], inputs[2] = added.input
            if not take_bias(graph, added.input[0])[1]:
                inputs[0], inputs[2] = inputs[2], inputs[0]
            if graph.only_consumer(added, node.op_type) is None:
                outputs.append(x)  # the sum has other readers
            place = added
            inputs[0], inputs[1], biased = take_bias(graph, inputs[0])
            dropped = (node, *biased)
        made = helper.make_node(
            f"Norm{suffix}",
            inputs,
            outputs,
            name=node.output[0],
            domain=DOMAIN,
            epsilon=attributes.get("epsilon", 1e-5),
            is_centered=int(node.op_type == "LayerNormalization"),
        )
        yield Change(place, (made,), dropped)


def _is_residual_add(graph: GraphIndex, node: onnx.NodeProto) -> bool:
    """Whether a node adds values of one shape, for one norm and perhaps other readers."""
    if node.op_type != "Add" or not graph.have_same_shape(*node.input):
        return False
    readers = (reader.op_type for reader in graph.consumers(node.output[0]))
    return sum(map(_NORMS.__contains__, readers)) == 1


def _gated_activations(graph: GraphIndex) -> Iterator[Change]:
    """``silu(a) * b`` or ``gelu(a) * b`` of the halves ``a`` and ``b`` of each row."""
    for split in graph.nodes:
        if split.op_type != "Split" or len(split.output) != 2:
            continue
        a, b = split.output
        readers = list(graph.consumers(a))
        operators = sorted(reader.op_type for reader in readers)
        kind = _SILU
        if operators == ["Mul", "Sigmoid"]:
            sigmoid = next(reader for reader in readers if reader.op_type == "Sigmoid")
            act = graph.only_consumer(sigmoid, "Mul")
            acting: tuple[onnx.NodeProto, ...] = (sigmoid,)
        elif operators == ["Gelu"]:
            act, acting, kind = readers[0], (), _gelu_kind(readers[0])
        else:
            continue
        product = graph.only_consumer(act, "Mul")
        if act is None or product is None or a not in act.input or b not in product.input:
            continue
        shape, type_ = graph.shape(product.output[0]), graph.types.get(product.output[0])
        if type_ not in SUFFIXES or not is_vector_size(shape[-1:]):
            continue
        if graph.shape(a) != graph.shape(b) or len(graph.consumers(b)) != 1:
            continue
        if not graph.outputs.isdisjoint(split.output):
            continue
        axis = next((item.i for item in split.attribute if item.name == "axis"), 0)
        if axis not in (-1, len(shape) - 1):
            continue
        x, bias, biased = take_bias(graph, split.input[0])
        made = _activation(graph, x, bias, product, kind, 1)
        yield Change(product, (made,), (split, *acting, act, *biased))


def _activations(graph: GraphIndex) -> Iterator[Change]:
    """``relu(x + bias)`` and ``gelu(x + bias)``."""
    for node in graph.nodes:
        if node.domain or node.op_type not in ("Relu", "Gelu"):
            continue
        x, bias, biased = take_bias(graph, node.input[0])
        if bias and graph.types.get(node.output[0]) in SUFFIXES:
            kind = _RELU if node.op_type == "Relu" else _gelu_kind(node)
            yield Change(node, (_activation(graph, x, bias, node, kind, 0),), biased)


def _gelu_kind(node: onnx.NodeProto) -> int:
    return next((_GELUS[item.s] for item in node.attribute), _GELUS[b"none"])


def _activation(
    graph: GraphIndex, x: str, bias: str, last: onnx.NodeProto, kind: int, is_gated: int
) -> onnx.NodeProto:
    y = last.output[0]
    return helper.make_node(
        f"Activation{SUFFIXES[graph.types[y]]}",
        [x, bias] if bias else [x],
        [y],
        name=y,
        domain=DOMAIN,
        kind=kind,
        is_gated=is_gated,
    )


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
        graph.node.append(
            helper.make_node("BestToken", inputs, [BEST_TOKENS], name=BEST_TOKENS, domain=DOMAIN)
        )
        rows = type_.shape.dim[0].dim_param
        int64 = onnx.TensorProto.INT64
        graph.output.append(helper.make_tensor_value_info(BEST_TOKENS, int64, [rows]))
        return True
    return False
