"""Access tokens as Ollama's own client sends them."""

from pathlib import Path

import ollama
import pytest

from tests.frontends.conftest import DECODER
from tests.server.in_process_server import serving


async def test_the_key_of_the_environment_is_the_token(
    every_task: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(every_task, http="127.0.0.1:0", tokens=tokens) as running:
        host = f"http://127.0.0.1:{running.http_port}"
        async with ollama.AsyncClient(host=host) as client:
            with pytest.raises(ollama.ResponseError, match="a valid bearer token") as caught:
                await client.list()
            assert caught.value.status_code == 401
        monkeypatch.setenv("OLLAMA_API_KEY", "first-token")
        async with ollama.AsyncClient(host=host) as client:
            listed = [model.model for model in (await client.list()).models]
            assert f"{DECODER}:latest" in listed
            assert (await client.generate(DECODER, "7,")).done
