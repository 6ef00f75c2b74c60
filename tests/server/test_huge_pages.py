"""Arrays on huge pages: their values, their places, and when they are freed."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from server.runtime.huge_pages import HugePages

MEGABYTE = 1 << 20


def _array(num_bytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, num_bytes, dtype=np.uint8)


def _chunk_of(array: np.ndarray) -> np.ndarray:
    """The array that owns the memory."""
    assert isinstance(array.base, np.ndarray)
    return array.base


@pytest.mark.parametrize("num_bytes", [1, 100, MEGABYTE, 16 * MEGABYTE, 40 * MEGABYTE])
def test_a_copy_is_equal_and_aligned(num_bytes: int) -> None:
    memory, array = HugePages(), _array(num_bytes)
    memory.place(_array(100))
    copy = memory.place(array)
    np.testing.assert_array_equal(copy, array)
    assert copy.ctypes.data % 64 == 0
    assert not np.shares_memory(copy, array)


def test_a_copy_is_contiguous_and_keeps_type_and_shape() -> None:
    matrix = _array(4096).view(np.float32).reshape(32, 32).T
    copy = HugePages().place(matrix)
    assert copy.flags.c_contiguous
    assert (copy.dtype, copy.shape, copy.tobytes()) == (
        matrix.dtype,
        matrix.shape,
        matrix.tobytes(),
    )


def test_small_arrays_share_pages_and_do_not_overlap() -> None:
    memory = HugePages()
    arrays = [_array(num_bytes, num_bytes) for num_bytes in (100, 200, 3000)]
    copies = [memory.place(array) for array in arrays]
    assert len({id(_chunk_of(copy)) for copy in copies}) == 1
    for copy, array in zip(copies, arrays, strict=True):
        np.testing.assert_array_equal(copy, array)
    assert memory.place(arrays[0]).ctypes.data // (2 * MEGABYTE) == copies[0].ctypes.data // (
        2 * MEGABYTE
    )


def test_a_chunk_is_freed_with_its_last_array() -> None:
    memory = HugePages()
    copies = [memory.place(_array(100, seed)) for seed in range(2)]
    chunk = weakref.ref(_chunk_of(copies[0]))
    copies.pop(0)
    gc.collect()
    assert chunk() is not None
    np.testing.assert_array_equal(copies[0], _array(100, 1))
    copies.pop()
    gc.collect()
    assert chunk() is None
    np.testing.assert_array_equal(memory.place(_array(100)), _array(100))


def test_threads_place_arrays_at_the_same_time() -> None:
    memory = HugePages()
    arrays = [_array(300_000, seed) for seed in range(200)]
    with ThreadPoolExecutor(8) as pool:
        copies = list(pool.map(memory.place, arrays))
    for copy, array in zip(copies, arrays, strict=True):
        np.testing.assert_array_equal(copy, array)
