"""Load, reload and unload models while serving."""

import asyncio
import gc
import json
import shutil
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from client.admin import AdminClient
from client.aio import AsyncClient
from client.errors import TriuneError
from client.types import ModelState, Regex
from server.app import RunningServer, running_server
from server.config import ServerConfig
from server.models.registry import ATTENTION_GRAPHS
from server.runtime.thread_switching import copies_of
from tests.faults.record import record

DATES, DECODER = "dates", "tiny-decoder"
DATE, ISO = "3 March 2021", "2021-03-03"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def root(tiny_bundles: Path, tmp_path: Path) -> Path:
    """A bundle folder that the test may modify."""
    path = tmp_path / "bundles"
    for name in (DATES, DECODER):
        shutil.copytree(tiny_bundles / name, path / name)
    return path


@asynccontextmanager
async def serving(root: Path, **options: Any) -> AsyncIterator[tuple[RunningServer, AsyncClient]]:
    config = ServerConfig(
        bundles=root,
        listen="127.0.0.1:0",
        metrics="127.0.0.1:0",
        admin="127.0.0.1:0",
        num_lanes=2,
        num_slots=4,
        max_length=200,
        **options,
    )
    async with (
        running_server(config) as running,
        AsyncClient(f"127.0.0.1:{running.port}", timeout_seconds=60) as client,
    ):
        yield running, client


async def load(running: RunningServer, model: str, version: str = "") -> None:
    with AdminClient(f"127.0.0.1:{running.admin_port}", timeout_seconds=60) as admin:
        await asyncio.to_thread(admin.load_model, model, version=version)


async def unload(running: RunningServer, model: str, version: str = "") -> tuple[str, ...]:
    with AdminClient(f"127.0.0.1:{running.admin_port}", timeout_seconds=60) as admin:
        return await asyncio.to_thread(admin.unload_model, model, version=version)


def add_version(root: Path, name: str, version: str) -> Path:
    """Copies version 1 of the bundle to another version."""
    copy = root / name / version
    shutil.copytree(root / name / "1", copy)
    edit(copy, version=version)
    return copy


def edit(bundle: Path, **fields: Any) -> None:
    path = bundle / "bundle.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def sessions(running: RunningServer, name: str) -> list[Any]:
    """Weak references to the model's ONNX Runtime sessions, two per graph."""
    graphs = running.registry.get(name).replicas[0].graphs
    copies: list[Any] = [
        copy
        for key, graph in graphs.items()
        if key not in ATTENTION_GRAPHS
        for copy in copies_of(graph)
    ]
    assert len(copies) >= 2
    return [weakref.ref(copy.session) for copy in copies]


async def error_of(call: Any) -> TriuneError:
    with pytest.raises(TriuneError) as caught:
        await call
    return caught.value


@pytest.mark.slow
async def test_reloads_under_load_drop_no_requests(root: Path) -> None:
    async with serving(root) as (running, client):
        old_sessions = sessions(running, DATES)
        stopped, num_sent, num_answers = asyncio.Event(), 0, 0

        async def send_requests() -> None:
            nonlocal num_sent, num_answers
            while not stopped.is_set():
                num_sent += 1
                result = await client.translate(DATES, [DATE])
                assert result.outputs[0].text == ISO
                num_answers += 1

        async def stream() -> None:
            while not stopped.is_set():
                chunks = [chunk async for chunk in client.translate_stream(DATES, DATE)]
                assert "".join(chunk.text for chunk in chunks) == ISO

        request_tasks = [
            asyncio.create_task(work())
            for work in (send_requests, send_requests, send_requests, stream)
        ]
        answer_counts = []
        for _ in range(20):
            await load(running, DATES)
            answer_counts.append(num_answers)
        stopped.set()
        results = await asyncio.gather(*request_tasks, return_exceptions=True)
        assert answer_counts[0] > 0
        assert answer_counts[-1] > answer_counts[0]
        assert running.registry.get(DATES).serial == 20
        record(
            11,
            "a model is reloaded under load",
            "the old version serves until the new one is ready; a failed load keeps the old one",
            reloads=20,
            answers_meanwhile=num_answers,
            dropped=num_sent - num_answers,
        )
        assert results == [None] * len(request_tasks)  # gather returns exceptions
        await running.catalog.settled()
        gc.collect()
        assert [session() for session in old_sessions] == [None] * len(old_sessions)


async def test_failed_load_keeps_the_old_model_serving(root: Path) -> None:
    async with serving(root) as (running, client):
        weights = next((root / DATES / "1").glob("*.data"))
        weights.rename(root / "elsewhere")
        error = await error_of(load(running, DATES))
        assert error.code == grpc.StatusCode.FAILED_PRECONDITION
        assert error.message == f"dates/1: file {weights.name!r} is missing"
        assert (await client.translate(DATES, DATE)).outputs[0].text == ISO
        model = await client.get_model(DATES)
        assert (model.state, model.failure) == (ModelState.READY, error.message)
        tokenizer = (root / DATES / "1" / "tokenizer.json").rename(root / "tokenizer.json")
        constrained = await client.translate(DATES, DATE, grammar=Regex("[0-9-]+"))
        assert constrained.outputs[0].text == ISO, "the first grammar needs no file"
        tokenizer.rename(root / DATES / "1" / "tokenizer.json")
        (root / "elsewhere").rename(weights)
        await load(running, DATES)
        assert (await client.get_model(DATES)).failure == ""


async def test_unload_finishes_active_calls_and_frees_sessions(root: Path) -> None:
    async with serving(root) as (running, client):
        old_sessions = sessions(running, DECODER)
        stream = client.generate_stream(DECODER, "1", max_new_tokens=150, ignore_eos=True)
        chunks = [await anext(stream)]
        assert await unload(running, DECODER) == ("1",)
        error = await error_of(client.generate(DECODER, "1"))
        assert error.code == grpc.StatusCode.NOT_FOUND
        assert (await error_of(unload(running, DECODER))).code == grpc.StatusCode.NOT_FOUND
        chunks += [chunk async for chunk in stream]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.output_tokens == 150
        await running.catalog.settled()
        gc.collect()
        assert [session() for session in old_sessions] == [None] * len(old_sessions)
        assert [model.name for model in await client.list_models()] == [DATES]
        await load(running, DECODER)
        assert (await client.generate(DECODER, "1", max_new_tokens=2)).outputs


async def test_unloading_model_is_listed_until_its_calls_end(root: Path) -> None:
    async with serving(root) as (running, client):
        with running.catalog.calls.of(DATES):
            await unload(running, DATES)
            model = await client.get_model(DATES)
            assert model.state == ModelState.UNLOADING
        await running.catalog.settled()
        assert (await error_of(client.get_model(DATES))).code == grpc.StatusCode.NOT_FOUND


async def test_serves_several_versions(root: Path) -> None:
    async with serving(root) as (running, client):
        for version in ("2", "10"):
            add_version(root, DATES, version)
            await load(running, DATES, version)
        assert (await client.get_model(DATES)).version == "10"
        for version in ("", "1", "2", "10"):
            result = await client.translate(DATES, DATE, version=version)
            assert result.outputs[0].text == ISO
        await unload(running, DATES, "10")
        assert (await client.get_model(DATES)).version == "2"
        error = await error_of(client.translate(DATES, DATE, version="10"))
        assert error.code == grpc.StatusCode.NOT_FOUND
        await load(running, DATES)
        assert (await client.get_model(DATES)).version == "10"
        assert set(await unload(running, DATES)) == {"1", "2", "10"}


@pytest.mark.parametrize(
    ("model", "version", "code", "message"),
    [
        ("", "", grpc.StatusCode.INVALID_ARGUMENT, "model: '' does not match"),
        ("../evil", "", grpc.StatusCode.INVALID_ARGUMENT, "model: '../evil' does not match"),
        (DATES, "../1", grpc.StatusCode.INVALID_ARGUMENT, "version: '../1' does not match"),
        (DATES, "1\n", grpc.StatusCode.INVALID_ARGUMENT, "version: '1\\n' does not match"),
        (DATES, "7", grpc.StatusCode.NOT_FOUND, "there is no bundle 'dates/7'"),
        ("nobody", "", grpc.StatusCode.NOT_FOUND, "there is no bundle 'nobody'"),
        ("linked", "1", grpc.StatusCode.FAILED_PRECONDITION, "a link out of the bundles"),
    ],
)
async def test_rejects_invalid_loads(root, tmp_path, model, version, code, message) -> None:
    shutil.move(root / DECODER, tmp_path / "outside")
    (root / "linked").symlink_to(tmp_path / "outside")
    async with serving(root) as (running, _):
        error = await error_of(load(running, model, version))
        assert error.code == code
        assert message in error.message


async def test_health_reports_each_model(root: Path) -> None:
    async with serving(root) as (running, client):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
            request = health_pb2.HealthCheckRequest(service=f"triune.v1.InferenceService/{DATES}")
            states = aiter(health_pb2_grpc.HealthStub(channel).Watch(request))
            assert (await anext(states)).status == SERVING
            await unload(running, DATES)
            assert (await anext(states)).status == NOT_SERVING
            await load(running, DATES)
            assert (await anext(states)).status == SERVING
        assert (await client.translate(DATES, DATE)).outputs[0].text == ISO
