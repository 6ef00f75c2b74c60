"""Startup errors: damaged bundles, missing devices, invalid options."""

import asyncio
import shutil
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from client.sync import Client
from client.types import ModelState
from server.config import ServerConfig
from server.frontends.grpc.frontend import GrpcFrontend
from server.frontends.http.frontend import HttpFrontend
from server.frontends.http.listener import bound_socket
from server.telemetry.metrics import Metrics
from tests.faults.record import record
from tests.server.damaged_bundles import DAMAGES, rename
from tests.serving import server_process

pytestmark = pytest.mark.slow  # starts many processes

VICTIM = "tiny-decoder"


def test_rejects_damaged_bundles_by_name_and_serves_the_others(
    tiny_bundles: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root" / "bundles"
    root.mkdir(parents=True)
    shutil.copytree(tiny_bundles, root, dirs_exist_ok=True)
    (version,) = (root / VICTIM).iterdir()
    for index, (damage, _) in enumerate(DAMAGES.values()):
        name = f"{VICTIM}-{index}"
        copy = root / name / version.name
        shutil.copytree(version, copy)
        rename(copy, name)
        damage(copy)
    with server_process(root, "--threads", "1") as running, Client(running.target) as client:
        models = {model.name: model for model in client.list_models()}
        for index, (label, (_, reason)) in enumerate(DAMAGES.items()):
            model = models[f"{VICTIM}-{index}"]
            assert model.state == ModelState.REFUSED, label
            assert reason in model.failure, label
        assert client.generate(VICTIM, "1", max_new_tokens=3).outputs
        assert models["dates"].state == ModelState.READY
    record(
        17,
        "damaged and hostile bundles: links, outside paths, hidden external data, …",
        "each is rejected by name, the others are served",
        bundles=len(DAMAGES),
        refused=sum(model.state == ModelState.REFUSED for model in models.values()),
    )


@pytest.mark.parametrize(
    ("options", "message", "status"),
    [
        (["--device", "cuda"], "device 'cuda' was asked for, but", 1),
        (["--device", "cuda:1"], "device 'cuda:1' was asked for, but", 1),
        (["--device", "tpu"], "unknown device 'tpu'", 2),
        (["--listen", "256.0.0.1:1"], "cannot listen on 256.0.0.1:1", 1),
        (["--metrics", "nowhere"], "address 'nowhere' is not HOST:PORT", 2),
    ],
)
def test_unavailable_options_fail_startup(tiny_bundles, options, message, status) -> None:
    command = [sys.executable, "-m", "server", "--bundles", str(tiny_bundles)]
    command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", *options]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert completed.returncode == status
    assert message in completed.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", "TAKEN"], "cannot listen on TAKEN: Address already in use"),
        (["--admin", "TAKEN"], "cannot listen on TAKEN: Address already in use"),
        (["--metrics", "TAKEN"], "cannot serve metrics on TAKEN: Address already in use"),
        (["--http", "TAKEN"], "cannot serve HTTP on TAKEN: Address already in use"),
        (["--tokens", "BAD"], "tokens: BAD: line 1 is neither TOKEN nor NAME:TOKEN"),
        (["--admin", "127.0.0.1:0", "--admin-tokens", "BAD"], "tokens: BAD: line 1"),
        (["--tls-cert", "NONE", "--tls-key", "BAD"], "TLS certificate: [Errno 2] No such file"),
        (["--tls-cert", "BAD", "--tls-key", "BAD"], ": BAD, BAD"),
    ],
)
def test_startup_fails_before_models_are_loaded(
    tiny_bundles: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    (tmp_path / "bad").write_text("two words")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        values = {
            "TAKEN": f"127.0.0.1:{taken.getsockname()[1]}",
            "BAD": str(tmp_path / "bad"),
            "NONE": str(tmp_path / "none"),
        }
        for name, value in values.items():
            options = [option.replace(name, value) for option in options]
            message = message.replace(name, value)
        command = [sys.executable, "-m", "server", "--bundles", str(tiny_bundles)]
        command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--http", "none"]
        completed = subprocess.run(
            [*command, *options], capture_output=True, text=True, timeout=120, check=False
        )
    assert completed.returncode == 1
    assert message in completed.stderr
    assert "loaded" not in completed.stderr


async def test_nobody_can_connect_before_the_start(tmp_path: Path) -> None:
    with closing(bound_socket("127.0.0.1:0")) as free:
        port: int = free.getsockname()[1]
        config = ServerConfig(bundles=tmp_path, listen=f"127.0.0.1:{port}", http="127.0.0.1:0")
        grpc, http = GrpcFrontend(config), HttpFrontend(config, Metrics())
        grpc.prepare()
        http.prepare()
        with closing(http):
            assert http.port
            for chosen in (port, http.port):
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection("127.0.0.1", chosen)


def test_missing_bundles_fail_startup(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "server", "--bundles", str(tmp_path)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert completed.returncode == 1
    assert "no bundle" in completed.stderr
