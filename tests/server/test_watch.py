"""The watcher of the bundles folder loads new and changed bundles, and unloads removed ones."""

import shutil
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from client.types import ModelState
from server.models.watch import Changes, Watch, changes
from tests.server.test_models import DATE, DATES, ISO, SERVING, add_version, serving


@pytest.fixture
def root(tiny_bundles: Path, tmp_path: Path) -> Path:
    """A bundle folder that the test may modify."""
    shutil.copytree(tiny_bundles / DATES, tmp_path / "bundles" / DATES)
    return tmp_path / "bundles"


async def test_watcher_loads_and_unloads_changed_bundles(root: Path) -> None:
    """Loads a bundle after two unchanged polls; rejects an incomplete bundle."""
    async with serving(root) as (running, client):
        watch = Watch(running.catalog, root, seconds=60)
        bundle = add_version(root, DATES, "2")
        weights = next(bundle.glob("*.data"))
        whole = weights.read_bytes()
        weights.write_bytes(whole[:100])
        await watch.follow()
        assert running.registry.entry(DATES, "2") is None
        await watch.follow()
        assert (await client.get_model(DATES, version="2")).state == ModelState.REFUSED
        assert (await client.get_model(DATES)).version == "1"
        weights.write_bytes(whole)
        await watch.follow()
        await watch.follow()
        assert (await client.get_model(DATES)).version == "2"
        shutil.rmtree(bundle)
        await watch.follow()
        assert (await client.get_model(DATES)).version == "2"
        await watch.follow()
        assert (await client.get_model(DATES)).version == "1"
        serial = running.registry.get(DATES).serial
        await watch.follow()
        assert running.registry.get(DATES).serial == serial


async def test_watcher_leaves_what_the_admin_port_has_loaded(root: Path) -> None:
    async with serving(root) as (running, _):
        watch = Watch(running.catalog, root, seconds=60)
        for version in ("2", "3"):
            bundle = add_version(root, DATES, version)
            await watch.follow()
            model = await running.catalog.load(DATES)
            await watch.follow()
            await watch.follow()
            assert running.registry.get(DATES) is model
        await running.catalog.unload(DATES, "3")
        await watch.follow()
        assert running.registry.get(DATES).manifest.version == "2"
        (bundle / "bundle.json").touch()
        await watch.follow()
        await watch.follow()
        assert running.registry.get(DATES).manifest.version == "3"


async def test_watcher_loads_the_first_model(root: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    async with serving(empty, watch_seconds=0.1) as (running, client):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
            request = health_pb2.HealthCheckRequest(service=f"triune.v1.InferenceService/{DATES}")
            states = health_pb2_grpc.HealthStub(channel).Watch(request)
            shutil.move(root / DATES, empty / DATES)
            async for state in states:
                if state.status == SERVING:
                    break
        assert (await client.translate(DATES, DATE)).outputs[0].text == ISO


def test_watcher_waits_for_two_unchanged_polls() -> None:
    old, new = frozenset({("a", 1, 1, 1)}), frozenset({("a", 2, 1, 1)})
    key = (DATES, "1")
    assert changes({key: old}, {key: old}, {key: old}) == Changes()
    assert changes({key: old}, {key: old}, {key: new}) == Changes()
    assert changes({key: old}, {key: new}, {key: new}) == Changes(load=(key,))
    assert changes({}, {}, {key: new}) == Changes()
    assert changes({}, {key: new}, {key: new}) == Changes(load=(key,))
    assert changes({key: old}, {key: old}, {}) == Changes()
    assert changes({key: old}, {}, {}) == Changes(unload=(key,))
