"""Checks that attention of ONNX Runtime follows the ranges of ``KeyRanges``.

Of its kernels, only the memory-efficient one reads them; another would attend to other tokens.
"""

import logging

import numpy as np
import onnx
from onnx import TensorProto, helper

from server.runtime.contract import LoadModel
from server.runtime.cuda.changes import MICROSOFT
from server.runtime.memory import Array

log = logging.getLogger(__name__)

_LENGTHS, _MAX_LENGTH = (24, 7, 1), 24
_HEADS, _HEAD_SIZE = 2, 64
_TOLERANCE = 0.02  # of values of about 1, in fp16


def are_taken(load_model: LoadModel, type_: int) -> bool:
    """Whether a small attention of this element type is right. Logs if it is not.

    Args:
        load_model: loads the graph on the device.
        type_: ONNX's number of a float.
    """
    try:
        difference = _difference(load_model, type_)
    except Exception as error:  # the runtime's own types
        log.warning("attention over ranges of keys cannot run: %s", error)
        return False
    if not difference <= _TOLERANCE:
        log.warning("attention over ranges of keys is wrong by %.3g: not used", difference)
        return False
    return True


def ranges_of(lengths: Array, max_length: int) -> Array:
    """What the operator ``KeyRanges`` gives: int32 ``[3 * texts + 2]``."""
    starts = np.arange(len(lengths) + 1, dtype=np.int32) * np.int32(max_length)
    return np.concatenate([lengths, starts, starts])


def _difference(load_model: LoadModel, type_: int) -> float:
    """The largest error, of tokens beyond a text's last key too."""
    lengths = np.array(_LENGTHS, np.int32)
    size = _HEADS * _HEAD_SIZE
    x = np.random.default_rng(0).normal(size=(len(lengths), _MAX_LENGTH, size)).astype(np.float32)
    inputs = {"x": x, "ranges": ranges_of(lengths, _MAX_LENGTH)}
    found = load_model(_graph(type_)).bind({}).run(inputs)["y"]
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


def _graph(type_: int) -> onnx.ModelProto:
    rows: list[str | int] = ["texts", "length", _HEADS * _HEAD_SIZE]
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=type_),
        helper.make_node(
            "MultiHeadAttention",
            ["narrow", "narrow", "narrow", "", "ranges"],
            ["attended"],
            domain=MICROSOFT,
            num_heads=_HEADS,
        ),
        helper.make_node("Cast", ["attended"], ["y"], to=TensorProto.FLOAT),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, rows),
        helper.make_tensor_value_info("ranges", TensorProto.INT32, ["ranges"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, rows)]
    graph = helper.make_graph(nodes, "key_ranges", inputs, outputs)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
