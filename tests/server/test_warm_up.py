"""Warm-up runs each graph of a model before the model is ready, on a GPU at all sizes."""

import gc
import math
import weakref
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from model.bundle import BundleError
from server.config import ServerConfig
from server.models import warm_up as warming
from server.models.registry import Model, Replica, load_bundle
from server.models.warm_up import run_sizes, warm_up
from server.models.workers import make_worker
from server.runtime.contract import BoundGraph, Graph
from server.runtime.host_memory import HostMemory
from server.runtime.memory import Array, Tensor
from server.runtime.ort.backend import OrtBackend
from tests.server.fake_backend import FakeDecode, decode_spec


@pytest.fixture(scope="module")
def loaded(tiny_bundles: Path) -> Model:
    return load_bundle(tiny_bundles / "tiny-decoder" / "1", OrtBackend("cpu", 1), 96)


def with_graph(loaded: Model, graph: FakeDecode) -> Model:
    """Replaces the decode graph with a fake one."""
    manifest = msgspec.structs.replace(
        loaded.manifest, graphs={"decode": decode_spec(has_source=False)}
    )
    load_model = OrtBackend("cpu", 1).load_model
    replica = Replica({"decode": graph}, HostMemory, load_model, load_model)
    return replace(loaded, manifest=manifest, replicas=(replica,))


def test_runs_prefill_and_decode_once(loaded: Model, tmp_path: Path) -> None:
    graph = FakeDecode()
    warm_up(with_graph(loaded, graph), ServerConfig(bundles=tmp_path))
    assert graph.num_runs == 2
    assert graph.max_tokens_in_run == 2


@pytest.mark.parametrize(
    ("graph", "reason"),
    [(FakeDecode(fail=0), "run failed"), (FakeDecode(poison=0), "not finite")],
    ids=["fails", "NaN"],
)
def test_failing_warm_up_rejects_the_model(
    loaded: Model, tmp_path: Path, graph: FakeDecode, reason: str
) -> None:
    with pytest.raises(BundleError, match=f"tiny-decoder/1: warm-up: .*{reason}"):
        warm_up(with_graph(loaded, graph), ServerConfig(bundles=tmp_path))


class Watched:
    """A graph that notes the shapes of the token ids or images that it runs over.

    ``max_tokens``: a run over more fails.
    """

    def __init__(self, graph: Graph, max_tokens: int = 1000) -> None:
        self._graph, self._max_tokens = graph, max_tokens
        self.shapes: set[tuple[int, ...]] = set()

    def __getattr__(self, name: str) -> object:
        return getattr(self._graph, name)

    def bind(
        self, states: Mapping[tuple[str, str], Tensor], outputs: Collection[str] | None = None
    ) -> "WatchedRuns":
        return WatchedRuns(self._graph.bind(states, outputs), self.shapes, self._max_tokens)


class WatchedRuns:
    def __init__(self, bound: BoundGraph, shapes: set[tuple[int, ...]], max_tokens: int) -> None:
        self._bound, self._shapes, self._max_tokens = bound, shapes, max_tokens

    def run(self, inputs: Mapping[str, Array | Tensor]) -> dict[str, Array]:
        self._note(inputs)
        return self._bound.run(inputs)

    def run_on_device(
        self, inputs: Mapping[str, Array | Tensor], on_host: Collection[str] = ()
    ) -> dict[str, Tensor]:
        self._note(inputs)
        return self._bound.run_on_device(inputs, on_host)

    def _note(self, inputs: Mapping[str, Array | Tensor]) -> None:
        shape = inputs["token_ids" if "token_ids" in inputs else "pixels"].shape
        self._shapes.add(shape)
        if math.prod(shape) > self._max_tokens:
            raise MemoryError("there is no memory left")


def watched(bundles: Path, name: str, graph: str, max_tokens: int = 1000) -> tuple[Model, Watched]:
    """A model in a device's memory, one of whose graphs is watched."""
    backend = OrtBackend("cpu", 1, has_device_memory=True)
    loaded = load_bundle(bundles / name / "1", backend, 40)
    (replica,) = loaded.replicas
    made = Watched(replica.graphs[graph], max_tokens)
    graphs = {**replica.graphs, graph: cast(Graph, made)}
    return replace(loaded, replicas=(replace(replica, graphs=graphs),)), made


@pytest.mark.parametrize(
    ("name", "graph", "most"),
    [
        ("tiny-decoder", "decode", 125),  # a quarter of padding more than a step has
        ("dates", "encode", 125),
        ("dates", "decode", 32),  # several of its prompts run one by one
        ("tiny-classifier", "encode", 128),
    ],
)
def test_all_sizes_run_on_a_device(tiny_bundles: Path, name: str, graph: str, most: int) -> None:
    model, seen = watched(tiny_bundles, name, graph)
    config = ServerConfig(
        bundles=tiny_bundles, num_slots=5, max_batched_tokens=100, max_padded_tokens=128
    )
    expected = set(run_sizes(most, model.max_length))
    if name == "tiny-decoder":
        expected |= {(1, 2), (2, 2), (4, 2), (5, 2)}  # of up to 5 slots
    warm_up(model, config)
    assert expected - seen.shapes  # on a CPU only short ones run
    warm_up(model, replace(config, has_device_memory=True))
    assert expected <= seen.shapes


def test_all_numbers_of_images_run_on_a_device(caption_bundles: Path) -> None:
    model, seen = watched(caption_bundles, "captioner", "encode", max_tokens=1 << 20)
    config = ServerConfig(bundles=caption_bundles, num_slots=5, max_batched_tokens=30)
    shape = (24, 16, 3)  # of an image, which has 7 vectors
    warm_up(model, config)
    assert seen.shapes == {(1, *shape)}
    warm_up(model, replace(config, has_device_memory=True))
    assert seen.shapes == {(rows, *shape) for rows in (1, 2, 4)}


def test_a_size_that_fails_is_logged(tiny_bundles: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, seen = watched(tiny_bundles, "tiny-decoder", "decode", max_tokens=20)
    config = ServerConfig(
        bundles=tiny_bundles, num_slots=5, max_batched_tokens=40, has_device_memory=True
    )
    warm_up(model, config)
    assert "a run of 1 rows of 32 tokens: " in caplog.text
    assert (1, 16) in seen.shapes
    caplog.clear()


def test_discarded_workers_free_their_memory(
    tiny_bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without the collector of cycles, which a server stops."""
    made: list[weakref.ref[Any]] = []

    def make(*arguments: Any) -> Any:
        worker = make_worker(*arguments)
        made.append(weakref.ref(worker))
        return worker

    monkeypatch.setattr(warming, "make_worker", make)
    model, _ = watched(tiny_bundles, "dates", "decode")
    gc.disable()
    try:
        warm_up(model, ServerConfig(bundles=tiny_bundles, has_device_memory=True))
        assert made
        assert all(worker() is None for worker in made)
    finally:
        gc.enable()


@pytest.mark.parametrize("longest", [1, 7, 64, 100, 4096])
@pytest.mark.parametrize("most", [1, 2, 3, 64, 100, 2560])
def test_sizes_cover_every_power_of_two(most: int, longest: int) -> None:
    sizes = run_sizes(most, longest)
    assert all(0 < tokens <= longest and rows * tokens <= most for rows, tokens in sizes)
    found = {(rows * tokens - 1).bit_length() for rows, tokens in sizes}
    assert found == set(range((most - 1).bit_length() + 1))
