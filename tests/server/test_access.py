"""Who may call: tokens, the admin listener; and what a connection may send."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from client.admin import AdminClient
from client.aio import AsyncClient
from client.channel import Security
from client.errors import TriuneError
from protos.triune.v1 import admin_pb2, inference_pb2, models_pb2
from server.config import ServerConfig, TlsFiles
from server.errors import StartupError
from server.frontends.grpc.listeners import check_admin_access
from server.service.access_tokens import AccessTokens
from tests.faults.record import record
from tests.server.running import CLASSIFIER, serving

HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"


async def status(channel: grpc.aio.Channel, method: str, token: str | None) -> grpc.StatusCode:
    """How a call begins, or ends, that sends an empty message."""
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
    """Every method of every service that a listener tells of itself."""
    reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
    metadata = [("authorization", f"Bearer {token}")]

    async def ask(**wanted: str) -> Any:
        request = reflection_pb2.ServerReflectionRequest(**wanted)
        async for answer in reflect(iter([request]), metadata=metadata, timeout=60):
            return answer
        raise AssertionError("reflection has no answer")

    found = []
    listed = (await ask(list_services="")).list_services_response.service
    for service in listed:
        answer = await ask(file_containing_symbol=service.name)
        for serialized in answer.file_descriptor_response.file_descriptor_proto:
            file = FileDescriptorProto.FromString(serialized)
            found += [
                f"/{service.name}/{method.name}"
                for described in file.service
                if f"{file.package}.{described.name}" == service.name
                for method in described.method
            ]
    return found


async def test_every_method_but_health_needs_a_token(bundles: Path, tokens: Path) -> None:
    async with serving(bundles, tokens=tokens) as running:
        named: set[str] = set()
        let_in: list[str] = []
        for port in (running.port, running.admin_port):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                known = await methods(channel, "first-token")
                for method in (*known, "/triune.v1.InferenceService/Nothing", "/no.Service/Call"):
                    refused = [
                        await status(channel, method, token)
                        for token in (None, "", "third-token", "first-token2", "alice:first-token")
                    ]
                    unknown = grpc.StatusCode.UNAUTHENTICATED
                    if method.startswith(f"/{HEALTH}/"):
                        assert unknown not in refused
                    else:
                        let_in += [method for answer in refused if answer != unknown]
                    accepted = await status(channel, method, "first-token")
                    assert accepted != grpc.StatusCode.UNAUTHENTICATED, method
                named |= {*known}
        ours = {
            f"/{service.full_name}/{method.name}"
            for file in (inference_pb2, models_pb2, admin_pb2)
            for service in file.DESCRIPTOR.services_by_name.values()
            for method in service.methods
        }
        others = {method.split("/")[1] for method in named - ours}
        assert (ours <= named, others) == (True, {HEALTH, REFLECTION})
        assert not let_in
        record(
            18,
            "calls without a token or with a wrong one, to every method except health",
            "`UNAUTHENTICATED`, reflection and administration included",
            methods=len([method for method in named if not method.startswith(f"/{HEALTH}/")]),
            let_in=len(let_in),
        )


async def test_two_tokens_in_one_call_are_none(bundles: Path, tokens: Path) -> None:
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


async def test_admin_tokens_are_their_own(bundles: Path, tokens: Path, tmp_path: Path) -> None:
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


def test_tokens_follow_their_file(tokens: Path, caplog: pytest.LogCaptureFixture) -> None:
    known = AccessTokens(tokens)
    assert known.name_of("Bearer first-token") == "alice"
    unnamed = known.name_of("Bearer second.token==")
    assert unnamed is not None
    assert len(unnamed) == 8
    assert known.name_of("Bearer ") is None
    tokens.write_text("bob:third-token")
    assert known.name_of("Bearer first-token") is None
    assert known.name_of("Bearer third-token") == "bob"
    tokens.write_text("bob:third-token\nnot a token, se cret")
    assert known.name_of("Bearer third-token") == "bob"
    assert "line 2 is neither TOKEN nor NAME:TOKEN" in caplog.text
    assert "se cret" not in caplog.text
    tokens.unlink()
    assert known.name_of("Bearer third-token") == "bob"
    tokens.write_text("")
    assert known.name_of("Bearer third-token") is None


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.1.2.3:1", "example.org:1"])
def test_admin_is_not_for_everybody(address: str, tmp_path: Path) -> None:
    tls = TlsFiles(certificate=tmp_path, key=tmp_path)
    mutual = TlsFiles(certificate=tmp_path, key=tmp_path, client_ca=tmp_path)
    open_: list[dict[str, Any]] = [{}, {"tls": tls}]
    closed: list[dict[str, Any]] = [
        {"tls": mutual},
        {"tokens": tmp_path},
        {"admin_tokens": tmp_path},
    ]
    for options in open_:
        with pytest.raises(StartupError, match="is not a loopback address"):
            check_admin_access(ServerConfig(bundles=tmp_path, admin=address, **options))
    for options in closed:
        assert not refusal(ServerConfig(bundles=tmp_path, admin=address, **options))


def refusal(config: ServerConfig) -> str:
    """Why ``check_admin_access`` refuses; empty if it does not."""
    try:
        check_admin_access(config)
    except StartupError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "unix:x"]
)
def test_admin_on_loopback_is_open(address: str, tmp_path: Path) -> None:
    assert not refusal(ServerConfig(bundles=tmp_path, admin=address))


async def test_what_is_too_large_is_refused(bundles: Path) -> None:
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


async def test_a_connection_has_so_many_calls(bundles: Path) -> None:
    watch = "/grpc.health.v1.Health/Watch"
    async with (
        serving(bundles, max_streams=1) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        streams: Any = channel.unary_stream(watch)
        first = streams(b"")
        await first.read()
        second = streams(b"", timeout=1)  # waits in the client for the first to end
        assert await second.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        first.cancel()
        assert await streams(b"", timeout=60).read() is not grpc.aio.EOF
