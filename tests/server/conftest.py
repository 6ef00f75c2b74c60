"""Fixtures: a client, kernels, register widths of this CPU, a CUDA runtime, a bundle, tokens."""

import gc
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.sync import Client
from scripts.build_kernels import build_emulated_library
from server.runtime.cuda import cudart
from server.runtime.kernels import rewrite as rewriting
from server.runtime.kernels.library import supported_kernels, use_registers
from tests.cuda.libraries import StandIn, build_runtime
from tests.serving import ServerProcess

WIDTHS = [bits for bits in (256, 512, 8192) if use_registers(bits)]
use_registers(0)

TOKENS = "# who: what\n\nalice:first-token\nsecond.token==\n"


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """A client of the module's own ``server``."""
    with Client(server.target) as client:
        yield client


@pytest.fixture(scope="module", params=WIDTHS, ids=lambda bits: f"{bits} bits")
def register_bits(request: pytest.FixtureRequest) -> Iterator[int]:
    """Limits the kernels to this register width."""
    assert use_registers(request.param)
    yield request.param
    use_registers(0)


@pytest.fixture
def all_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels replace operators that ONNX Runtime computes faster on this CPU too."""
    monkeypatch.setattr(rewriting, "preferred_kernels", supported_kernels)


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of CUDA's operators, whose device code an emulator runs."""
    path: Path = tmp_path_factory.mktemp("cuda") / "emulated.so"
    build_emulated_library(path)
    return path


@pytest.fixture(scope="session")
def cuda_runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that stands for the CUDA runtime."""
    return build_runtime(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def cuda(cuda_runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """At its end, all that was made is destroyed."""
    runtime = StandIn(cuda_runtime)
    runtime.reset()
    monkeypatch.setattr(cudart, "_LIBRARIES", (str(cuda_runtime),))
    cudart._library.cache_clear()
    yield runtime
    runtime.be_late(False)
    runtime.forget_work()
    gc.collect()
    assert runtime.num_alive == 0
    cudart._library.cache_clear()


@pytest.fixture
def bundles(tiny_bundles: Path, tmp_path: Path) -> Path:
    """A private bundle folder that holds the tiny classifier."""
    name = "tiny-classifier"
    shutil.copytree(tiny_bundles / name, tmp_path / "bundles" / name)
    return tmp_path / "bundles"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """A file with two access tokens."""
    path = tmp_path / "tokens"
    path.write_text(TOKENS)
    return path
