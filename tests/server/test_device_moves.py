"""Moves in device memory by strided copies: the same content as in host memory."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.runtime.cuda import copies, cudart
from server.runtime.cuda.device_memory import DeviceMemory
from server.runtime.host_memory import HostMemory
from server.runtime.memory import Array, Layout, Memory, Move, Tensor, late_moves
from server.runtime.ort.backend import OrtBackend
from tests.server.fake_backend import host_view

NUM_ROWS, LENGTH = 6, 9
LAYOUTS = {
    "key": Layout(NUM_ROWS, (2, LENGTH, 4), np.dtype(np.float32), has_tokens=True),
    "scale": Layout(NUM_ROWS, (3, LENGTH, 1), np.dtype(np.float16), has_tokens=True),
    "number": Layout(NUM_ROWS, (1, LENGTH, 3), np.dtype(np.int8), has_tokens=True),
    "recurrent": Layout(NUM_ROWS, (5,), np.dtype(np.float32), has_tokens=False),
    "matrix": Layout(NUM_ROWS, (2, 3), np.dtype(np.float16), has_tokens=False),
}
NAMES = tuple(LAYOUTS)


class CountingBackend(OrtBackend):
    """A CPU that stands for a GPU, and counts the copies of each group."""

    def __init__(self) -> None:
        super().__init__("cpu", 1, has_device_memory=True)
        self.num_copies: list[int] = []

    def copy(self, groups: Sequence[Array]) -> None:
        self.num_copies += map(len, groups)
        super().copy(groups)


@pytest.fixture(scope="module")
def device() -> CountingBackend:
    return CountingBackend()


def fill(memory: Memory, seed: int) -> None:
    """Writes small numbers, equal for equal seeds, to all tensors."""
    rng = np.random.default_rng(seed)
    for name, layout in LAYOUTS.items():
        view = host_view(memory.rows(name, 0, NUM_ROWS))
        view[...] = rng.integers(1, 120, view.shape).astype(layout.dtype)


def contents(memory: Memory) -> dict[str, Array]:
    return {name: memory.read_all(name).copy() for name in LAYOUTS}


def assert_same(one: Mapping[str, Array], other: Mapping[str, Array]) -> None:
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


@st.composite
def moves(draw: st.DrawFn) -> Move:
    num_rows = draw(st.integers(1, 2))
    first = st.integers(0, NUM_ROWS - num_rows)
    source = draw(first)
    target = draw(first.filter(lambda row: abs(row - source) >= num_rows))
    start, stop = sorted(draw(st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH))))
    return Move(source, target, start, stop, num_rows)


@settings(max_examples=300)
@given(
    batch=st.lists(moves(), min_size=1, max_size=3),
    names=st.sets(st.sampled_from(NAMES), min_size=1),
)
def test_moves_are_those_of_host_memory(device, batch, names) -> None:
    """Also if a move reads what an earlier one writes."""
    targets = [move.target + i for move in batch for i in range(move.num_rows)]
    does_order_matter = len(set(targets)) < len(targets)
    if does_order_matter or sum(batch[index].num_rows for index in late_moves(batch)) > 1:
        batch = batch[:1]
    host, on_device = HostMemory(LAYOUTS), DeviceMemory(device, LAYOUTS)
    for memory in (host, on_device):
        fill(memory, seed=1)
        memory.move(sorted(names), batch)
    assert_same(contents(on_device), contents(host))


def test_writes_are_those_of_host_memory(device: CountingBackend) -> None:
    """Writes outputs with fewer tokens than the slots have."""
    rng = np.random.default_rng(5)
    sources = {}
    for name, layout in LAYOUTS.items():
        heads, _, width = layout.shape if layout.has_tokens else (0, 0, 0)
        shape = (heads, 4, width) if layout.has_tokens else layout.shape
        sources[name] = Tensor.of(rng.integers(1, 120, (3, *shape)).astype(layout.dtype))
    host, on_device = HostMemory(LAYOUTS), DeviceMemory(device, LAYOUTS)
    for memory in (host, on_device):
        fill(memory, seed=6)
        memory.write(sources, [Move(2, 0, 0, 4), Move(0, 3, 0, 1), Move(1, 4, 0, 3)])
    assert_same(contents(on_device), contents(host))


@pytest.mark.parametrize(
    ("batch", "num_copies"),
    [
        ([Move(0, 1, 0, 5)], [1]),
        ([Move(0, 1, 0, 5), Move(0, 2, 3, 4)], [2]),
        ([Move(1, 0, 0, 5), Move(2, 1, 0, 5)], [1, 1]),
        ([Move(0, 1, 0, 5), Move(1, 0, 0, 5)], [1, 1, 1]),
        ([Move(0, 1, 0, 5), Move(1, 2, 2, 7)], [1, 2]),
        ([Move(1, 0, 0, 5), Move(2, 1, 0, 8), Move(0, 2, 0, 6)], [1, 1, 1, 1]),
        ([Move(0, 4, 0, 5, 2), Move(5, 2, 0, 5)], [1, 2]),
    ],
    ids=["one", "one source", "reads first", "swap", "chain", "cycle", "several rows"],
)
def test_moves_are_copied_in_groups(
    device: CountingBackend, batch: list[Move], num_copies: list[int]
) -> None:
    host, on_device = HostMemory(LAYOUTS), DeviceMemory(device, LAYOUTS)
    device.num_copies.clear()
    for memory in (host, on_device):
        fill(memory, seed=2)
        memory.move(NAMES, batch)
    assert device.num_copies == [len(NAMES) * count for count in num_copies]
    assert_same(contents(on_device), contents(host))


@pytest.mark.parametrize(
    "batch",
    [
        [Move(0, 1, 0, 5), Move(1, 2, 0, 5), Move(2, 3, 0, 5)],
        [Move(0, 4, 0, 5), Move(3, 1, 0, 5, 2)],
    ],
    ids=["two read late", "several rows read late"],
)
def test_only_one_row_may_be_read_after_it_is_written(
    device: CountingBackend, batch: list[Move]
) -> None:
    memory = DeviceMemory(device, LAYOUTS)
    fill(memory, seed=2)
    before = contents(memory)
    with pytest.raises(ValueError, match="more than one row is read after it is written"):
        memory.move(NAMES, batch)
    assert_same(contents(memory), before)


def test_a_move_of_nothing_copies_nothing(device: CountingBackend) -> None:
    memory = DeviceMemory(device, LAYOUTS)
    device.num_copies.clear()
    memory.move((), [Move(0, 1, 0, 5)])
    memory.move(NAMES, [])
    assert not device.num_copies


def test_a_whole_tensor_is_read_as_it_is(device: CountingBackend) -> None:
    memory = DeviceMemory(device, LAYOUTS)
    fill(memory, seed=3)
    for name, array in contents(memory).items():
        assert array.dtype == LAYOUTS[name].dtype
        np.testing.assert_array_equal(array, host_view(memory.rows(name, 0, NUM_ROWS)))


def test_a_row_is_zeroed(device: CountingBackend) -> None:
    memory = DeviceMemory(device, LAYOUTS)
    fill(memory, seed=4)
    expected = contents(memory)
    memory.zero(("key", "recurrent", "matrix"), 2)
    for name in ("key", "recurrent", "matrix"):
        expected[name][2] = 0
    assert_same(contents(memory), expected)


def test_slots_that_do_not_fit_are_told_with_their_size(device: CountingBackend) -> None:
    layout = Layout(1 << 32, (2, 1 << 10, 64), np.dtype(np.float16), has_tokens=True)
    with pytest.raises(MemoryError, match=r"slots need 1.13e\+06 GB of memory: use fewer --slots"):
        DeviceMemory(device, {"key": layout})


class HostCuda:
    """The CUDA runtime, with device memory in host memory. ``error``: of all later calls."""

    def __init__(self) -> None:
        self.error = 0
        self.calls: list[str] = []

    def cudaSetDevice(self, index: int) -> int:  # noqa: N802
        self.calls.append(f"device {index}")
        return self.error

    def cudaGetLastError(self) -> int:  # noqa: N802
        return self.error

    def cudaGetErrorString(self, error: int) -> bytes:  # noqa: N802
        return f"text of {error}".encode()

    def cudaMemcpy2DAsync(  # noqa: N802
        self,
        target: int,
        target_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        height: int,
        kind: int,
        stream: Any,
    ) -> int:
        assert (kind, stream) == (3, None), "from device to device, on the default stream"
        self.calls.append("copy")
        for row in range(height):
            ctypes.memmove(target + row * target_pitch, source + row * source_pitch, width)
        return self.error

    def cudaMemsetAsync(  # noqa: N802
        self, target: int, value: int, num_bytes: int, stream: Any
    ) -> int:
        assert stream is None
        self.calls.append("set")
        ctypes.memset(target, value, num_bytes)
        return self.error

    def cudaStreamQuery(self, stream: Any) -> int:  # noqa: N802
        assert stream is None
        self.calls.append("wait")
        return self.error


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> HostCuda:
    runtime = HostCuda()
    monkeypatch.setattr(cudart, "_library", lambda: runtime)
    return runtime


def first_halves(array: Array) -> Array:
    """Copies the first two of each four bytes ``[.., 4]`` of the first half to the second."""
    first, half = array.ctypes.data, array.nbytes // 2
    return np.array([(first, first + half, 2, 4, 4, half // 4)])


def test_cuda_copies_on_the_given_device_and_waits(
    cuda: HostCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel cannot run: here, without the driver."""
    monkeypatch.setattr(copies, "_function", lambda: None)
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    expected = array.copy()
    expected[1, :, :2] = array[0, :, :2]
    copies.copy(2, [first_halves(array)])
    np.testing.assert_array_equal(array, expected)
    assert cuda.calls == ["device 2", "copy", "wait"]


def test_cuda_zeroes_on_the_given_device_and_waits(cuda: HostCuda) -> None:
    array = np.ones(10, np.uint8)
    cudart.zero(1, [(array.ctypes.data, 3), (array.ctypes.data + 8, 2)])
    assert array.tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 0, 0]
    assert cuda.calls == ["device 1", "set", "set", "wait"]


def test_finished_work_is_found_by_a_slow_thread(
    cuda: HostCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that another thread held up for longer than it polls."""
    monkeypatch.setattr(cudart, "_SHORT_SECONDS", 0.0)
    cudart.wait_for_short_work()
    assert cuda.calls == ["wait"]


def test_errors_of_cuda_are_raised(cuda: HostCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.error = 700
    with pytest.raises(RuntimeError, match="error 700"):
        copies.copy(0, [first_halves(np.zeros(8, np.uint8))])
    with pytest.raises(RuntimeError, match="error 700"):
        cudart.zero(0, [(np.zeros(8, np.uint8).ctypes.data, 8)])
    assert cuda.calls == ["device 0"] * 2, "nothing is changed after an error"
    monkeypatch.setattr(cudart, "_library", lambda: None)
    with pytest.raises(RuntimeError, match="not loaded"):
        copies.copy(0, [])
    with pytest.raises(RuntimeError, match="not loaded"):
        cudart.zero(0, [])
