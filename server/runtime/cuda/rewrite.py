"""Rewrites graphs to use the operators of native/cuda/operators.cc, on CUDA.

Bundles hold standard operators only. Each pattern replaces nodes that read and write memory several
times by one that does so once: a launch of a kernel takes longer than most of them compute.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from server.runtime.contract import BEST_TOKENS
from server.runtime.kernels.graph import (
    ATTENDED_LENGTHS,
    LOGIT_POSITIONS,
    GraphIndex,
    other_operand,
)
from server.runtime.kernels.library import DOMAIN

LIBRARY = Path(__file__).parents[1] / "libtriune_cuda.so"
_SUFFIXES: dict[int, str] = {onnx.TensorProto.FLOAT16: "Fp16", onnx.TensorProto.BFLOAT16: "Bf16"}
# Sizes that native/cuda/operators.cc takes: multiples of the first, up to the second.
_VECTOR, _MAX_SIZE = 8, 32768
_SILU, _RELU = 0, 1  # Activation in native/cuda/device/arguments.h
_NORMS = ("LayerNormalization", "RMSNormalization")
_LOGITS = "logits"


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """Puts ``made`` where ``place`` was, and drops it and the nodes ``dropped``."""

    place: onnx.NodeProto
    made: tuple[onnx.NodeProto, ...]
    dropped: tuple[onnx.NodeProto, ...] = ()


def rewrite(path: Path, suppressed: tuple[int, ...] = ()) -> bytes | None:
    """Rewrites the graph in ``path``; its weights stay in their files.

    Adds the output :data:`~server.runtime.contract.BEST_TOKENS` to graphs with logits.

    Args:
        path: of a file that was verified against its bundle.
        suppressed: tokens that are never the best.

    Returns:
        The serialized model; None without the library, or if nothing changes.
    """
    if not LIBRARY.exists():
        return None
    model = onnx.load(str(path), load_external_data=False)
    graph = model.graph
    changed = False
    for pattern in (_gated_activations, _attentions, _norms, _activations):
        changes = list(pattern(GraphIndex(graph, path.parent)))
        _apply(graph, changes)
        changed |= bool(changes)
    changed |= _add_best_tokens(graph, suppressed)
    if not changed:
        return None
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    if all(opset.domain != "com.microsoft" for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model.SerializeToString()


def replace_reductions(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which an operator of ours finds largest and smallest elements of fp32 tensors.

    ONNX Runtime's reductions, cuDNN's, take 2 ms for 8 rows of 32,000 elements.

    Args:
        model: its reductions are along the last axis, which they keep, or along axis 1 of three,
            which they drop: those of :class:`server.engine.gpu.sampler_nodes.Nodes`.
    """
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    if not LIBRARY.exists():
        return copy
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


def _apply(graph: onnx.GraphProto, changes: Iterable[_Change]) -> None:
    made = {id(change.place): change.made for change in changes}
    dropped = {id(node) for change in changes for node in change.dropped}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if id(node) in made:
            nodes += made[id(node)]
        elif id(node) not in dropped:
            nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _norms(graph: GraphIndex) -> Iterator[_Change]:
    """``LayerNormalization`` and ``RMSNormalization``, with the addition of a residual before."""
    for node in graph.nodes:
        if node.domain or node.op_type not in _NORMS:
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        x, scale, *biases = node.input
        suffix = _suffix_of_row(graph, scale, _MAX_SIZE)
        if attributes.get("axis", -1) != -1 or suffix is None or sum(map(bool, node.output)) != 1:
            continue
        if any(bias and _suffix_of_row(graph, bias, _MAX_SIZE) != suffix for bias in biases):
            continue
        inputs = [x, "", "", scale, *biases]
        outputs, place = [node.output[0]], node
        dropped: tuple[onnx.NodeProto, ...] = ()
        added = graph.producers.get(x)
        if added is not None and _is_residual_add(graph, added):
            inputs[0], inputs[2] = added.input
            if not _take_bias(graph, added.input[0])[1]:
                inputs[0], inputs[2] = inputs[2], inputs[0]
            if graph.only_consumer(added, node.op_type) is None:
                outputs.append(x)  # the sum has other readers
            place = added
            inputs[0], inputs[1], biased = _take_bias(graph, inputs[0])
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
        yield _Change(place, (made,), dropped)


def _is_residual_add(graph: GraphIndex, node: onnx.NodeProto) -> bool:
    """Whether a node adds values of one shape, for one norm and perhaps other readers."""
    if node.op_type != "Add" or not graph.have_same_shape(*node.input):
        return False
    readers = (reader.op_type for reader in graph.consumers(node.output[0]))
    return sum(map(_NORMS.__contains__, readers)) == 1


def _gated_activations(graph: GraphIndex) -> Iterator[_Change]:
    """``silu(a) * b`` of the halves ``a`` and ``b`` of each row."""
    for split in graph.nodes:
        if split.op_type != "Split" or len(split.output) != 2:
            continue
        a, b = split.output
        readers = list(graph.consumers(a))
        if sorted(reader.op_type for reader in readers) != ["Mul", "Sigmoid"]:
            continue
        sigmoid = next(reader for reader in readers if reader.op_type == "Sigmoid")
        silu = graph.only_consumer(sigmoid, "Mul")
        product = graph.only_consumer(silu, "Mul")
        if silu is None or product is None or a not in silu.input or b not in product.input:
            continue
        shape, type_ = graph.shape(product.output[0]), graph.types.get(product.output[0])
        if type_ not in _SUFFIXES or not _is_vector_size(shape[-1:]):
            continue
        if graph.shape(a) != graph.shape(b) or len(graph.consumers(b)) != 1:
            continue
        if not graph.outputs.isdisjoint(split.output):
            continue
        axis = next((item.i for item in split.attribute if item.name == "axis"), 0)
        if axis not in (-1, len(shape) - 1):
            continue
        x, bias, biased = _take_bias(graph, split.input[0])
        made = _activation(graph, x, bias, product, _SILU, 1)
        yield _Change(product, (made,), (split, sigmoid, silu, *biased))


def _activations(graph: GraphIndex) -> Iterator[_Change]:
    """``relu(x + bias)``."""
    for node in graph.nodes:
        if node.op_type != "Relu":
            continue
        x, bias, biased = _take_bias(graph, node.input[0])
        if bias and graph.types.get(node.output[0]) in _SUFFIXES:
            yield _Change(node, (_activation(graph, x, bias, node, _RELU, 0),), biased)


def _activation(
    graph: GraphIndex, x: str, bias: str, last: onnx.NodeProto, kind: int, is_gated: int
) -> onnx.NodeProto:
    y = last.output[0]
    return helper.make_node(
        f"Activation{_SUFFIXES[graph.types[y]]}",
        [x, bias] if bias else [x],
        [y],
        name=y,
        domain=DOMAIN,
        kind=kind,
        is_gated=is_gated,
    )


def _attentions(graph: GraphIndex) -> Iterator[_Change]:
    """Attention of an encoder: without a cache, ``GroupQueryAttention`` copies keys and values.

    ``MultiHeadAttention`` may leave out tokens beyond the last key, also those that attend to it.
    """
    if graph.is_input(ATTENDED_LENGTHS):
        return
    for node in graph.nodes:
        if node.op_type != "GroupQueryAttention" or any(node.input[1:5]) or any(node.input[7:]):
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        heads = attributes.pop("num_heads")
        is_plain = attributes.pop("kv_num_heads") == heads and attributes.pop("causal", 1) == 0
        scale = {"scale": attributes.pop("scale")} if "scale" in attributes else {}
        if not is_plain or attributes.pop("do_rotary", 0) or attributes:
            continue
        if any(graph.is_used(name) for name in node.output[1:] if name):
            continue
        lengths = graph.producer(node, 5, "Sub")
        ones = None if lengths is None else graph.inline_array(lengths.input[1])
        size = graph.shape(node.output[0])[-1:]
        type_ = graph.types.get(node.output[0])
        if lengths is None or ones is None or np.any(ones != 1) or type_ not in _SUFFIXES:
            continue
        if not _is_vector_size(size):
            continue
        x, bias, biased = _take_bias(graph, node.input[0])
        y = node.output[0]
        parts = [f"{y}.{name}" for name in ("query", "key", "value")]
        split = helper.make_node(
            f"Split{_SUFFIXES[type_]}",
            [x, bias] if bias else [x],
            parts,
            name=f"{y}.split",
            domain=DOMAIN,
            first_size=size[0],
            second_size=size[0],
        )
        attention = helper.make_node(
            "MultiHeadAttention",
            [*parts, "", lengths.input[0]],
            [y],
            name=y,
            domain="com.microsoft",
            num_heads=heads,
            **scale,
        )
        yield _Change(node, (split, attention), biased)


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


def _take_bias(graph: GraphIndex, name: str) -> tuple[str, str, tuple[onnx.NodeProto, ...]]:
    """What a value is without a constant row that is added to it, that row, and the addition.

    Returns the value itself, "" and nothing if it is no such sum, or has more than one reader.
    """
    node = graph.producers.get(name)
    if node is None or node.op_type != "Add" or name in graph.outputs:
        return name, "", ()
    bias = next((row for row in node.input if _suffix_of_row(graph, row, 2**31)), "")
    if not bias or len(graph.consumers(name)) != 1:
        return name, "", ()
    return other_operand(node, bias), bias, (node,)


def _suffix_of_row(graph: GraphIndex, name: str, max_size: int) -> str | None:
    """The suffix of operators for a constant row of this type; None for other values."""
    tensor = graph.initializers.get(name)
    if tensor is None or len(tensor.dims) != 1:
        return None
    fits = tensor.dims[0] % _VECTOR == 0 and tensor.dims[0] <= max_size
    return _SUFFIXES.get(tensor.data_type) if fits else None


def _is_vector_size(shape: tuple[str | int, ...]) -> bool:
    return bool(shape) and isinstance(shape[0], int) and shape[0] > 0 and shape[0] % _VECTOR == 0
