"""One server with a model for each task, and its clients."""

import asyncio
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from client.sync import Client
from protos.inference import open_inference_pb2_grpc
from server.app import RunningServer
from tests.server.in_process_server import serving


@dataclass(frozen=True)
class Doors:
    """A running server by the protocols that reach it."""

    running: RunningServer
    ours: Client
    oip: Any
    admin: Any

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.running.http_port}"


@pytest.fixture(scope="session")
def all_bundles(
    tiny_bundles: Path,
    head_bundles: Path,
    image_bundles: Path,
    caption_bundles: Path,
    speech_bundles: Path,
    retrieval_bundles: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A bundle for each task, and models of images, of speech and of other embeddings."""
    folder = tmp_path_factory.mktemp("oip") / "bundles"
    of_texts = (tiny_bundles, head_bundles, retrieval_bundles)
    for root in (*of_texts, image_bundles, caption_bundles, speech_bundles):
        for path in root.iterdir():
            if path.is_dir():
                shutil.copytree(path, folder / path.name)
    return folder


@pytest.fixture(scope="session")
def doors(all_bundles: Path) -> Iterator[Doors]:
    """The server runs on an event loop of its own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    context = serving(all_bundles, http="127.0.0.1:0", num_slots=4, max_length=64)
    running = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(60)
    with (
        Client(f"127.0.0.1:{running.port}", timeout_seconds=60) as client,
        grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel,
        grpc.insecure_channel(f"127.0.0.1:{running.admin_port}") as admin,
    ):
        stub = open_inference_pb2_grpc.GRPCInferenceServiceStub
        yield Doors(running, client, stub(channel), stub(admin))
    asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
