"""Slot tensors in host and device memory: move, zero, and write encoder outputs."""

import threading
from collections.abc import Mapping

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.runtime.host_memory import HostMemory
from server.runtime.kernels import copy_rows
from server.runtime.memory import Array, Layout, Memory, Move, Tensor, late_moves
from tests.server.fake_backend import host_view
from tests.server.worker_harness import MEMORIES

NUM_ROWS, LENGTH = 5, 6
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16, np.int8]


def layouts(dtype: type) -> dict[str, Layout]:
    """Tensors with and without a token axis; one has an odd number of bytes per row."""
    kind = np.dtype(dtype)
    return {
        "key": Layout(NUM_ROWS, (2, LENGTH, 4), kind, has_tokens=True),
        "value": Layout(NUM_ROWS, (2, LENGTH, 4), kind, has_tokens=True),
        "one_wide": Layout(NUM_ROWS, (1, LENGTH + 2, 1), kind, has_tokens=True),
        "state": Layout(NUM_ROWS, (3,), kind, has_tokens=False),
        "matrix": Layout(NUM_ROWS, (2, 5), kind, has_tokens=False),
    }


def fill(memory: Memory, tensor_layouts: Mapping[str, Layout]) -> dict[str, Array]:
    """Fills each tensor with 0 … 112, repeated, and returns copies."""
    expected = {}
    for name, layout in tensor_layouts.items():
        array = host_view(memory.rows(name, 0, NUM_ROWS))
        assert not array.any(), "memory is zero at first"
        array[...] = np.arange(array.size).reshape(array.shape) % 113
        expected[name] = array.copy()
        assert array.shape == (NUM_ROWS, *layout.shape)
    return expected


def assert_contents(memory: Memory, expected: Mapping[str, Array]) -> None:
    for name, array in expected.items():
        np.testing.assert_array_equal(host_view(memory.rows(name, 0, NUM_ROWS)), array)


@st.composite
def move_lists(draw: st.DrawFn) -> list[Move]:
    """Lists of moves that write each row at most once and may read it several times.

    At most one reads a row that one before it writes.
    """
    targets = draw(st.lists(st.integers(0, NUM_ROWS - 1), unique=True, max_size=NUM_ROWS))
    moves = []
    for target in targets:
        start = draw(st.integers(0, LENGTH))
        stop = draw(st.integers(start, LENGTH))
        moves.append(Move(draw(st.integers(0, NUM_ROWS - 1)), target, start, stop))
        if len(late_moves(moves)) > 1:
            moves.pop()
    return moves


@pytest.mark.parametrize("memory_kind", MEMORIES)
@settings(max_examples=60)
@given(moves=move_lists(), dtype=st.sampled_from(DTYPES))
def test_moves_read_all_sources_before_writing(
    memory_kind: str, moves: list[Move], dtype: type
) -> None:
    tensor_layouts = layouts(dtype)
    memory = MEMORIES[memory_kind](tensor_layouts)
    expected = fill(memory, tensor_layouts)
    before = {name: array.copy() for name, array in expected.items()}
    memory.move(list(tensor_layouts), moves)
    for name, layout in tensor_layouts.items():
        for source, target, start, stop, _ in moves:
            part = (slice(None), slice(start, stop)) if layout.has_tokens else ()
            expected[name][(target, *part)] = before[name][(source, *part)]
    assert_contents(memory, expected)


@pytest.mark.parametrize("memory_kind", MEMORIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_moves_several_rows_in_one_call(memory_kind: str, dtype: type) -> None:
    tensor_layouts = layouts(dtype)
    memory = MEMORIES[memory_kind](tensor_layouts)
    expected = fill(memory, tensor_layouts)
    memory.move(["state", "matrix"], [Move(0, 3, num_rows=2)])
    for name in ("state", "matrix"):
        expected[name][3:5] = expected[name][0:2]
    assert_contents(memory, expected)


@pytest.mark.skipif(copy_rows._COPY_ROWS is None, reason="the library is not built")
@pytest.mark.parametrize("can_start", [True, False])
def test_moves_many_tokens_in_two_threads(can_start: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or in one, if no thread can be started. The tensors are of an odd number."""
    started: list[str] = []

    def start(thread: threading.Thread) -> None:
        started.append(thread.name)
        if not can_start:
            raise RuntimeError("can't start new thread")
        original(thread)

    original = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    length = 4000
    tensor_layouts = {
        str(index): Layout(NUM_ROWS, (2, length, 1 + index), np.dtype(np.int8), has_tokens=True)
        for index in range(3)
    }
    memory = HostMemory(tensor_layouts)
    expected = fill(memory, tensor_layouts)
    memory.move(list(tensor_layouts), [Move(1, 4, 3, length - 5)])
    assert started == ["copy-rows"]
    for array in expected.values():
        array[4, :, 3 : length - 5] = array[1, :, 3 : length - 5]
    assert_contents(memory, expected)


@pytest.mark.parametrize("memory_kind", MEMORIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_zeroing_a_row_clears_nan_and_infinity(memory_kind: str, dtype: type) -> None:
    tensor_layouts = layouts(dtype)
    memory = MEMORIES[memory_kind](tensor_layouts)
    expected = fill(memory, tensor_layouts)
    if np.dtype(dtype) != np.int8:
        for name in tensor_layouts:
            host_view(memory.rows(name, 2, 1))[...] = np.nan
    memory.zero(list(tensor_layouts), 2)
    for array in expected.values():
        array[2] = 0
    assert_contents(memory, expected)


@pytest.mark.parametrize("memory_kind", MEMORIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_writes_encoder_outputs_to_rows(memory_kind: str, dtype: type) -> None:
    tensor_layouts = layouts(dtype)
    memory = MEMORIES[memory_kind](tensor_layouts)
    expected = fill(memory, tensor_layouts)
    encoded: dict[str, Array] = {
        name: np.random.default_rng(7).integers(0, 99, (2, 2, 4, 4)).astype(dtype)
        for name in ("key", "value")
    }
    sources = {name: Tensor.of(array) for name, array in encoded.items()}
    memory.write(sources, [Move(0, 3, 0, 2), Move(1, 1, 0, 4)])
    for name, array in encoded.items():
        expected[name][3, :, :2] = array[0, :, :2]
        expected[name][1, :, :4] = array[1, :, :4]
    assert_contents(memory, expected)


@pytest.mark.parametrize("memory_kind", MEMORIES)
def test_copies_preserve_nan_bits(memory_kind: str) -> None:
    """Copies preserve every bit, also of NaN."""
    layout = {"key": Layout(2, (1, 2, 4), np.dtype(np.float16), has_tokens=True)}
    memory = MEMORIES[memory_kind](layout)
    bits = np.arange(0x7C01, 0x7C09, dtype=np.uint16).reshape(1, 2, 4)
    host_view(memory.rows("key", 0, 1))[0] = bits.view(np.float16)
    memory.move(["key"], [Move(0, 1, 0, 2)])
    np.testing.assert_array_equal(host_view(memory.rows("key", 1, 1))[0].view(np.uint16), bits)
