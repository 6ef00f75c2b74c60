"""The files in ``deploy/`` are valid, and agree with the server and with each other."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from server.options import SETTINGS
from server.telemetry.metrics import Metrics
from tests.deploy.test_replicas import ENVOY
from tests.environments import ROOT, environment
from tests.serving import server_process

DEPLOY = ROOT / "deploy"
PACKAGES = ("kubernetes-validate==1.37.0", "promql-parser==0.12.0")
PARSE = "import json, sys, promql_parser as p; [p.parse(text) for text in json.load(sys.stdin)]"


def load(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


@pytest.fixture(scope="module")
def kubernetes() -> dict[tuple[str, str], Any]:
    """The resources by kind and name."""
    resources = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return {(resource["kind"], resource["metadata"]["name"]): resource for resource in resources}


def container_of(deployment: Any) -> Any:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return container


def expressions() -> Iterator[str]:
    """Every PromQL expression."""
    for group in load("alerts.yaml")["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    for panel in json.loads((DEPLOY / "grafana.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "1m")


def test_the_resources_are_valid_for_kubernetes() -> None:
    program = environment(*PACKAGES) / "kubernetes-validate"
    command = [str(program), "--strict", str(DEPLOY / "kubernetes.yaml")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_expressions_are_valid_promql() -> None:
    command = [str(environment(*PACKAGES) / "python"), "-c", PARSE]
    texts = json.dumps(list(expressions()))
    ran = subprocess.run(command, input=texts, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_the_expressions_name_metrics_of_the_server() -> None:
    known = {
        f"{family.name}{suffix}"
        for family in Metrics().registry.collect()
        for suffix in ("", "_total", "_bucket", "_sum", "_count")
    }
    named = set(re.findall(r"\btriune_\w+", " ".join(expressions())))
    assert named
    assert named <= known


def test_the_server_has_the_options_that_it_is_given(kubernetes: Any) -> None:
    commands = [
        container_of(kubernetes["Deployment", "triune"])["args"],
        load("compose.yaml")["services"]["triune"]["command"],
    ]
    for command in commands:
        flags = {word for word in command if word.startswith("--")}
        assert flags <= {setting.flag for setting in SETTINGS.values()}
        assert command[command.index("--http") + 1] == "0.0.0.0:8080"


def test_the_grace_period_ends_before_the_container_is_killed(kubernetes: Any) -> None:
    grace = SETTINGS["grace"].default
    pod = kubernetes["Deployment", "triune"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > grace
    stop = load("compose.yaml")["services"]["triune"]["stop_grace_period"]
    assert int(stop.removesuffix("s")) > grace


def test_ports_and_names_agree(kubernetes: Any) -> None:
    grpc_port, metrics = (
        int(SETTINGS[name].default.rpartition(":")[2]) for name in ("listen", "metrics")
    )
    ports = {"grpc": grpc_port, "http": 8080, "metrics": metrics}
    deployment, service = kubernetes["Deployment", "triune"], kubernetes["Service", "triune"]
    assert {p["name"]: p["containerPort"] for p in container_of(deployment)["ports"]} == ports
    assert {p["name"]: p["port"] for p in service["spec"]["ports"]} == ports
    resources = load("envoy.yaml")["static_resources"]
    for listener in resources["listeners"]:
        assert listener["address"]["socket_address"]["port_value"] == ports[listener["name"]]
    for cluster in resources["clusters"]:
        (endpoints,) = cluster["load_assignment"]["endpoints"]
        (endpoint,) = endpoints["lb_endpoints"]
        address = endpoint["endpoint"]["address"]["socket_address"]
        assert address == {"address": "triune", "port_value": ports[cluster["name"]]}
    (scraped,) = load("prometheus.yaml")["scrape_configs"]
    (targets,) = scraped["dns_sd_configs"]
    assert (targets["names"], targets["port"]) == (["triune"], metrics)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for kind in ("Service", "PodDisruptionBudget"):
        selector = kubernetes[kind, "triune"]["spec"]["selector"]
        assert selector.get("matchLabels", selector) == labels
    target = kubernetes["HorizontalPodAutoscaler", "triune"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", "triune")


def test_probes_ask_for_health_that_the_server_tells(kubernetes: Any, tiny_bundles: Path) -> None:
    container = container_of(kubernetes["Deployment", "triune"])
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    services = [container[probe]["grpc"].get("service", "") for probe in probes]
    assert len(set(services)) == 2
    with server_process(tiny_bundles) as server, grpc.insecure_channel(server.target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in services:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_envoy_is_the_version_that_is_tested(kubernetes: Any) -> None:
    image = f"envoyproxy/envoy:v{ENVOY.partition('==')[2]}"
    assert container_of(kubernetes["Deployment", "triune-gateway"])["image"] == image
    assert load("compose.yaml")["services"]["envoy"]["image"] == image
