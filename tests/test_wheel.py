"""The wheel contains the native kernels and the console, and an installed server has them."""

import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from pathlib import Path

import pytest

from client.sync import Client
from server.runtime.kernels.library import LIBRARY, kernels_in_use
from tests.faults.serving import metric
from tests.serving import wait_until_ready

ROOT = Path(__file__).parents[1]
CLASSIFIER = "tiny-classifier"
needs_kernels = pytest.mark.skipif(
    not any(kernels_in_use().values()), reason="this CPU has no registers for the kernels"
)
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
BUILD_SDIST = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the source distribution."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-c", BUILD_SDIST, str(folder)], check=True, cwd=ROOT)
    (source,) = folder.glob("triune-*.tar.gz")
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run([*PIP, *build], check=True, cwd=folder)
    (wheel,) = folder.glob("triune-*.whl")
    assert wheel.name.endswith(f"-py3-none-manylinux_2_28_{platform.machine()}.whl")
    return wheel


@pytest.fixture(scope="module")
def python(wheel: Path) -> Path:
    """An environment with the wheel, and this one's dependencies."""
    environment = wheel.parent / "environment"
    venv.create(environment)
    python = environment / "bin" / "python"
    install = ["--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*PIP, *install], check=True, cwd=wheel.parent)
    (packages,) = environment.glob("lib/python*/site-packages")
    # The files .pth of a folder that is named in a file .pth are not read, so the project itself,
    # which is installed there for development, cannot be imported.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python


@pytest.mark.slow
def test_pip_installs_a_command_that_serves_and_calls(wheel: Path, tiny_bundles: Path) -> None:
    """``pip install triune[cpu]`` into an empty environment, with dependencies from the index."""
    folder = wheel.parent / "clean"
    venv.create(folder)
    install = [
        "--python",
        str(folder / "bin" / "python"),
        "install",
        f"triune[cpu] @ {wheel.as_uri()}",
    ]
    subprocess.run([*PIP, *install], check=True, cwd=folder)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONPATH" and not name.startswith("TRIUNE_")
    }
    triune = str(folder / "bin" / "triune")

    def call(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [triune, *arguments],
            cwd=folder,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    (folder / "triune.toml").write_text(
        f"bundles = '{tiny_bundles}'\nlisten = '127.0.0.1:0'\nmetrics = '127.0.0.1:0'\n"
        "http = '127.0.0.1:0'\n"
    )
    with subprocess.Popen(
        [triune, "serve"], stderr=subprocess.PIPE, text=True, cwd=folder, env=environment
    ) as process:
        try:
            target = wait_until_ready(process).target
            generated = call(
                *("generate", "--model", "tiny-decoder", "--raw", "1 2"), TRIUNE_TARGET=target
            )
            translated = call("translate", "--target", target, "--model", "dates", "3 March 2021")
            classified = call("classify", "--server", target, "--model", CLASSIFIER, "12", "--json")
        finally:
            process.terminate()
            process.communicate(timeout=60)
    assert (generated.returncode, generated.stderr) == (0, "")
    assert generated.stdout.strip()
    assert translated.stdout == "2021-03-03\n"
    assert len(json.loads(classified.stdout)["outputs"]) == 1
    exported = call("export", "minilm", "--out", "bundles/minilm")
    assert (exported.returncode, exported.stdout) == (1, "")
    assert "needs the package" in exported.stderr
    assert "pip install '.[export]'" in exported.stderr


@needs_kernels
@pytest.mark.slow
def test_an_installed_server_has_kernels_and_console(python: Path, tiny_bundles: Path) -> None:
    command = [str(python), "-P", "-m", "server", "--bundles", str(tiny_bundles)]
    command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=python.parent, env=environment
    ) as process:
        try:
            running = wait_until_ready(process)
            with Client(running.target, timeout_seconds=60) as client:
                assert client.classify(CLASSIFIER, "12").outputs
                reported = client.get_model(CLASSIFIER).native_kernels
            with urllib.request.urlopen(f"{running.http_url}/console/console.js") as answer:
                script = answer.read()
            logged = re.search(r"native kernels: (.*)", "".join(running.log))
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            for name, is_used in kernels_in_use().items():
                assert metric(running, "triune_native_kernels", kernel=name) == is_used
        finally:
            process.terminate()
            process.communicate(timeout=60)
    assert script == (ROOT / "console" / "console.js").read_bytes()
    assert logged is not None
    used = {name for name, is_used in kernels_in_use().items() if is_used}
    assert set(logged[1].split(", ")) == used
    assert set(reported) == used & {"attention", "matmul", "norm"}, "those that the model needs"
    mapped = {Path(line.split()[-1]) for line in maps.splitlines() if LIBRARY.name in line}
    assert [path.is_relative_to(python.parents[1]) for path in mapped] == [True]


def test_a_server_without_the_library_warns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from server import app  # noqa: PLC0415
    from server.runtime.kernels import library  # noqa: PLC0415

    for module in (app, library):
        monkeypatch.setattr(module, "LIBRARY", tmp_path / LIBRARY.name)
    library.preferred_kernels.cache_clear()
    try:
        assert set(app.report_kernels().values()) == {False}
    finally:
        library.preferred_kernels.cache_clear()
    assert "native kernels: none, this installation has no libtriune_kernels.so" in caplog.text
    assert [record.levelname for record in caplog.records] == ["WARNING"]
