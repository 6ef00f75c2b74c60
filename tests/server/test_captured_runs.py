"""Captured runs: what CUDA is called for, and tokens of steps that start ahead of the host."""

import gc
import logging
from typing import Any

import numpy as np
import pytest

from server.engine.cache.slot_tensors import Capacity, SlotTensors
from server.engine.gpu.buckets import Buckets
from server.engine.gpu.padded_decode import PaddedDecode
from server.engine.requests.job import GenerationJob
from server.engine.requests.sequence import DecodingSequence
from server.runtime.contract import FEW_ROWS, KernelNodes
from server.runtime.cuda import cudart
from server.runtime.cuda.cudart import CudaError
from server.runtime.cuda.recording import Recording, Stream, pinned_words
from server.runtime.devices import Device
from server.runtime.memory import Tensor
from server.runtime.ort.graph import OrtGraph
from server.runtime.ort.loader import LoadedSession
from tests.cuda.libraries import StandIn
from tests.server.captured_runs import (
    LENGTH,
    CapturedGraph,
    continuation,
    decoder,
    load_decoder,
    names_of,
)
from tests.server.fake_backend import decode_spec
from tests.server.test_padded_ahead import ALWAYS, Asked
from tests.server.worker_harness import MEMORIES

# What a step calls; and what waits for the device, while other threads go on.
SHORT_CALLS = (
    *("cudaSetDevice", "cudaMemcpyAsync", "cudaGraphLaunch", "cudaEventRecord"),
    *("cudaStreamQuery", "cudaGetLastError"),
)
WAITS = ("cudaEventSynchronize", "cudaStreamSynchronize")
FUNCFLAG_PYTHONAPI = 4  # of ctypes
ILLEGAL = 700  # cudaErrorIllegalAddress
COPY_FROM_HOST = (1, 1)  # cudaGraphNodeTypeMemcpy, cudaMemcpyHostToDevice


class Doubling:
    """A recorded run: ``result = 2 * value``, of memory that stands for a device's."""

    def __init__(self, cuda: StandIn, *, kind: int | None = None, type_: int = 0) -> None:
        self.cuda, self.stream = cuda, Stream(0)
        self.words = pinned_words(1)
        self.value, self.result = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._node = (type_, kind or 0)

    def record(self) -> Recording:
        target, result = self.value.ctypes.data, Tensor.of(self.result)
        return Recording(self.stream, self._run, target, result)

    def _run(self) -> None:
        self.cuda.work(self.stream.handle, self._double, *self._node)

    def _double(self) -> None:
        self.result[:] = 2 * self.value


CAPTURE = [
    *("SetDevice", "StreamSynchronize", "StreamBeginCapture", "StreamEndCapture"),
    *("GraphGetNodes", "GraphGetNodes", "GraphNodeGetType", "GraphInstantiate", "GraphDestroy"),
]
REPLAY = ["GraphLaunch", "MemcpyAsync:out", "EventRecord"]


def test_a_recording_is_captured_once_and_replayed(cuda: StandIn) -> None:
    run = Doubling(cuda)
    cuda.reset()
    recording = run.record()
    made = names_of(cuda.calls(), "EventCreateWithFlags", "HostAlloc")
    assert made == CAPTURE
    assert run.result[0] == 0, "a captured run does not run"
    run.words[:] = 5
    first = recording.launch(run.words)
    assert cuda.calls() == ["SetDevice", "MemcpyAsync:in", *REPLAY]
    run.value[:] = 7
    second = recording.launch(None)
    assert cuda.calls() == ["SetDevice", *REPLAY], "the device made the inputs"
    results = [first.wait(), second.wait()]
    assert [None if result is None else result.tolist() for result in results] == [[10], [14]]
    assert cuda.calls() == ["EventSynchronize"] * 2
    recording.launch(None).drop()
    assert cuda.calls() == ["SetDevice", *REPLAY, "EventSynchronize"]


@pytest.mark.parametrize(
    "function",
    [
        *("StreamSynchronize", "StreamBeginCapture", "StreamEndCapture", "GraphGetNodes"),
        *("GraphInstantiate", "EventCreateWithFlags", "HostAlloc"),
    ],
)
def test_a_capture_that_fails_leaves_nothing(cuda: StandIn, function: str) -> None:
    run = Doubling(cuda)
    number = cuda.num_alive
    cuda.fail(f"cuda{function}", ILLEGAL)
    with pytest.raises(CudaError, match=f"cuda{function}: error {ILLEGAL}"):
        run.record()
    gc.collect()
    assert cuda.num_alive == number
    assert cuda.calls().count("GetLastError") == 1, "ONNX Runtime does not find the error"
    run.record()


def test_a_run_that_raises_ends_the_capture(cuda: StandIn) -> None:
    def fail() -> None:
        raise RuntimeError("the run fails")

    run = Doubling(cuda)
    number = cuda.num_alive
    with pytest.raises(RuntimeError, match="the run fails"):
        run.stream.capture(fail)
    assert cuda.num_alive == number
    assert "StreamEndCapture" in cuda.calls()


@pytest.mark.parametrize(
    ("type_", "kind", "message"),
    [(3, 0, "calls the host"), (1, 1, "copies from the host"), (1, 3, "")],
    ids=["host function", "copy to the device", "copy on the device"],
)
def test_a_replay_reads_no_memory_of_the_host(
    cuda: StandIn, type_: int, kind: int, message: str
) -> None:
    """What was there when it was captured may be gone."""
    run = Doubling(cuda, type_=type_, kind=kind)
    if not message:
        run.record()
        return
    with pytest.raises(CudaError, match=message):
        run.record()


@pytest.mark.parametrize("function", ["GraphLaunch", "EventRecord", "MemcpyAsync:out"])
def test_a_launch_that_fails_raises(cuda: StandIn, function: str) -> None:
    run = Doubling(cuda)
    recording = run.record()
    cuda.fail(f"cuda{function}", ILLEGAL)
    with pytest.raises(CudaError, match=f"error {ILLEGAL}"):
        recording.launch(run.words)


def test_waiting_raises_and_dropping_does_not(cuda: StandIn) -> None:
    launch = Doubling(cuda).record().launch(None)
    cuda.fail("cudaEventSynchronize", ILLEGAL)
    launch.drop()
    with pytest.raises(CudaError, match=f"error {ILLEGAL}"):
        launch.wait()


@pytest.mark.parametrize("error", [0, ILLEGAL])
def test_short_work_is_waited_for(cuda: StandIn, error: int) -> None:
    done: list[int] = []
    cuda.be_late(True)
    cuda.work(0, lambda: done.append(1))
    if error:
        cuda.fail("cudaStreamQuery", error)
        with pytest.raises(CudaError, match=f"error {error}"):
            cudart.wait_for_short_work()
    else:
        cudart.wait_for_short_work()
        assert done == [1]
    library = cudart._library()
    assert library is not None
    assert library.cudaGetLastError() == 0, "ONNX Runtime would take it for an error of its own"


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("function", [*SHORT_CALLS, *WAITS])
def test_short_calls_keep_the_interpreter_lock(function: str) -> None:
    flags = getattr(cudart._library(), function)._flags_
    assert bool(flags & FUNCFLAG_PYTHONAPI) == (function in SHORT_CALLS)


def test_without_cuda_there_is_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudart, "_library", lambda: None)
    with pytest.raises(CudaError, match="not loaded"):
        Stream(0)


def make_decode(graph: OrtGraph, num_rows: int) -> PaddedDecode:
    spec, memory = decode_spec(has_source=False, is_recurrent=False), MEMORIES["device"]
    cache = SlotTensors(spec.states, num_rows, LENGTH, LENGTH, memory)
    buckets = Buckets((num_rows,), (8, LENGTH))
    capacity = Capacity(num_rows, LENGTH, LENGTH)
    return PaddedDecode(spec, graph, cache, capacity, buckets, memory, has_source=False)


def run_steps(decode: PaddedDecode, num_rows: int, ahead: list[Asked]) -> list[list[int]]:
    """Decodes a token of each of all rows but one, again and again."""
    running = [
        DecodingSequence.first_of(id_, GenerationJob((5 + id_,), LENGTH))
        for id_ in range(num_rows - 1)
    ]
    for asked in ahead:
        decode.run(running, [0], asked)
        assert decode.best_tokens is not None
        for sequence, token in zip(running, decode.best_tokens, strict=False):
            sequence.num_cached_tokens += 1
            sequence.tokens.append(token)
    return [sequence.tokens for sequence in running]


NO_STEP = Asked(possible=False)
UNLIKELY = Asked(likely=False)


@pytest.mark.parametrize("num_rows", [3, FEW_ROWS + 1])
@pytest.mark.parametrize("feeds_back", [False, True])
@pytest.mark.parametrize("captured", [False, True])
def test_tokens_are_those_of_steps_in_turn(
    cuda: StandIn, num_rows: int, feeds_back: bool, captured: bool
) -> None:
    """Over two buckets of lengths, with steps that are not started ahead, or dropped."""
    session = load_decoder(decoder(feeds_back=feeds_back))
    graph: OrtGraph = OrtGraph(LoadedSession(session), Device("cpu", 0), KernelNodes())
    if captured:
        graph = CapturedGraph(session, cuda)
    decode = make_decode(graph, num_rows)
    assert decode.record() == (2 if captured else 0)
    ahead = [ALWAYS, ALWAYS, UNLIKELY, ALWAYS, NO_STEP, ALWAYS] * 4
    expected = [continuation(5 + id_, len(ahead)) for id_ in range(num_rows - 1)]
    assert run_steps(decode, num_rows, ahead) == expected
    decode.wait()
    assert run_steps(decode, num_rows, ahead) == expected
    if isinstance(graph, CapturedGraph):
        assert graph.num_launches == 2, "each bucket is captured once"


def test_another_step_is_run_instead_of_the_one_that_started(cuda: StandIn) -> None:
    decode = make_decode(CapturedGraph(load_decoder(decoder(feeds_back=True)), cuda), 2)
    assert decode.record() == 2
    one, other = (run_steps(decode, 2, [ALWAYS] * 5) for _ in range(2))
    assert one == other == [continuation(5, 5)]


@pytest.mark.parametrize("records", [False, True], ids=["", "ONNX Runtime records"])
def test_what_cannot_be_captured_runs_without(
    cuda: StandIn, caplog: pytest.LogCaptureFixture, records: bool
) -> None:
    graph = CapturedGraph(load_decoder(decoder(feeds_back=True)), cuda, records=records)
    decode = make_decode(graph, 2)
    cuda.fail("cudaStreamEndCapture", 901)
    assert decode.record() == (2 if records else 0)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "cudaStreamEndCapture: error 901" in caplog.text
    cuda.reset()
    assert run_steps(decode, 2, [ALWAYS] * 12) == [continuation(5, 12)]
    assert cuda.calls() == []


class CopyingGraph(CapturedGraph):
    """A graph whose runs copy from memory of the host."""

    def launch(self, io_binding: Any) -> None:
        super().launch(io_binding)
        assert self.stream is not None
        self._cuda.work(self.stream.handle, lambda: None, *COPY_FROM_HOST)


def test_a_run_that_may_not_be_replayed_is_not_recorded(
    cuda: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor by ONNX Runtime, which does not look for copies from the host."""
    graph = CopyingGraph(load_decoder(decoder(feeds_back=True)), cuda, records=True)
    decode = make_decode(graph, 2)
    assert decode.record() == 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "may not be replayed: the run copies from the host" in caplog.text
    cuda.reset()
    assert run_steps(decode, 2, [ALWAYS] * 12) == [continuation(5, 12)]
    assert cuda.calls() == []


def test_calls_of_a_step(cuda: StandIn) -> None:
    """A step of few rows begins before the one before it is waited for."""
    decode = make_decode(CapturedGraph(load_decoder(decoder(feeds_back=True)), cuda), 2)
    decode.record()
    cuda.reset()
    run_steps(decode, 2, [ALWAYS] * 2)
    started = ["SetDevice", *REPLAY]
    first = ["SetDevice", "MemcpyAsync:in", *REPLAY]
    assert cuda.calls() == [*first, *started, "EventSynchronize", *started, "EventSynchronize"]
    decode.wait()
    assert cuda.calls() == ["EventSynchronize"]
