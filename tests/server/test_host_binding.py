"""Arrays that are bound to a graph in host memory: read in place, and given again."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from server.runtime.contract import Backend
from server.runtime.memory import Layout, Tensor
from server.runtime.ort.backend import OrtBackend
from server.runtime.thread_switching import ThreadSwitchingBackend


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A graph ``y = x + scalar``."""
    shape = ["rows", "columns"]
    made = helper.make_graph(
        [helper.make_node("Add", ["x", "scalar"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.INT64, shape),
            helper.make_tensor_value_info("scalar", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.INT64, shape)],
    )
    file = tmp_path / "a" / "1" / "graph.onnx"
    file.parent.mkdir(parents=True)
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=10), file)
    return file


def test_reads_arrays_in_place(path: Path) -> None:
    """With the values that they have when a run begins, whichever copy of the graph runs."""
    is_alone = [False]
    per_lane, all_cores = OrtBackend("cpu", 1), OrtBackend("cpu", 2)
    switching: Backend = ThreadSwitchingBackend(
        per_lane, all_cores, lambda: is_alone[0], max_bytes=1 << 20
    )
    bound = switching.load(path, ()).bind({})
    x, scalar = np.arange(6).reshape(2, 3), np.array(1)
    for number in range(4):
        is_alone[0] = number % 2 == 1
        x += 10
        scalar[...] = number
        expected = x + number
        np.testing.assert_array_equal(bound.run({"x": x, "scalar": scalar})["y"], expected)


@pytest.mark.parametrize("kind", ["transposed", "read-only", "empty", "tensor", "new"])
def test_takes_arrays_of_every_kind(path: Path, kind: str) -> None:
    bound = OrtBackend("cpu", 1).load(path, ()).bind({})
    values = np.arange(6).reshape(3, 2)
    for number in range(3):
        x = values if kind == "transposed" else values.copy()
        x += number
        if kind == "empty":
            x = np.zeros((0, 2), np.int64)
        given = x.T if kind == "transposed" else x
        if kind == "read-only":
            given.flags.writeable = False
        inputs = {"x": Tensor.of(given) if kind == "tensor" else given, "scalar": np.array(5)}
        for _ in range(2):
            np.testing.assert_array_equal(bound.run(inputs)["y"], given + 5)


def test_a_view_that_is_given_again_is_read_again(path: Path) -> None:
    """One that is not contiguous is copied for each run."""
    bound = OrtBackend("cpu", 1).load(path, ()).bind({})
    array = np.arange(6).reshape(3, 2)
    view, scalar = array.T, np.array(0)
    for _ in range(3):
        array += 1
        np.testing.assert_array_equal(bound.run({"x": view, "scalar": scalar})["y"], view)


def test_goes_on_after_an_input_of_the_wrong_type(path: Path) -> None:
    bound = OrtBackend("cpu", 1).load(path, ()).bind({})
    x, scalar = np.arange(6).reshape(2, 3), np.array(2)
    wrong = np.ones((2, 3), np.float32)
    for _ in range(2):
        with pytest.raises(Exception, match="type"):
            bound.run({"x": wrong, "scalar": scalar})
        np.testing.assert_array_equal(bound.run({"x": x, "scalar": scalar})["y"], x + 2)


@pytest.mark.parametrize("kind", ["host", "device", "switching"])
def test_a_repeated_run_is_given_other_inputs(path: Path, kind: str) -> None:
    backend: Backend = OrtBackend("cpu", 1, has_device_memory=kind == "device")
    if kind == "switching":
        backend = ThreadSwitchingBackend(backend, OrtBackend("cpu", 2), lambda: True, 1 << 20)
    layout = Layout(4, (3,), np.dtype(np.int64), has_tokens=False)
    memory = backend.memory({"y": layout})
    inputs = {"x": np.zeros((2, 3), np.int64), "scalar": np.array(5), "unknown": np.zeros(1)}
    rows = memory.rows("y", 1, 2)
    run = backend.load(path, ()).bind({}).repeat_into(inputs, {"y": rows}, "y", feeds_back=True)
    assert not run.feeds_back
    assert not run.record(inputs)
    for number in range(3):
        inputs["x"][:] = number
        result = run.start(inputs).wait()
        np.testing.assert_array_equal(result, np.full((2, 3), number + 5))
        np.testing.assert_array_equal(memory.read_all("y")[1:3], result)
    inputs["x"][:] = 9
    run.start(inputs).drop()
    np.testing.assert_array_equal(memory.read_all("y")[1:3], np.full((2, 3), 7))
    assert (memory.read_all("y")[[0, 3]] == 0).all()


def test_a_repeated_run_may_return_nothing(path: Path) -> None:
    backend = OrtBackend("cpu", 1)
    inputs = {"x": np.ones((2, 3), np.int64), "scalar": np.array(5)}
    y = np.zeros((2, 3), np.int64)
    run = backend.load(path, ()).bind({}).repeat_into(inputs, {"y": Tensor.of(y)})
    assert run.start(inputs).wait() is None
    np.testing.assert_array_equal(y, np.full((2, 3), 6))
    with pytest.raises(ValueError, match="next inputs"):
        run.start(None)
