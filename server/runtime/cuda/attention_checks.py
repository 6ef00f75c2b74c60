"""Runs small graphs on the device to check which encoder attention kernels are accurate there.

The checks find wrong results. They do not survive an illegal memory access, after which the device
runs nothing more. Of ONNX Runtime's kernels, only memory-efficient attention reads ranges of keys;
any other would attend to the wrong tokens.
"""

import logging
from collections.abc import Callable, Sequence
from enum import Enum

import numpy as np
import onnx
from onnx import TensorProto, helper

from server.runtime.contract import LoadModel
from server.runtime.cuda.operands import SUFFIXES
from server.runtime.memory import Array
from server.runtime.rewriting.nodes import DOMAIN, MICROSOFT, native_node

log = logging.getLogger(__name__)

_LENGTHS, _MAX_LENGTH = (200, 7, 1), 200
_HEADS = 2
_PARTS = ("query", "key", "value")
_OPSETS = {"": 23, MICROSOFT: 1, DOMAIN: 1}
_TOLERANCES: dict[int, float] = {  # absolute errors of values of about 1
    TensorProto.FLOAT: 0.02,
    TensorProto.FLOAT16: 0.02,
    TensorProto.BFLOAT16: 0.1,
}


class AttentionKernel(Enum):
    """A kernel that computes the attention of encoders."""

    NATIVE = "native attention"  # native/cuda/encoders.cc
    MEMORY_EFFICIENT = "memory-efficient attention over ranges of keys"  # ONNX Runtime's


AccuracyCheck = Callable[[AttentionKernel, int, int], bool]
"""Whether a kernel is accurate for an ``onnx.TensorProto`` type and a head size."""


def is_accurate(kernel: AttentionKernel, type_: int, head_size: int, load_model: LoadModel) -> bool:
    """Implements :data:`AccuracyCheck`. Logs a warning if the kernel fails or is wrong.

    ``load_model``: loads a graph on the device.
    """
    try:
        error = _largest_error(kernel, type_, head_size, load_model)
    except Exception as failure:  # the runtime's own types
        log.warning("%s cannot run: %s", kernel.value, failure)
        return False
    if not error <= _TOLERANCES[type_]:
        log.warning("%s is wrong by %.3g: not used", kernel.value, error)
        return False
    return True


def key_ranges(lengths: Array, max_length: int) -> Array:
    """Returns the same as the operator ``KeyRanges``: int32 ``[3 * texts + 2]``."""
    starts = np.arange(len(lengths) + 1, dtype=np.int32) * np.int32(max_length)
    return np.concatenate([lengths, starts, starts])


def _largest_error(
    kernel: AttentionKernel, type_: int, head_size: int, load_model: LoadModel
) -> float:
    """Returns the largest error, also over tokens beyond a text's last key."""
    lengths = np.array(_LENGTHS, np.int32)
    size = _HEADS * head_size
    random = np.random.default_rng(0)
    x = random.normal(size=(len(lengths), _MAX_LENGTH, size)).astype(np.float32)
    bias = random.normal(size=3 * size).astype(np.float32)
    is_native = kernel is AttentionKernel.NATIVE
    mask = lengths if is_native else key_ranges(lengths, _MAX_LENGTH)
    inputs = {"x": x, "bias": bias, "mask": mask}
    actual = load_model(_graph(kernel, type_, size)).bind({}).run(inputs)["y"]
    expected = (
        _reference_attention(np.split(np.tile(row, 3) + bias, 3, axis=1), length)
        for row, length in zip(x, _LENGTHS, strict=True)
    )
    return float(np.abs(actual - np.stack(list(expected))).max())


def _reference_attention(parts: Sequence[Array], num_keys: int) -> Array:
    """Computes attention of queries ``[tokens, size]`` to the first ``num_keys`` keys."""
    query, key, value = (part.reshape(len(part), _HEADS, -1).swapaxes(0, 1) for part in parts)
    scores = query @ key[:, :num_keys].swapaxes(1, 2) / np.sqrt(np.float32(query.shape[-1]))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    attended: Array = weights / weights.sum(-1, keepdims=True) @ value[:, :num_keys]
    return attended.swapaxes(0, 1).reshape(parts[0].shape)


def _graph(kernel: AttentionKernel, type_: int, size: int) -> onnx.ModelProto:
    rows: list[str | int] = ["texts", "length", size]
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=type_),
        helper.make_node("Cast", ["bias"], ["narrow_bias"], to=type_),
        helper.make_node("Concat", ["narrow"] * 3, ["packed"], axis=-1),
        *_attention_nodes(kernel, type_),
        helper.make_node("Cast", ["attended"], ["y"], to=TensorProto.FLOAT),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, rows),
        helper.make_tensor_value_info("bias", TensorProto.FLOAT, [3 * size]),
        helper.make_tensor_value_info("mask", TensorProto.INT32, ["masked"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, rows)]
    graph = helper.make_graph(nodes, "attention", inputs, outputs)
    opsets = [helper.make_opsetid(domain, version) for domain, version in _OPSETS.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _attention_nodes(kernel: AttentionKernel, type_: int) -> list[onnx.NodeProto]:
    """Makes the nodes that compute ``attended`` from ``packed`` and its bias."""
    if kernel is AttentionKernel.NATIVE:
        return [
            native_node(
                f"EncoderAttention{SUFFIXES[type_]}",
                ["packed", "mask", "narrow_bias"],
                ["attended"],
                num_heads=_HEADS,
                num_kv_heads=_HEADS,
                scale=0.0,
            )
        ]
    return [
        helper.make_node("Add", ["packed", "narrow_bias"], ["biased"]),
        helper.make_node("Split", ["biased"], _PARTS, axis=-1, num_outputs=3),
        helper.make_node(
            "MultiHeadAttention",
            [*_PARTS, "", "mask"],
            ["attended"],
            domain=MICROSOFT,
            num_heads=_HEADS,
        ),
    ]
