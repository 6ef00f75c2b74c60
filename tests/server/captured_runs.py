"""Repeated runs of a small decoder, on a CPU that stands for a GPU, captured or not."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from server.runtime.contract import (
    BEST_TOKENS,
    IS_LIVE,
    NEXT_NUM_CACHED_TOKENS,
    NEXT_TOKEN_IDS,
    KernelNodes,
)
from server.runtime.cuda.recording import Stream
from server.runtime.devices import Device
from server.runtime.memory import Array
from server.runtime.ort.graph import OrtGraph
from server.runtime.ort.loader import LoadedSession
from tests.cuda.libraries import StandIn
from tests.server.fake_backend import VOCABULARY

LENGTH = 64


class CapturedGraph(OrtGraph):
    """A graph on a CPU whose runs can be captured."""

    def __init__(
        self, session: onnxruntime.InferenceSession, cuda: StandIn, *, records: bool = False
    ) -> None:
        loaded = LoadedSession(session, records, Stream(0))
        super().__init__(loaded, Device("cpu", 0), KernelNodes())
        self._cuda = cuda
        self.num_launches = 0

    def launch(self, io_binding: Any) -> None:
        self.num_launches += 1
        assert self.stream is not None
        self._cuda.work(self.stream.handle, lambda: self.run(io_binding))


class ForgetfulGraph(CapturedGraph):
    """A graph whose recorded runs do nothing."""

    def launch(self, io_binding: Any) -> None:
        del io_binding
        assert self.stream is not None
        self._cuda.work(self.stream.handle, lambda: None)


def decoder(*, feeds_back: bool) -> bytes:
    """A decoder whose next token depends on all cached tokens and their positions.

    ``feeds_back``: it makes the inputs of the next step.
    """
    names: list[str] = []
    nodes: list[onnx.NodeProto] = []

    def add(operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        names.append(name or f"v{len(names)}")
        nodes.append(helper.make_node(operator, inputs, [names[-1]], **attributes))
        return names[-1]

    table = np.random.default_rng(3).normal(size=(VOCABULARY, VOCABULARY)).astype(np.float32)
    constants: dict[str, Array] = {
        "table": table,
        "zero": np.array(0, np.int64),
        "one": np.array(1, np.int64),
        "last": np.array([1], np.int64),
        "inner": np.array([1, 3], np.int64),
        "positions": np.arange(LENGTH, dtype=np.int64),
        "size": np.array(VOCABULARY, np.int64),
    }
    num_rows = add("Gather", add("Shape", "token_ids"), "zero", axis=0)
    rows = add("Unsqueeze", add("Range", "zero", num_rows, "one"), "last")
    cached = add("Unsqueeze", add("Cast", "num_cached_tokens", to=TensorProto.INT64), "last")
    nothing = add("Mul", rows, "zero")
    index = add("Concat", rows, nothing, cached, nothing, axis=1)
    ids = add("Squeeze", add("Cast", "token_ids", to=TensorProto.FLOAT), "last")
    add("ScatterND", "past.key.0", index, ids, name="present.key.0")
    keys = add("Squeeze", "present.key.0", "inner")
    keys = add("Cast", keys, to=TensorProto.INT64)
    seen = add("LessOrEqual", "positions", cached)
    factors = add("Add", add("Mul", "positions", "positions"), "one")
    values = add("Where", seen, add("Mul", add("Add", keys, "one"), factors), "zero")
    hashed = add("Mod", add("ReduceSum", values, "last", keepdims=0), "size")
    add("Gather", "table", hashed, name="logits", axis=0)
    add("ArgMax", "logits", name=BEST_TOKENS, axis=1, keepdims=0)
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", VOCABULARY]),
        helper.make_tensor_value_info(BEST_TOKENS, TensorProto.INT64, ["batch"]),
        helper.make_tensor_value_info("present.key.0", TensorProto.FLOAT, ["batch", 1, LENGTH, 1]),
    ]
    inputs = [
        helper.make_tensor_value_info("token_ids", TensorProto.INT64, ["batch", "length"]),
        helper.make_tensor_value_info("num_cached_tokens", TensorProto.INT32, ["batch"]),
        helper.make_tensor_value_info("past.key.0", TensorProto.FLOAT, ["batch", 1, LENGTH, 1]),
    ]
    if feeds_back:
        constants["zeros"] = np.zeros(1, np.int64)
        live = add("Cast", IS_LIVE, to=TensorProto.INT64)
        kept = add("Mul", add("Max", BEST_TOKENS, "zeros"), live)
        add("Unsqueeze", kept, "last", name=NEXT_TOKEN_IDS)
        # It overwrites an input, so it must come after all that reads it, as the best tokens do.
        none = add("Cast", add("Mul", BEST_TOKENS, "zero"), to=TensorProto.INT32)
        after = add("Add", "num_cached_tokens", IS_LIVE)
        add("Add", after, none, name=NEXT_NUM_CACHED_TOKENS)
        inputs.append(helper.make_tensor_value_info(IS_LIVE, TensorProto.INT32, ["batch"]))
        outputs += [
            helper.make_tensor_value_info(NEXT_TOKEN_IDS, TensorProto.INT64, ["batch", 1]),
            helper.make_tensor_value_info(NEXT_NUM_CACHED_TOKENS, TensorProto.INT32, ["batch"]),
        ]
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "decode", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    data: bytes = model.SerializeToString()
    return data


def continuation(prompt: int, count: int) -> list[int]:
    """The tokens of :func:`decoder` after a prompt of one token, by NumPy."""
    table = np.random.default_rng(3).normal(size=(VOCABULARY, VOCABULARY)).astype(np.float32)
    tokens: list[int] = [prompt]
    for _ in range(count):
        value = sum((token + 1) * (n * n + 1) for n, token in enumerate(tokens))
        tokens.append(int(table[value % VOCABULARY].argmax()))
    return tokens


def load_decoder(data: bytes) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


def names_of(calls: Sequence[str], *without: str) -> list[str]:
    """Calls but those with these names."""
    return [name for name in calls if name not in without]
