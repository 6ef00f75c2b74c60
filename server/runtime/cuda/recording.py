"""Captures runs once as CUDA graphs, and replays them without waiting for each.

ONNX Runtime can record a run itself, but its replay waits until the device is done. Here a session
runs on our own :class:`Stream`, which is captured during the run. The host launches a
:class:`Recording`, continues, and waits for the copy of one result when it needs it.

A recording uses addresses in the session's arena that are free between its replays. So a session
must keep its memory (no shrinkage), and no run may rely on values that another one left in the
arena: all runs of a session are on one stream, one after the other, and outputs that outlive the
next run have separate memory.

Source: CUDA Runtime API, "Stream Management" and "Graph Management".
"""

import ctypes
import weakref
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from server.runtime.cuda.cudart import CudaError, call
from server.runtime.memory import Array, Tensor

_NON_BLOCKING = 1  # cudaStreamNonBlocking: work on the default stream does not delay the stream
_THREAD_LOCAL = 1  # cudaStreamCaptureModeThreadLocal: other threads may allocate meanwhile
_DISABLE_TIMING = 2  # cudaEventDisableTiming; waiting for it polls, which is fastest
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
_MEMCPY_NODE, _HOST_NODE = 1, 3  # values of cudaGraphNodeType
# Words of cudaMemcpy3DParms: for source and target each an array (1), a position (3) and a pitched
# pointer (4); then an extent (3) and the kind, an int.
_COPY_WORDS, _KIND = 20, 19


class HostMemoryError(CudaError):
    """Replays of a run would read host memory or call host functions."""


class Stream:
    """A CUDA stream, destroyed with the object.

    ``device``: the GPU's number. ``handle``: the stream's address.

    Raises:
        CudaError: CUDA cannot create the stream.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self.activate()
        self.handle = _new("cudaStreamCreateWithFlags", _NON_BLOCKING)
        _on_end(self, "cudaStreamDestroy", self.handle)

    def activate(self) -> None:
        """Makes the stream's GPU the thread's current device: a thread may serve several GPUs."""
        call("cudaSetDevice", self.device)

    def synchronize(self) -> None:
        """Waits for all work on the stream."""
        call("cudaStreamSynchronize", self.handle)

    def capture(self, run: Callable[[], object]) -> int:
        """Captures the work that ``run`` puts on the stream, without executing it.

        Returns:
            The handle of an executable graph.

        Raises:
            CudaError: CUDA cannot capture the work.
            HostMemoryError: the work must not be replayed.
            Exception: ``run`` raised it. The stream can still be used.
        """
        self.activate()
        self.synchronize()
        call("cudaStreamBeginCapture", self.handle, _THREAD_LOCAL)
        graph = ctypes.c_void_p()
        try:
            run()
        except BaseException:
            with suppress(CudaError):
                self._end_capture(graph)
            _destroy_graph(graph)
            raise
        try:
            self._end_capture(graph)
            _check_nodes(graph)
            return _new("cudaGraphInstantiate", graph, 0)
        finally:
            _destroy_graph(graph)

    def _end_capture(self, graph: ctypes.c_void_p) -> None:
        call("cudaStreamEndCapture", self.handle, ctypes.byref(graph))


def pinned_words(count: int) -> Array:
    """Allocates ``[count]`` int64 zeros in pinned host memory, for asynchronous copies.

    Raises:
        CudaError: CUDA cannot allocate the memory.
    """
    pointer = _new("cudaHostAlloc", max(count, 1) * 8, 0)
    buffer = (ctypes.c_int64 * max(count, 1)).from_address(pointer)
    _on_end(buffer, "cudaFreeHost", pointer)
    words: Array = np.ctypeslib.as_array(buffer)[:count]
    words[:] = 0
    return words


class Recording:
    """A captured run: copies its inputs to the device, runs there, and copies one result back.

    At most two launches may be in flight or have results in use.

    Args:
        stream: the stream that is captured during ``run``.
        run: enqueues the run on ``stream``, and does not wait for it.
        target: the address of the inputs in device memory.
        result: the output that is copied to pinned memory after each launch; None copies nothing.

    Raises:
        Exception: the run cannot be captured.
    """

    def __init__(
        self,
        stream: Stream,
        run: Callable[[], object],
        target: int,
        result: Tensor | None,
    ) -> None:
        self._stream, self._target = stream, target
        self._graph = stream.capture(run)
        _on_end(self, "cudaGraphExecDestroy", self._graph)
        # Two launches: the second may start before the result of the first is read.
        self._launches = [Launch(result) for _ in range(2)]

    def launch(self, words: Array | None) -> "Launch":
        """Starts a replay.

        Args:
            words: the inputs in pinned memory, which must not change until the launch is waited
                for; None keeps the inputs that are on the device.

        Raises:
            CudaError: CUDA cannot start it.
        """
        stream, launch = self._stream, self._launches[0]
        self._launches.reverse()
        stream.activate()
        if words is not None:
            source = words.ctypes.data
            copied = (self._target, source, words.nbytes, _HOST_TO_DEVICE, stream.handle)
            call("cudaMemcpyAsync", *copied)
        call("cudaGraphLaunch", self._graph, stream.handle)
        launch.end(stream)
        return launch


class Launch:
    """The end of a replay. Implements :class:`server.runtime.contract.Pending`."""

    def __init__(self, result: Tensor | None) -> None:
        self._event = _new("cudaEventCreateWithFlags", _DISABLE_TIMING)
        _on_end(self, "cudaEventDestroy", self._event)
        self._copied: Array | None = None
        self._copy: tuple[int, ...] = ()
        if result is not None:
            words = pinned_words(-(-result.num_bytes // 8))
            data = words.view(np.uint8)[: result.num_bytes]
            self._copied = data.view(result.dtype).reshape(result.shape)
            address = words.ctypes.data
            self._copy = (address, result.pointer, result.num_bytes, _DEVICE_TO_HOST)

    def end(self, stream: Stream) -> None:
        """Enqueues the copy of the result, and the event that marks its end."""
        if self._copy:
            call("cudaMemcpyAsync", *self._copy, stream.handle)
        call("cudaEventRecord", self._event, stream.handle)

    def wait(self) -> Array | None:
        call("cudaEventSynchronize", self._event)
        return self._copied

    def drop(self) -> None:
        # The next run reports an error of the device again.
        with suppress(CudaError):
            call("cudaEventSynchronize", self._event)


def _new(function: str, *arguments: object) -> int:
    """Returns the handle or address that a function writes to its first argument."""
    made = ctypes.c_void_p()
    call(function, ctypes.byref(made), *arguments)
    if made.value is None:
        raise CudaError(f"{function} returns nothing")
    return made.value


def _on_end(owner: object, function: str, handle: int) -> None:
    """Calls a function when ``owner`` is collected, but not at exit: CUDA may have ended then."""

    def end() -> None:
        with suppress(CudaError):
            call(function, handle)

    weakref.finalize(owner, end).atexit = False


def _destroy_graph(graph: ctypes.c_void_p) -> None:
    if graph.value is not None:
        with suppress(CudaError):
            call("cudaGraphDestroy", graph)


def _check_nodes(graph: ctypes.c_void_p) -> None:
    """Raises ``HostMemoryError`` if a replay would read host memory or call host functions.

    The memory may hold other data by then.
    """
    count = ctypes.c_size_t()
    call("cudaGraphGetNodes", graph, None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    call("cudaGraphGetNodes", graph, nodes, ctypes.byref(count))
    type_, copy = ctypes.c_int(), (ctypes.c_int64 * _COPY_WORDS)()
    for node in nodes:
        call("cudaGraphNodeGetType", node, ctypes.byref(type_))
        if type_.value == _HOST_NODE:
            raise HostMemoryError("the run calls the host")
        if type_.value == _MEMCPY_NODE:
            call("cudaGraphMemcpyNodeGetParams", node, copy)
            if copy[_KIND] & 0xFFFFFFFF == _HOST_TO_DEVICE:
                raise HostMemoryError("the run copies from the host")
