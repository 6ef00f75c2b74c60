"""Sampling that is recorded after padded decode steps: its tokens, and what is called for them."""

import logging
from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import pytest

from server.engine.decoding.options import LogitsOptions, Sampling
from server.engine.gpu.device_logits import DeviceLogits, LogitsReader
from server.engine.gpu.device_sampler import DeviceSampler, SampleRequest
from server.engine.gpu.recorded_sampler import RecordedSampler
from server.engine.gpu.sampler_inputs import LOGITS, LogitsSpec
from server.engine.requests.job import GenerationJob
from server.runtime.contract import Graph
from server.runtime.memory import Layout
from tests.cuda.libraries import StandIn
from tests.server.captured_runs import CapturedGraph, ForgetfulGraph
from tests.server.fake_backend import host_view
from tests.server.samplers import device_sampler, host_token, load_model, sample_request
from tests.server.worker_harness import MEMORIES

VOCABULARY, ROWS = 200, (1, 2, 4, 8)
SPEC = LogitsSpec(VOCABULARY)
METHODS = {
    "top-k": Sampling(temperature=0.8, top_k=20, top_p=0.9),
    "nucleus": Sampling(temperature=1.1, top_p=0.8, min_p=0.01),
    "whole": Sampling(temperature=0.7),
}
STEP = [
    *("SetDevice", "MemcpyAsync:in", "GraphLaunch", "MemcpyAsync:out"),
    *("EventRecord", "EventSynchronize"),
]


class Sampled:
    """Logits of padded steps in a device's memory, and a sampler that records."""

    def __init__(self, cuda: StandIn, graph: type[CapturedGraph] = CapturedGraph) -> None:
        self.cuda, self.num_loads, self._graph = cuda, 0, graph
        layout = Layout(ROWS[-1], (VOCABULARY,), np.dtype(np.float32), has_tokens=False)
        self._memory = MEMORIES["device"]({LOGITS: layout})
        self._reader = LogitsReader(load_model, SPEC)
        recorded = RecordedSampler(self._load, SPEC, ROWS, MEMORIES["device"])
        self.sampler = DeviceSampler(load_model, SPEC, recorded)

    def _load(self, model: onnx.ModelProto) -> Graph:
        self.num_loads += 1
        session = onnxruntime.InferenceSession(model.SerializeToString())
        return self._graph(session, self.cuda)

    def logits(self, count: int, num_rows: int, seed: int) -> DeviceLogits:
        """Random logits of ``count`` sequences; rows of padding are not finite."""
        table = host_view(self._memory.rows(LOGITS, 0, num_rows))
        table[:count] = np.random.default_rng(seed).normal(0, 4, (count, VOCABULARY))
        table[count:] = np.nan
        padded = self._memory.rows(LOGITS, 0, num_rows)
        return DeviceLogits(self._memory.rows(LOGITS, 0, count), self._reader, None, padded)


def requests_of(count: int, options: Sampling, seed: int) -> list[SampleRequest]:
    uniforms = np.random.default_rng(seed).random(count)
    job = GenerationJob((1, 2), 1, sampling=options)
    return [sample_request(row, job, (), float(uniforms[row])) for row in range(count)]


def expected(logits: DeviceLogits, requests: Sequence[SampleRequest]) -> list[int | None]:
    """The host's tokens; None where the plain sampler leaves a row to the host."""
    plain = device_sampler(SPEC).sample(DeviceLogits(logits.tensor, logits.reader), requests)
    rows = logits.rows(range(len(requests)))
    for row, request, token in zip(rows, requests, plain, strict=True):
        assert token in (None, host_token(row, request))
    return plain


@pytest.mark.parametrize("method", METHODS)
def test_tokens_are_those_of_the_plain_sampler(cuda: StandIn, method: str) -> None:
    sampled = Sampled(cuda)
    for seed, (count, num_rows) in enumerate([(1, 1), (3, 4), (4, 4), (5, 8), (3, 4), (2, 2)]):
        logits = sampled.logits(count, num_rows, seed)
        requests = requests_of(count, METHODS[method], seed)
        assert sampled.sampler.sample(logits, requests) == expected(logits, requests)
    assert sampled.num_loads == 1
    cuda.reset()
    sampled.sampler.sample(sampled.logits(3, 4, 9), requests_of(3, METHODS[method], 9))
    assert cuda.calls() == STEP


def test_methods_in_one_step_and_edits_are_not_recorded(cuda: StandIn) -> None:
    """They sample some rows, or have inputs of other shapes."""
    sampled, logits = Sampled(cuda), None
    logits = sampled.logits(4, 4, 1)
    mixed = requests_of(2, METHODS["top-k"], 1) + requests_of(4, METHODS["whole"], 1)[2:]
    assert sampled.sampler.sample(logits, mixed) == expected(logits, mixed)
    job = GenerationJob(
        (1, 2),
        1,
        sampling=METHODS["whole"],
        logits_options=LogitsOptions(presence_penalty=0.5),
    )
    edited = [sample_request(row, job, (3, 4), 0.4) for row in range(4)]
    assert sampled.sampler.sample(logits, edited) == expected(logits, edited)
    assert sampled.num_loads == 0


def test_other_numbers_of_rows_are_not_recorded(cuda: StandIn) -> None:
    sampled = Sampled(cuda)
    logits, requests = sampled.logits(3, 3, 1), requests_of(3, METHODS["whole"], 1)
    assert sampled.sampler.sample(logits, requests) == expected(logits, requests)
    assert sampled.num_loads == 0


def test_what_cannot_be_recorded_is_sampled_without(
    cuda: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    sampled = Sampled(cuda)
    cuda.fail("cudaStreamEndCapture", 901)
    logits, requests = sampled.logits(3, 4, 1), requests_of(3, METHODS["whole"], 1)
    assert sampled.sampler.sample(logits, requests) == expected(logits, requests)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    cuda.reset()
    assert sampled.sampler.sample(logits, requests) == expected(logits, requests)
    assert cuda.calls() == []


def test_recorded_runs_that_differ_are_not_used(
    cuda: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    sampled = Sampled(cuda, ForgetfulGraph)
    logits, requests = sampled.logits(3, 4, 2), requests_of(3, METHODS["top-k"], 2)
    assert sampled.sampler.sample(logits, requests) == expected(logits, requests)
    assert "samples other tokens than a plain one" in caplog.text
    caplog.clear()  # the error holds the runs


def test_rows_of_a_run_that_fails_are_left_to_the_host(
    cuda: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    sampled = Sampled(cuda)
    logits, requests = sampled.logits(3, 4, 1), requests_of(3, METHODS["whole"], 1)
    sampled.sampler.sample(logits, requests)
    cuda.fail("cudaGraphLaunch", 700)
    assert sampled.sampler.sample(logits, requests) == [None] * 3
    assert "sampling on the device failed" in caplog.text
    caplog.clear()  # the error holds the runs
