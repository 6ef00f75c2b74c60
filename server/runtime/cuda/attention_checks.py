"""Checks on the device, by small graphs, which attention of encoders is right there.

Of ONNX Runtime's kernels, only the memory-efficient one reads ranges of keys; another would attend
to other tokens.
"""

import logging
from collections.abc import Callable
from enum import Enum

import numpy as np
import onnx
from onnx import TensorProto, helper

from server.runtime.contract import LoadModel
from server.runtime.cuda.changes import MICROSOFT, SUFFIXES
from server.runtime.kernels.library import DOMAIN
from server.runtime.memory import Array

log = logging.getLogger(__name__)

_LENGTHS, _MAX_LENGTH = (100, 7, 1), 100
_HEADS, _HEAD_SIZE = 2, 64
_TOLERANCES: dict[int, float] = {  # of values of about 1
    TensorProto.FLOAT: 0.02,
    TensorProto.FLOAT16: 0.02,
    TensorProto.BFLOAT16: 0.1,
}


class Attention(Enum):
    """How attention of encoders is computed."""

    OURS = "attention of our own"
    RANGES = "attention over ranges of keys"


IsRight = Callable[[Attention, int], bool]
"""Whether a kind of attention is right for ONNX's number of a float."""


def is_right(attention: Attention, type_: int, load_model: LoadModel) -> bool:
    """As :data:`IsRight`. Logs if it is not.

    ``load_model``: loads a graph on the device.
    """
    try:
        difference = _difference(attention, type_, load_model)
    except Exception as error:  # the runtime's own types
        log.warning("%s cannot run: %s", attention.value, error)
        return False
    if not difference <= _TOLERANCES[type_]:
        log.warning("%s is wrong by %.3g: not used", attention.value, difference)
        return False
    return True


def ranges_of(lengths: Array, max_length: int) -> Array:
    """What the operator ``KeyRanges`` gives: int32 ``[3 * texts + 2]``."""
    starts = np.arange(len(lengths) + 1, dtype=np.int32) * np.int32(max_length)
    return np.concatenate([lengths, starts, starts])


def _difference(attention: Attention, type_: int, load_model: LoadModel) -> float:
    """The largest error, of tokens beyond a text's last key too."""
    lengths = np.array(_LENGTHS, np.int32)
    size = _HEADS * _HEAD_SIZE
    x = np.random.default_rng(0).normal(size=(len(lengths), _MAX_LENGTH, size)).astype(np.float32)
    mask = lengths if attention is Attention.OURS else ranges_of(lengths, _MAX_LENGTH)
    found = load_model(_graph(attention, type_)).bind({}).run({"x": x, "mask": mask})["y"]
    return max(
        float(np.abs(found[row] - _attended(x[row], length)).max())
        for row, length in enumerate(lengths)
    )


def _attended(x: Array, num_keys: int) -> Array:
    """Attention of ``x [tokens, size]`` to the first of its tokens."""
    heads = x.reshape(len(x), _HEADS, _HEAD_SIZE).swapaxes(0, 1)
    keys = heads[:, :num_keys]
    weights = np.exp(heads @ keys.swapaxes(1, 2) / np.sqrt(np.float32(_HEAD_SIZE)))
    attended: Array = weights / weights.sum(-1, keepdims=True) @ keys
    return attended.swapaxes(0, 1).reshape(x.shape)


def _graph(attention: Attention, type_: int) -> onnx.ModelProto:
    rows: list[str | int] = ["texts", "length", _HEADS * _HEAD_SIZE]
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=type_),
        *_attentions(attention, type_),
        helper.make_node("Cast", ["attended"], ["y"], to=TensorProto.FLOAT),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, rows),
        helper.make_tensor_value_info("mask", TensorProto.INT32, ["masked"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, rows)]
    graph = helper.make_graph(nodes, "attention", inputs, outputs)
    opsets = [helper.make_opsetid(domain, version) for domain, version in _OPSETS.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


_OPSETS = {"": 23, MICROSOFT: 1, DOMAIN: 1}


def _attentions(attention: Attention, type_: int) -> list[onnx.NodeProto]:
    """Of ``narrow`` to itself, as ``attended``."""
    if attention is Attention.RANGES:
        return [
            helper.make_node(
                "MultiHeadAttention",
                ["narrow", "narrow", "narrow", "", "mask"],
                ["attended"],
                domain=MICROSOFT,
                num_heads=_HEADS,
            )
        ]
    return [
        helper.make_node("Concat", ["narrow"] * 3, ["packed"], axis=-1),
        helper.make_node(
            f"EncoderAttention{SUFFIXES[type_]}",
            ["packed", "mask"],
            ["attended"],
            domain=DOMAIN,
            num_heads=_HEADS,
            num_kv_heads=_HEADS,
            scale=0.0,
        ),
    ]
