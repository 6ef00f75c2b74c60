"""Who a caller is said to be, by a real call's context."""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import grpc.aio
import pytest

from server.rpc.identity import address_of, identity_of, token_name

_METHOD = "/tests.Identity/Who"


@contextmanager
def _named(name: str | None) -> Iterator[None]:
    reset = token_name.set(name)
    try:
        yield
    finally:
        token_name.reset(reset)


async def _who(address: str, name: str | None = None) -> str:
    """What a server on ``address`` makes of a call whose token is ``name``'s."""

    async def who(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        del request
        with _named(name):
            return identity_of(context).encode()

    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Who": grpc.unary_unary_rpc_method_handler(who)
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("tests.Identity", handlers),)
    )
    port = server.add_insecure_port(address)
    await server.start()
    target = address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
    try:
        async with grpc.aio.insecure_channel(target) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_METHOD)
            return (await call(b"")).decode()
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    ("address", "name", "identity"),
    [
        ("127.0.0.1:0", None, "peer:127.0.0.1"),
        ("127.0.0.1:0", "127.0.0.1", "token:127.0.0.1"),
    ],
)
async def test_a_caller_is_known_by_token_or_address(address, name, identity) -> None:
    assert await _who(address, name) == identity


async def test_a_caller_on_a_local_socket_has_no_address(tmp_path) -> None:
    assert await _who(f"unix:{tmp_path}/socket") == "peer:unix"


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:10.0.0.7:51000", "10.0.0.7"), ("ipv6:%5B2001:db8::1%5D:51000", "2001:db8::1")],
)
def test_an_address_is_without_its_port(peer, address) -> None:
    assert address_of(peer) == address
