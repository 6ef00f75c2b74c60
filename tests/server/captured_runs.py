"""Repeated runs of a small decoder, on a CPU that stands for a GPU, captured or not."""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
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
from tests.server.fake_backend import VOCABULARY

LENGTH = 64
_CALLBACK = ctypes.CFUNCTYPE(None)


class FakeCuda:
    """The library ``fake_cudart.cc``."""

    def __init__(self, path: Path) -> None:
        self.path, self._library = path, ctypes.CDLL(str(path))
        self._library.FakeWork.argtypes = [
            *(ctypes.c_void_p, _CALLBACK, ctypes.c_int, ctypes.c_int64)
        ]
        self._library.FakeCalls.restype = ctypes.c_char_p
        self._kept: list[Any] = []

    def work(self, stream: int, run: Callable[[], object], type_: int = 0, kind: int = 0) -> None:
        """Puts a function on a stream, as a node of a type; ``kind``: of a copy."""
        callback = _CALLBACK(lambda: void(run()))
        self._kept.append(callback)
        self._library.FakeWork(stream, callback, type_, kind)

    def forget_work(self) -> None:
        """After the last graph that has it."""
        self._kept.clear()

    def fail(self, function: str, error: int) -> None:
        self._library.FakeFail(function.encode(), error)

    def be_late(self, late: bool) -> None:
        """Whether streams work as late as possible: when an event after it is waited for."""
        self._library.FakeBeLate(late)

    def reset(self) -> None:
        """Forgets all failures and calls."""
        self._library.FakeReset()

    def calls(self) -> list[str]:
        """The calls since the last ``calls`` or ``reset``."""
        found: bytes = self._library.FakeCalls()
        names = [name.removeprefix("cuda") for name in found.decode().split()]
        self.reset()
        return names

    @property
    def num_alive(self) -> int:
        """Objects of CUDA that are not destroyed."""
        number: int = self._library.FakeNumAlive()
        return number


def void(_: object) -> None:
    """A callback returns nothing."""


class CapturedGraph(OrtGraph):
    """A graph on a CPU whose runs can be captured."""

    def __init__(
        self, session: onnxruntime.InferenceSession, cuda: FakeCuda, *, records: bool = False
    ) -> None:
        loaded = LoadedSession(session, records, Stream(0))
        super().__init__(loaded, Device("cpu", 0), KernelNodes())
        self._cuda = cuda
        self.num_launches = 0

    def launch(self, io_binding: Any) -> None:
        self.num_launches += 1
        assert self.stream is not None
        self._cuda.work(self.stream.handle, lambda: self.run(io_binding))


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
