"""The kernel that copies parts of device memory, in the emulator."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server import installation
from server.runtime.cuda import copies, cudart
from server.runtime.cuda.device_memory import DeviceMemory
from server.runtime.host_memory import HostMemory
from server.runtime.kernels.library import load_function
from server.runtime.memory import Array, Layout, Move, Tensor
from server.runtime.ort.backend import OrtBackend
from tests.server.cuda_operators import NEEDS_LIBRARY
from tests.server.fake_backend import host_view

pytestmark = NEEDS_LIBRARY


class NoCopies:
    """A CUDA runtime that can wait, but not copy."""

    def cudaSetDevice(self, index: int) -> int:  # noqa: N802
        assert index == 0
        return 0

    def cudaStreamQuery(self, stream: Any) -> int:  # noqa: N802
        assert stream is None
        return 0


class EmulatedBackend(OrtBackend):
    """A CPU whose device memory is copied by the kernel."""

    def __init__(self) -> None:
        super().__init__("cpu", 1, has_device_memory=True)

    def copy(self, groups: Sequence[Array]) -> None:
        copies.copy(0, groups)


@pytest.fixture(autouse=True)
def kernel(emulated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    function = load_function("triune_copy", ctypes.c_char_p, *arguments, library=emulated)
    monkeypatch.setattr(copies, "_function", lambda: function)
    monkeypatch.setattr(cudart, "_library", NoCopies)


def parts_of(memory: Array, offset: int, width: int, pitch: int, num_parts: int) -> Array:
    """``[num_parts, width]``: the bytes that a copy reads or writes."""
    return memory[offset : offset + num_parts * pitch].reshape(num_parts, pitch)[:, :width]


@pytest.mark.parametrize("num_copies", [0, 1, 7, 80, 81, 230])
@pytest.mark.parametrize(
    ("offset", "width", "source_pitch", "target_pitch"),
    [
        *((0, 32, 64, 64), (0, 16, 16, 16), (16, 48, 48, 64), (0, 32, 64, 32), (0, 24, 32, 32)),
        *((8, 32, 64, 64), (0, 32, 40, 48), (0, 32, 48, 40), (3, 5, 7, 6)),
    ],
)
def test_parts_are_copied(
    num_copies: int, offset: int, width: int, source_pitch: int, target_pitch: int
) -> None:
    """Aligned to 16 bytes or not; in one launch or several. The bytes between stay."""
    num_parts = 3
    size = num_parts * max(source_pitch, target_pitch) + 16
    size += -size % 16
    rng = np.random.default_rng(0)
    memory = rng.integers(0, 256, (2, num_copies, size), np.uint8)
    expected = memory.copy()
    group = np.zeros((num_copies, len(copies.FIELDS)), np.int64)
    for index in range(num_copies):
        source, target = (half[index].ctypes.data + offset for half in memory)
        group[index] = (source, target, width, source_pitch, target_pitch, num_parts)
        written = parts_of(expected[1, index], offset, width, target_pitch, num_parts)
        written[...] = parts_of(expected[0, index], offset, width, source_pitch, num_parts)
    copies.copy(0, [group])
    np.testing.assert_array_equal(memory, expected)


def test_large_copies_are_shared_by_blocks() -> None:
    """One of 32 blocks whose threads copy several units, beside a short one and an empty one."""
    rng = np.random.default_rng(1)
    memory = rng.integers(0, 256, (2, 700_000), np.uint8)
    first, second = (half.ctypes.data for half in memory)
    rows = [
        (first, second, 8_000, 10_000, 10_000, 69),
        (first + 690_000, second + 690_000, 16, 16, 16, 1),
        (first, second, 0, 16, 16, 3),
    ]
    group = np.array(rows)
    expected = memory.copy()
    source, target = (half[:690_000].reshape(69, -1) for half in (memory[0], expected[1]))
    target[:, :8_000] = source[:, :8_000]
    expected[1, 690_000:690_016] = memory[0, 690_000:690_016]
    copies.copy(0, [group])
    np.testing.assert_array_equal(memory, expected)


def test_slots_are_moved() -> None:
    """Many at once, as when sequences end together; a swap; and what an encoder returned."""
    layouts = {
        "key": Layout(50, (2, 20, 8), np.dtype(np.float16), has_tokens=True),
        "scale": Layout(50, (2, 20, 1), np.dtype(np.float16), has_tokens=True),
        "state": Layout(50, (24,), np.dtype(np.float32), has_tokens=False),
    }
    moves = [Move(49 - row, row, 0, 1 + row % 20) for row in range(20)]
    swap = [Move(0, 1, 0, 20), Move(1, 0, 0, 20)]
    rng = np.random.default_rng(2)
    encoded: dict[str, Array] = {
        "key": rng.standard_normal((3, 2, 7, 8)).astype(np.float16),
        "scale": rng.standard_normal((3, 2, 7, 1)).astype(np.float16),
        "state": rng.standard_normal((3, 24)).astype(np.float32),
    }
    sources = {name: Tensor.of(array) for name, array in encoded.items()}
    host, on_device = HostMemory(layouts), DeviceMemory(EmulatedBackend(), layouts)
    for memory in (host, on_device):
        rng = np.random.default_rng(3)
        for name, layout in layouts.items():
            view = host_view(memory.rows(name, 0, layout.num_rows))
            view[...] = rng.integers(1, 120, view.shape).astype(layout.dtype)
        memory.move(list(layouts), moves)
        memory.move(list(layouts), swap)
        memory.write(sources, [Move(0, 5, 0, 7), Move(2, 1, 0, 3)])
    for name in layouts:
        np.testing.assert_array_equal(on_device.read_all(name), host.read_all(name), err_msg=name)


def test_copies_that_are_too_large_are_left_to_cuda() -> None:
    """Nothing is copied, so no memory is read: the addresses are none."""
    group = np.array([(0, 0, 1 << 20, 1 << 20, 1 << 20, 1 << 11)])
    with pytest.raises(AttributeError, match="cudaMemcpy2DAsync"):
        copies.copy(0, [group])


@pytest.mark.skipif(installation._driver_problem() is None, reason="this machine has a driver")
def test_a_kernel_that_cannot_be_loaded_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a driver, the library says so, and CUDA's own copies are tried."""
    monkeypatch.undo()
    assert copies._function() is None
