"""Measures a machine's memory bandwidth (bytes/s) and peak matrix throughput (operations/s)."""

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from server.runtime.ort.backend import OrtBackend

_READ_BYTES = 128 << 20  # per thread
_SIZE = 1536  # rows and columns of each matrix
_REPETITIONS = 7
_MATRICES = {
    "fp32": (np.float32, np.float32, "MatMul", TensorProto.FLOAT, TensorProto.FLOAT),
    "int8": (np.uint8, np.uint8, "MatMulInteger", TensorProto.UINT8, TensorProto.INT32),
}


def measure_ceilings(num_threads: int) -> dict[str, Any]:
    """The best of several repetitions on ``num_threads`` cores.

    Returns:
        ``bytes_per_second``: memory bandwidth of sequential reads that exceed all caches.
        ``operations_per_second`` by precision: throughput of the product of two large square
        matrices with ONNX Runtime's fp32 and int8 kernels, where a multiply-accumulate (MAC)
        counts as two operations.
    """
    return {
        "bytes_per_second": _bandwidth(num_threads),
        "operations_per_second": {
            precision: _matrix_rate(precision, num_threads) for precision in _MATRICES
        },
    }


def _bandwidth(num_threads: int) -> float:
    arrays = [np.ones(_READ_BYTES // 4, np.float32) for _ in range(num_threads)]

    def read_all() -> None:
        # NumPy releases the interpreter lock in max().
        threads = [threading.Thread(target=array.max) for array in arrays]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return num_threads * _READ_BYTES / _best_seconds(read_all)


def _matrix_rate(precision: str, num_threads: int) -> float:
    left, right, operator, in_type, out_type = _MATRICES[precision]
    shape = (_SIZE, _SIZE)
    random = np.random.default_rng(0)
    weight = random.integers(0, 100, shape).astype(right)
    graph = helper.make_graph(
        [helper.make_node(operator, ["left", "right"], ["out"])],
        "matrix",
        [helper.make_tensor_value_info("left", in_type, ["rows", _SIZE])],
        [helper.make_tensor_value_info("out", out_type, ["rows", _SIZE])],
        [onnx.numpy_helper.from_array(weight, "right")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "matrix.onnx"
        onnx.save(model, str(path))
        bound = OrtBackend("cpu", num_threads).load(path, ()).bind({})
    inputs = {"left": random.integers(0, 100, shape).astype(left)}
    return 2 * _SIZE**3 / _best_seconds(lambda: bound.run(inputs))


def _best_seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPETITIONS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
