"""Lanes: a single active lane uses all cores; several lanes share them."""

import queue
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import onnx
import pytest

from client.sync import Client
from model.bundle import BundleError
from server.engine.decoding.options import Sampling
from server.engine.encoder_batch import BatchLimits
from server.engine.lane import REFUSED_JOB, Add, Cancel, Lane, Stop, Submit
from server.engine.observer import Unobserved, WorkerStats
from server.engine.requests.busy_lanes import BusyLanes
from server.engine.requests.job import EncodingJob
from server.engine.requests.update import JobUpdate
from server.runtime.contract import BoundGraph, Graph, KernelNodes, StepGraphs
from server.runtime.host_memory import HostMemory
from server.runtime.memory import Array, Layout, Memory, Tensor
from server.runtime.thread_switching import ThreadSwitchingBackend
from tests.server.fake_backend import VOCABULARY, HostBoundGraph
from tests.server.fake_encoder import FakeEncoder, make_encoder_worker
from tests.server.worker_harness import make_harness, make_job
from tests.serving import ServerProcess, server_process


class NumberedBackend(HostBoundGraph):
    """A backend whose graphs return the backend's number.

    ``num_weight_bytes``: of each graph.
    """

    version = "0"
    kernel_nodes = KernelNodes()
    outputs = ()

    def __init__(self, value: float, num_weight_bytes: int | None = None) -> None:
        self.value, self.num_weight_bytes = value, num_weight_bytes

    def load(
        self,
        path: Path,
        disabled_optimizers: tuple[str, ...],
        *,
        repeats: bool = False,
        takes_candidates: bool = False,
        suppressed: tuple[int, ...] = (),
    ) -> Graph:
        del repeats, takes_candidates, suppressed
        if disabled_optimizers:
            raise BundleError(str(path))
        return self

    def bind(
        self, states: Mapping[tuple[str, str], Tensor], outputs: Collection[str] | None = None
    ) -> BoundGraph:
        del states, outputs
        return self

    def run(self, inputs: Mapping[str, Array | Tensor]) -> dict[str, Array]:
        del inputs
        return {"logits": np.full((1, VOCABULARY), self.value, np.float32)}

    def load_steps(
        self, path: Path, disabled_optimizers: tuple[str, ...], suppressed: tuple[int, ...] = ()
    ) -> StepGraphs | None:
        del path, disabled_optimizers, suppressed
        return None

    def unshared_bytes(self, path: Path, *, takes_candidates: bool = False) -> int:
        del takes_candidates
        return path.stat().st_size

    def weight_bytes(self, path: Path, *, takes_candidates: bool = False) -> int | None:
        del path, takes_candidates
        return self.num_weight_bytes

    def load_model(self, model: onnx.ModelProto, *, repeats: bool = False) -> Graph:
        raise NotImplementedError

    def memory(self, layouts: Mapping[str, Layout]) -> Memory:
        return HostMemory(layouts)


def test_single_active_lane_uses_all_cores(tmp_path: Path) -> None:
    busy = BusyLanes()
    (tmp_path / "decode.onnx").write_bytes(b"12345678")
    backend = ThreadSwitchingBackend(
        NumberedBackend(1.0), NumberedBackend(2.0), lambda: busy.has_at_most_one, max_bytes=8
    )
    bound = backend.load(tmp_path / "decode.onnx", ()).bind({})

    def selected_backend() -> float:
        return float(bound.run({})["logits"][0, 0])

    busy.enter(0)
    assert selected_backend() == 2.0
    busy.enter(1)
    assert selected_backend() == 1.0
    busy.leave(0)
    assert selected_backend() == 2.0


def test_short_run_uses_one_lanes_threads(tmp_path: Path) -> None:
    (tmp_path / "decode.onnx").write_bytes(b"12345678")

    def selected_backend(num_weight_bytes: int, num_tokens: int) -> float:
        per_lane, all_cores = (NumberedBackend(x, num_weight_bytes) for x in (1.0, 2.0))
        backend = ThreadSwitchingBackend(per_lane, all_cores, lambda: True, max_bytes=8)
        bound = backend.load(tmp_path / "decode.onnx", ()).bind({})
        inputs = {"token_ids": np.zeros((1, num_tokens), np.int64)}
        return float(bound.run(inputs)["logits"][0, 0])

    assert selected_backend(num_weight_bytes=1_000_000, num_tokens=1) == 1.0
    assert selected_backend(num_weight_bytes=100_000_000, num_tokens=1) == 2.0  # to be read
    assert selected_backend(num_weight_bytes=1_000_000, num_tokens=20) == 1.0
    assert selected_backend(num_weight_bytes=1_000_000, num_tokens=1000) == 2.0


def test_lane_is_busy_once_a_job_is_submitted() -> None:
    """If two lanes start at the same time, neither uses all cores."""
    busy = BusyLanes()
    lanes = [
        Lane(index, lambda _: None, lambda _: None, Unobserved(), busy) for index in range(2)
    ]  # neither thread is started
    lanes[0].send(Cancel(0, range(7, 8)))
    assert busy.has_at_most_one
    for lane in lanes:
        lane.send(Submit(0, 7, [make_job([1], 1)]))
    assert not busy.has_at_most_one


def test_a_new_job_waits_for_one_step_of_each_other_model() -> None:
    lane: Lane
    finished: list[int] = []

    def publish(updates: list[JobUpdate]) -> None:
        if not finished:
            lane.send(Submit(2, 20, [EncodingJob((2,))]))
        finished.extend(update.id for update in updates)
        if len(finished) == 7:
            lane.send(Stop())

    errors: list[BaseException] = []
    lane = Lane(0, publish, errors.append, Unobserved(), BusyLanes())
    for model_id in range(3):
        worker = make_encoder_worker(FakeEncoder(), BatchLimits(max_padded_tokens=8))
        lane.send(Add(model_id, worker, lambda: None))
    # Each text fills a batch.
    lane.send(*(Submit(id_ // 10, id_, [EncodingJob((2,) * 8)]) for id_ in (0, 1, 2, 10, 11, 12)))
    lane.start()
    lane.join(60)
    assert not errors
    assert finished == [0, 10, 20, 1, 11, 2, 12]


def test_job_that_cannot_be_started_fails_alone() -> None:
    """No check of a request lets a negative seed pass; numpy refuses it in the lane's thread."""
    updates: queue.SimpleQueue[JobUpdate] = queue.SimpleQueue()
    deaths: list[BaseException] = []

    def publish(published: list[JobUpdate]) -> None:
        for update in published:
            updates.put(update)

    lane = Lane(0, publish, deaths.append, Unobserved(), BusyLanes())
    lane.start()
    broken = replace(make_job([1], 2), sampling=Sampling(temperature=1.0, seed=-1))
    lane.send(Add(0, make_harness().worker, lambda: None), Submit(0, 7, [broken]))
    failed = updates.get(timeout=60)
    assert (failed.id, failed.is_last) == (7, True)
    assert failed.completion is not None
    assert (failed.completion.outcome, failed.completion.failure) == REFUSED_JOB
    lane.send(Submit(0, 8, [make_job([1], 2)]))
    while not (update := updates.get(timeout=60)).is_last:
        pass
    assert update.completion is not None
    assert update.completion.is_success
    lane.send(Stop())
    lane.join(60)
    assert not deaths


def test_lanes_share_large_weights(tmp_path: Path) -> None:
    (tmp_path / "decode.onnx").write_bytes(b"123456789")
    backend = ThreadSwitchingBackend(
        NumberedBackend(1.0), NumberedBackend(2.0), lambda: True, max_bytes=8
    )
    bound = backend.load(tmp_path / "decode.onnx", ()).bind({})
    assert bound.run({})["logits"][0, 0] == 1.0


@pytest.fixture(scope="module")
def server(tiny_bundles: Path) -> Iterator[ServerProcess]:
    with server_process(tiny_bundles, "--lanes", "3", "--threads", "3", "--slots", "3") as running:
        yield running


def test_outputs_do_not_depend_on_the_lane(server: ServerProcess) -> None:
    with Client(server.target, timeout_seconds=60) as client:

        def send_request(number: int) -> str:
            return client.generate("tiny-decoder", f"{number},").outputs[0].text

        alone = [send_request(number) for number in range(12)]
        # In one call, so that all of them wait at once.
        outputs = client.generate(
            "tiny-decoder", [f"{number}," for number in range(12)] * 6
        ).outputs
        together = [output.text for output in outputs]
    assert together == alone * 6
    metrics = urlopen(server.metrics_url).read().decode()
    assert 'lane="2"' in metrics, "all lanes had work"


def test_versions_of_a_model_are_reported_together() -> None:
    reported: list[int] = []

    class Recorded(Unobserved):
        def on_stats(self, model: str, lane: int, stats: WorkerStats) -> None:
            del model, lane
            reported.append(stats.num_running)

    def publish(updates: list[JobUpdate]) -> None:
        ended.extend(update.id for update in updates if update.is_last)
        if len(ended) == 3:
            lane.send(Stop())

    ended: list[int] = []
    errors: list[BaseException] = []
    lane = Lane(0, publish, errors.append, Recorded(), BusyLanes())
    for version, num_jobs in enumerate((1, 2)):
        lane.send(Add(version, make_harness().worker, lambda: None))
        lane.send(Submit(version, 10 * version, [make_job([5, 6], 20)] * num_jobs))
    lane.start()
    lane.join(60)
    assert not errors
    assert max(reported) == 3
    assert sorted(ended) == [0, 10, 11]
