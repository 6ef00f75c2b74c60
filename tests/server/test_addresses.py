"""Addresses that cannot be used end the start with a message."""

import socket
from pathlib import Path
from typing import Any

import pytest

from server.__main__ import app
from server.addresses import check_grpc_address, host_and_port
from server.app import running_server
from server.config import ServerConfig
from server.errors import StartupError

# gRPC would serve the first four on port 4464, 65535, 443 and 80.
MALFORMED = (
    *("127.0.0.1:70000", "127.0.0.1:-1", "127.0.0.1", "localhost:http", ":1", "h:١", "h:"),
    "h:" + "0" * 5000,
)


@pytest.mark.parametrize("address", MALFORMED)
def test_rejects_malformed_addresses(address: str) -> None:
    for check in (check_grpc_address, host_and_port):
        with pytest.raises(StartupError, match="is not HOST:PORT with a port of at most 65535"):
            check(address)


@pytest.mark.parametrize("address", ["unix:", "unix-abstract:"])
def test_a_socket_needs_a_name(address: str) -> None:
    with pytest.raises(StartupError, match=f"'{address}' has no path"):
        check_grpc_address(address)
    check_grpc_address(f"{address}triune")


def test_splits_addresses() -> None:
    assert host_and_port("[::1]:65535") == ("::1", 65535)
    assert host_and_port("localhost:0") == ("localhost", 0)
    check_grpc_address("unix:/run/triune.sock")
    with pytest.raises(StartupError):
        host_and_port("unix:/run/triune.sock")


@pytest.mark.parametrize("option", ["listen", "metrics", "admin"])
async def test_no_listener_opens_on_a_malformed_address(bundles: Path, option: str) -> None:
    addresses: dict[str, Any] = {"listen": "127.0.0.1:0", "metrics": "127.0.0.1:0"}
    addresses[option] = "127.0.0.1:70000"
    with pytest.raises(StartupError, match=r"'127\.0\.0\.1:70000' is not HOST:PORT"):
        async with running_server(ServerConfig(bundles=bundles, **addresses)):
            pass


@pytest.mark.parametrize("option", ["listen", "metrics", "admin"])
async def test_a_port_in_use_fails_startup(bundles: Path, option: str) -> None:
    addresses: dict[str, Any] = {"listen": "127.0.0.1:0", "metrics": "127.0.0.1:0"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        addresses[option] = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartupError, match=f"on {addresses[option]}: "):
            async with running_server(ServerConfig(bundles=bundles, **addresses)):
                pass


@pytest.mark.parametrize(
    "option", ["--watch", "--max-connection-age", "--stall-seconds", "--grace", "--max-streams"]
)
@pytest.mark.parametrize("value", ["nan", "inf", "1e300", "99999999999"])
def test_rejects_numbers_that_nothing_can_hold(tmp_path: Path, option: str, value: str) -> None:
    with pytest.raises(SystemExit) as caught:
        app(["--bundles", str(tmp_path), "--check", option, value])
    is_time_in_seconds = option in {"--watch", "--stall-seconds"} and value not in {"nan", "inf"}
    assert caught.value.code == (0 if is_time_in_seconds else 2)


@pytest.mark.parametrize("origin", ["example.org", "https://example.org/", "https://Example.org"])
def test_rejects_origins_that_no_page_has(tmp_path: Path, origin: str) -> None:
    options = ["--bundles", str(tmp_path), "--check", "--http-cors", "http://localhost:3000"]
    app_exits(options, 0)
    app_exits([*options, "--http-cors", origin], 2)


def app_exits(options: list[str], code: int) -> None:
    with pytest.raises(SystemExit) as caught:
        app(options)
    assert caught.value.code == code
