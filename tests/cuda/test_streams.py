"""The stand-in's streams: work waits only for earlier work of its stream, and for events.

Source: CUDA Runtime API, "Stream synchronization behavior".
"""

import ctypes
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cuda.libraries import StandIn, build_runtime

DEFAULT = 0
BLOCKING, NON_BLOCKING = 0, 1  # flags of streams


class Streams:
    """Work on the stand-in's streams. ``done``: names of the work that is done."""

    def __init__(self, path: Path) -> None:
        self.cuda, self._library = StandIn(path), ctypes.CDLL(str(path))
        self.done: list[str] = []
        self.cuda.be_late(True)

    def make(self, function: str, *arguments: int) -> int:
        """Calls a function that writes a handle to its first argument."""
        made = ctypes.c_void_p()
        assert self._call(function, ctypes.byref(made), *arguments) == 0
        assert made.value is not None
        return made.value

    def call(self, function: str, *handles: int) -> int:
        return self._call(function, *map(ctypes.c_void_p, handles))

    def work(self, stream: int, name: str) -> None:
        self.cuda.work(stream, partial(self.done.append, name))

    def _call(self, function: str, *arguments: object) -> int:
        error: int = getattr(self._library, function)(*arguments)
        return error


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[Streams]:
    found = Streams(build_runtime(tmp_path))
    yield found
    found.cuda.be_late(False)


def test_a_stream_waits_for_its_own_work_and_for_events(streams: Streams) -> None:
    one, other = (streams.make("cudaStreamCreateWithFlags", NON_BLOCKING) for _ in range(2))
    event = streams.make("cudaEventCreateWithFlags", 0)
    streams.work(one, "first")
    streams.work(DEFAULT, "of the default stream")
    streams.work(other, "second")
    assert streams.call("cudaStreamSynchronize", other) == 0
    assert streams.done == ["second"]
    assert streams.call("cudaEventRecord", event, one) == 0
    streams.work(one, "after the event")
    assert streams.call("cudaStreamWaitEvent", other, event, 0) == 0
    streams.work(other, "third")
    assert streams.call("cudaStreamSynchronize", other) == 0
    assert streams.done == ["second", "first", "third"]
    assert streams.call("cudaDeviceSynchronize") == 0
    assert sorted(streams.done[3:]) == ["after the event", "of the default stream"]


def test_the_default_stream_waits_for_blocking_streams(streams: Streams) -> None:
    blocking = streams.make("cudaStreamCreateWithFlags", BLOCKING)
    streams.work(blocking, "first")
    streams.work(DEFAULT, "second")
    streams.work(blocking, "third")
    assert streams.call("cudaStreamSynchronize", DEFAULT) == 0
    assert streams.done == ["first", "second"]
    assert streams.call("cudaStreamSynchronize", blocking) == 0
    assert streams.done == ["first", "second", "third"]
