"""A server with a small model for each task, and a chat template."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx2
import pytest

from tests.server.conftest import bundles as bundles  # noqa: PLC0414
from tests.server.conftest import tokens as tokens  # noqa: PLC0414
from tests.serving import ServerProcess, server_process

DECODER, EMBEDDER, RERANKER, CLASSIFIER = "tiny-decoder", "embedder", "judge", "sorter"
TRANSLATOR = "dates"
_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture(scope="session")
def every_task(
    tiny_bundles: Path, head_bundles: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder of bundles: a decoder with a chat template, a translator, and encoders."""
    root = tmp_path_factory.mktemp("every-task")
    for source, names in (
        (tiny_bundles, (DECODER, TRANSLATOR)),
        (head_bundles, (EMBEDDER, RERANKER, CLASSIFIER)),
    ):
        for name in names:
            shutil.copytree(source / name, root / name)
    manifest = root / DECODER / "1" / "bundle.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(content | {"chat_template": _TEMPLATE}))
    return root


@pytest.fixture(scope="session")
def server(every_task: Path) -> Iterator[ServerProcess]:
    """A server of these bundles, without tokens."""
    with server_process(every_task, "--threads", "1", "--slots", "4") as running:
        yield running


@pytest.fixture(scope="module")
def channel(server: ServerProcess) -> Iterator[grpc.Channel]:
    """To the server of a module, for calls by gRPC."""
    with grpc.insecure_channel(server.target) as channel:
        yield channel


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx2.Client]:
    """The same, by HTTP."""
    with httpx2.Client(base_url=server.http_url, timeout=60) as client:
        yield client
