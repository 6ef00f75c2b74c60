"""Warm-up runs each graph of a model once before the model is ready."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from model.bundle import BundleError
from server.config import ServerConfig
from server.models.registry import Model, Replica, load_bundle
from server.models.warm_up import warm_up
from server.runtime.host_memory import HostMemory
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
