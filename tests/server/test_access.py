"""Access control: tokens, the admin listener, and limits per connection."""

import asyncio
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from client.admin import AdminClient
from client.aio import AsyncClient
from client.channel import Security
from client.errors import TriuneError
from protos.inference import open_inference_pb2
from protos.triune.v1 import admin_pb2, encoding_pb2, inference_pb2, models_pb2
from server.config import ServerConfig, TlsFiles
from server.errors import StartupError
from server.frontends.grpc.listeners import check_admin_access
from server.service.access_tokens import AccessTokens
from tests.faults.record import record
from tests.server.in_process_server import CLASSIFIER, serving

HEALTH = "grpc.health.v1.Health"
OPEN_INFERENCE = "inference.GRPCInferenceService"
PUBLIC = {
    *(f"/{HEALTH}/{method}" for method in ("Check", "Watch")),
    *(f"/{OPEN_INFERENCE}/{method}" for method in ("ServerLive", "ServerReady")),
}
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"


async def status(channel: grpc.aio.Channel, method: str, token: str | None) -> grpc.StatusCode:
    """The status of a call that sends an empty message; OK as soon as it responds."""
    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    kind: Any = channel.unary_stream(method)
    call = kind(b"", metadata=metadata, timeout=60)
    try:
        if await call.read() is not grpc.aio.EOF:
            call.cancel()
            return grpc.StatusCode.OK
    except grpc.aio.AioRpcError as error:
        return error.code()
    code: grpc.StatusCode = await call.code()
    return code


async def methods(channel: grpc.aio.Channel, token: str) -> list[str]:
    """All methods that a listener reports by reflection."""
    reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
    metadata = [("authorization", f"Bearer {token}")]

    async def send_reflection_request(**fields: str) -> Any:
        request = reflection_pb2.ServerReflectionRequest(**fields)
        async for answer in reflect(iter([request]), metadata=metadata, timeout=60):
            return answer
        raise AssertionError("reflection has no answer")

    method_names = []
    services = (await send_reflection_request(list_services="")).list_services_response.service
    for service in services:
        answer = await send_reflection_request(file_containing_symbol=service.name)
        for serialized in answer.file_descriptor_response.file_descriptor_proto:
            file = FileDescriptorProto.FromString(serialized)
            method_names += [
                f"/{service.name}/{method.name}"
                for service_proto in file.service
                if f"{file.package}.{service_proto.name}" == service.name
                for method in service_proto.method
            ]
    return method_names


async def test_all_methods_except_health_checks_require_a_token(
    bundles: Path, tokens: Path
) -> None:
    async with serving(bundles, tokens=tokens) as running:
        all_methods: set[str] = set()
        wrongly_accepted: list[str] = []
        for port in (running.port, running.admin_port):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                listed_methods = await methods(channel, "first-token")
                for method in (
                    *listed_methods,
                    "/triune.v1.InferenceService/Nothing",
                    "/no.Service/Call",
                ):
                    rejections = [
                        await status(channel, method, token)
                        for token in (None, "", "third-token", "first-token2", "alice:first-token")
                    ]
                    unauthenticated = grpc.StatusCode.UNAUTHENTICATED
                    if method in PUBLIC:
                        assert unauthenticated not in rejections
                    else:
                        wrongly_accepted += [
                            method for answer in rejections if answer != unauthenticated
                        ]
                    accepted = await status(channel, method, "first-token")
                    assert accepted != grpc.StatusCode.UNAUTHENTICATED, method
                all_methods |= {*listed_methods}
        own_methods = {
            f"/{service.full_name}/{method.name}"
            for file in (inference_pb2, models_pb2, admin_pb2, open_inference_pb2)
            for service in file.DESCRIPTOR.services_by_name.values()
            for method in service.methods
        }
        other_services = {method.split("/")[1] for method in all_methods - own_methods}
        assert (own_methods <= all_methods, other_services) == (True, {HEALTH, REFLECTION})
        assert not wrongly_accepted
        record(
            18,
            "calls without a token or with a wrong one, to every method except health checks",
            "`UNAUTHENTICATED`, reflection and administration included",
            methods=len(all_methods - PUBLIC),
            let_in=len(wrongly_accepted),
        )


async def test_rejects_calls_with_two_authorization_headers(bundles: Path, tokens: Path) -> None:
    async with (
        serving(bundles, tokens=tokens) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        header = ("authorization", "Bearer first-token")
        kind: Any = channel.unary_unary("/triune.v1.ModelService/ListModels")
        for metadata, code in (
            ([header], grpc.StatusCode.OK),
            ([header, header], grpc.StatusCode.UNAUTHENTICATED),
            ([("authorization", "first-token")], grpc.StatusCode.UNAUTHENTICATED),
            ([("authorization", "bearer  first-token ")], grpc.StatusCode.OK),
        ):
            assert await kind(b"", metadata=metadata, timeout=60).code() == code


async def test_admin_listener_accepts_only_admin_tokens(
    bundles: Path, tokens: Path, tmp_path: Path
) -> None:
    (tmp_path / "admins").write_text("root:admin-token")
    async with serving(bundles, tokens=tokens, admin_tokens=tmp_path / "admins") as running:
        target = f"127.0.0.1:{running.admin_port}"
        with AdminClient(target, security=Security(token="first-token")) as admin:
            with pytest.raises(TriuneError) as caught:
                await asyncio.to_thread(admin.unload_model, CLASSIFIER)
            assert caught.value.code == grpc.StatusCode.UNAUTHENTICATED
        with AdminClient(target, security=Security(token="admin-token")) as admin:
            await asyncio.to_thread(admin.load_model, CLASSIFIER)
        security = Security(token="first-token")
        async with AsyncClient(f"127.0.0.1:{running.port}", security=security) as client:
            assert (await client.classify(CLASSIFIER, "12")).outputs


def test_warns_of_a_file_without_tokens(tokens: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokens.write_text("# no token yet\n")
    assert AccessTokens(tokens).name_of("Bearer ") is None
    assert "has no token: every call is refused" in caplog.text


def test_reloads_tokens_when_the_file_changes(
    tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    access_tokens = AccessTokens(tokens)
    assert access_tokens.name_of("Bearer first-token") == "alice"
    generated_name = access_tokens.name_of("Bearer second.token==")
    assert generated_name is not None
    assert len(generated_name) == 8
    assert access_tokens.name_of("Bearer ") is None
    tokens.write_text("bob:third-token")
    assert access_tokens.name_of("Bearer first-token") is None
    assert access_tokens.name_of("Bearer third-token") == "bob"
    tokens.write_text("bob:third-token\nnot a token, se cret")
    assert access_tokens.name_of("Bearer third-token") == "bob"
    assert "line 2 is neither TOKEN nor NAME:TOKEN" in caplog.text
    assert "se cret" not in caplog.text
    tokens.unlink()
    assert access_tokens.name_of("Bearer third-token") == "bob"
    tokens.write_text("")
    assert access_tokens.name_of("Bearer third-token") is None


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.1.2.3:1", "example.org:1"])
def test_admin_on_a_public_address_requires_authentication(address: str, tmp_path: Path) -> None:
    tls = TlsFiles(certificate=tmp_path, key=tmp_path)
    mutual = TlsFiles(certificate=tmp_path, key=tmp_path, client_ca=tmp_path)
    unauthenticated: list[dict[str, Any]] = [{}, {"tls": tls}]
    authenticated: list[dict[str, Any]] = [
        {"tls": mutual},
        {"tokens": tmp_path},
        {"admin_tokens": tmp_path},
    ]
    for options in unauthenticated:
        with pytest.raises(StartupError, match="is not a loopback address"):
            check_admin_access(ServerConfig(bundles=tmp_path, admin=address, **options))
    for options in authenticated:
        assert not refusal(ServerConfig(bundles=tmp_path, admin=address, **options))


def refusal(config: ServerConfig) -> str:
    """The error message of ``check_admin_access``; empty if it accepts the configuration."""
    try:
        check_admin_access(config)
    except StartupError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "unix:x"]
)
def test_admin_on_loopback_needs_no_authentication(address: str, tmp_path: Path) -> None:
    assert not refusal(ServerConfig(bundles=tmp_path, admin=address))


async def test_rejects_oversized_metadata_and_messages(bundles: Path) -> None:
    async with (
        serving(bundles) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        kind: Any = channel.unary_unary("/triune.v1.ModelService/ListModels")
        for body, metadata, code in (
            (b"", [], grpc.StatusCode.OK),
            (b"", [("x", "y" * (40 << 10))], grpc.StatusCode.RESOURCE_EXHAUSTED),
            (bytes((16 << 20) + 1), [], grpc.StatusCode.RESOURCE_EXHAUSTED),
            (b"", [], grpc.StatusCode.OK),
        ):
            assert await kind(body, metadata=metadata, timeout=60).code() == code


async def test_limits_concurrent_streams_per_connection(bundles: Path) -> None:
    watch = "/grpc.health.v1.Health/Watch"
    async with (
        serving(bundles, max_streams=1) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        streams: Any = channel.unary_stream(watch)
        first = streams(b"")
        await first.read()
        second = streams(b"", timeout=1)  # queued in the client until the first stream ends
        assert await second.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        first.cancel()
        assert await streams(b"", timeout=60).read() is not grpc.aio.EOF


async def test_malformed_messages_are_invalid_arguments(
    bundles: Path, tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing that a client sends leaves a traceback in the log."""
    metadata = [("authorization", "Bearer first-token")]
    async with serving(bundles, tokens=tokens) as running:
        for port in (running.port, running.admin_port):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                for method in await methods(channel, "first-token"):
                    kind: Any = channel.stream_stream(method)
                    call = kind(iter([b"\xff"]), metadata=metadata, timeout=60)
                    if port == running.admin_port and method.endswith("/ModelStreamInfer"):
                        assert await call.code() == grpc.StatusCode.UNIMPLEMENTED
                        continue  # it does not read
                    assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT, method
                    assert "is not a valid protobuf message" in await call.details()
        url = f"http://127.0.0.1:{running.metrics_port}/metrics"
        response = await asyncio.to_thread(urllib.request.urlopen, url)
        metrics = response.read().decode()
    assert 'method="ListModels",model="unknown",status="INVALID_ARGUMENT"} 2.0' in metrics
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


async def test_a_malformed_message_ends_its_stream(head_bundles: Path, tmp_path: Path) -> None:
    """The results of earlier messages arrive first."""
    shutil.copytree(head_bundles / "embedder", tmp_path / "embedder")
    first = encoding_pb2.EmbedStreamRequest(id=7, model="embedder", inputs=["12"])
    async with (
        serving(tmp_path) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        kind: Any = channel.stream_stream("/triune.v1.InferenceService/EmbedStream")
        call = kind(iter([first.SerializeToString(), b"\xff"]), timeout=60)
        response = encoding_pb2.EmbedStreamResponse.FromString(await call.read())
        assert (response.id, len(response.outputs)) == (7, 1)
        assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_lists_health_only_with_a_token(bundles: Path, tokens: Path) -> None:
    async with (
        serving(bundles, tokens=tokens) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        list_health = health_pb2_grpc.HealthStub(channel).List
        request = health_pb2.HealthListRequest()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await list_health(request)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        metadata = (("authorization", "Bearer first-token"),)
        statuses = (await list_health(request, metadata=metadata)).statuses
        inference = "triune.v1.InferenceService"
        assert {"", inference, f"{inference}/{CLASSIFIER}"} <= statuses.keys()
