"""Fixtures: stand-ins of NVIDIA's libraries, bundles for a GPU, and a probe that serves them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadtest.gpu.deadline import Deadline
from loadtest.gpu.model_builder import ModelBuilder
from loadtest.gpu.model_sizes import SIZES, VECTOR_SIZES
from tests.cuda.libraries import build_all, onnxruntime_for_gpus
from tests.cuda.probe import Reply, Request, probe

Probe = Callable[[Request], Reply]


@pytest.fixture(scope="session")
def cuda_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("cuda")
    build_all(folder)
    return folder


@pytest.fixture
def run_probe(cuda_libraries: Path, tmp_path: Path) -> Probe:
    return lambda request: probe(request, cuda_libraries, onnxruntime_for_gpus(), tmp_path)


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of models and bundles."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def builder(root: Path) -> Iterator[ModelBuilder]:
    made = ModelBuilder(root, "cuda", Deadline(1800))
    yield made
    made.close()


@pytest.fixture(scope="session")
def bundle_of(builder: ModelBuilder) -> Callable[..., str]:
    """Writes a bundle for CUDA of a model of ``loadtest gpu``."""

    sizes = {**SIZES, **{size.name: size for size in VECTOR_SIZES}}

    def make(name: str, precision: str = "fp16", kv_cache: str = "float") -> str:
        return str(builder.bundle(sizes[name], precision, kv_cache))

    return make
