"""Clients of the server with a model for each task, and a listener without models."""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import ollama
import openai
import pytest

from tests.frontends.http.listening import Start, listening
from tests.serving import ServerProcess


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.http_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(server: ServerProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{server.http_url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def ollamas(server: ServerProcess) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.http_url) as client:
        yield client


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts a listener with the route ``/echo`` and the given limits; yields its port."""
    return partial(listening, tmp_path)
