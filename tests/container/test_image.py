"""The Dockerfile's image: its contents, and serving unprivileged on read-only mounts."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.container.image import ROOT, Image
from tests.container.running import Container, as_image_user, container

TARGET = "127.0.0.1:50051"
SBOM = "usr/share/doc/triune/sbom.cdx.json"
LIST_PACKAGES = """
import importlib.metadata, json
print(json.dumps({each.name: each.version for each in importlib.metadata.distributions()}))
"""
LIST_READ_ONLY = """
import os
print(*(path for path in ("/", "/bundles") if os.statvfs(path).f_flag & os.ST_RDONLY))
"""


@pytest.fixture(scope="module")
def running(image: Image, tiny_bundles: Path):
    with container(image, tiny_bundles) as running:
        yield running


@pytest.fixture(scope="module")
def packages(running: Container) -> dict[str, str]:
    """Versions of the image's Python packages, by name."""
    listed: dict[str, str] = json.loads(running.run("python", "-c", LIST_PACKAGES).stdout)
    return listed


def test_container_is_healthy_serves_and_stops_cleanly(image: Image, tiny_bundles: Path) -> None:
    with container(image, tiny_bundles) as running:
        health = running.run(*image.health_command)
        assert health.returncode == 0, health.stderr
        call = ["translate", "--model", "dates", "3 March 2021"]
        result = running.run_in_network(sys.executable, "-m", "client", "--target", TARGET, *call)
        assert (result.returncode, result.stdout) == (0, "2021-03-03\n"), result.stderr
        assert running.stop() == 0


def test_health_check_fails_without_a_server(image: Image) -> None:
    command = ["unshare", "--net", "--", *as_image_user(image, *image.health_command)]
    health = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert health.returncode == 1
    assert "UNAVAILABLE" in health.stderr


def test_server_runs_unprivileged(running: Container) -> None:
    status = running.status()
    assert status["Uid"].split() == ["10001"] * 4
    assert status["Gid"].split() == ["10001"] * 4
    assert status["Groups"].split() == []
    assert int(status["CapPrm"], 16) == int(status["CapEff"], 16) == 0
    assert status["NoNewPrivs"] == "1"


def test_server_runs_on_a_read_only_file_system(running: Container) -> None:
    listed = running.run("python", "-c", LIST_READ_ONLY)
    assert listed.stdout == "/ /bundles\n", listed.stderr


def test_image_user_owns_no_files(image: Image) -> None:
    user = int(image.user.split(":")[0])
    assert user != 0
    owned = [path for path in image.root.rglob("*") if path.lstat().st_uid == user]
    assert owned == []


def test_image_has_only_what_serving_needs(image: Image, packages: dict[str, str]) -> None:
    assert packages.keys().isdisjoint({"pip", "setuptools", "torch"})
    assert not (image.root / "src").exists()
    assert not [path for path in image.root.rglob("*") if path.name in {".cache", "http-v2"}]


def test_sbom_lists_the_installed_packages(image: Image, packages: dict[str, str]) -> None:
    sbom = json.loads((image.root / SBOM).read_text())
    project_component = sbom["metadata"]["component"]
    listed = {each["name"]: each["version"] for each in [project_component, *sbom["components"]]}
    assert listed == packages
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["cpu"] == [f"onnxruntime=={listed['onnxruntime']}"]
