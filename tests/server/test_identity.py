"""The caller's identity as derived from a real call's context."""

from pathlib import Path

import grpc
import grpc.aio
import pytest
import trustme

from client.channel import OPEN, Security
from server.config import ServerConfig, TlsFiles
from server.frontends.grpc.identity import address_of, identity_of
from server.frontends.grpc.listeners import credentials_of, make_server, open_port
from server.service.access_tokens import AccessTokens

_METHOD = "/tests.Identity/Who"


async def _identity(
    address: str = "127.0.0.1:0",
    *,
    tokens: Path | None = None,
    tls: TlsFiles | None = None,
    security: Security = OPEN,
) -> str:
    """The identity that a server on ``address`` assigns to a caller."""

    async def report_identity(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        del request
        return identity_of(context).encode()

    server = make_server(
        ServerConfig(bundles=Path()), None if tokens is None else AccessTokens(tokens)
    )
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Who": grpc.unary_unary_rpc_method_handler(report_identity)
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("tests.Identity", handlers),)
    )
    port = open_port(server, address, None if tls is None else credentials_of(tls))
    await server.start()
    target = address if address.startswith("unix:") else f"127.0.0.1:{port}"
    try:
        async with security.aio_channel(target) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_METHOD)
            return (await call(b"", metadata=security.metadata, timeout=60)).decode()
    finally:
        await server.stop(None)


async def test_identifies_the_caller_by_address(tmp_path: Path) -> None:
    assert await _identity() == "peer:127.0.0.1"
    assert await _identity(f"unix:{tmp_path}/socket") == "peer:unix"


async def test_identifies_the_caller_by_token(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("alice:a-token\nbob:another")
    security = Security(token="another")
    assert await _identity(tokens=tmp_path / "tokens", security=security) == "token:bob"


async def test_identifies_the_caller_by_certificate(tmp_path: Path) -> None:
    ca, cert, key = trustme.CA(), tmp_path / "cert", tmp_path / "key"
    ca.cert_pem.write_to_path(tmp_path / "ca")
    issued = ca.issue_cert("127.0.0.1", common_name="carol")
    issued.private_key_pem.write_to_path(key)
    issued.cert_chain_pems[0].write_to_path(cert)
    tls = TlsFiles(certificate=cert, key=key, client_ca=tmp_path / "ca")
    security = Security(ca_file=tmp_path / "ca", certificate_file=cert, key_file=key)
    assert await _identity(tls=tls, security=security) == "certificate:carol"


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:10.0.0.7:51000", "10.0.0.7"), ("ipv6:%5B2001:db8::1%5D:51000", "2001:db8::1")],
)
def test_strips_the_port_from_the_address(peer, address) -> None:
    assert address_of(peer) == address
