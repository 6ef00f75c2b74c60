"""The commands of ``docs/coming-from.md``, each run against a real server."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anthropic
import cohere
import ollama
import openai
import pytest

from tests.frontends.conftest import DECODER, EMBEDDER, TRANSLATOR
from tests.gliner_models import GLINER
from tests.recordings import tone, wav
from tests.retrieval_models import MULTI_VECTOR, SPARSE
from tests.serving import ServerProcess, server_process
from tests.static_models import MODEL2VEC

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "coming-from.md"
SPAN = re.compile(r"`([^`]*)`")
# Small models under the names of the default models.
MODELS = {
    "minilm": EMBEDDER,
    "smollm2": DECODER,
    "en-pt": TRANSLATOR,
    "whisper": "speech",
    "ast": "ast",
    "debian-splade": SPARSE,
    "debian-colbert": MULTI_VECTOR,
    "potion": MODEL2VEC,
    "gliner": GLINER,
}
LANGUAGES = {"en-pt": {"source_language": "en", "target_language": "pt"}}


def _here() -> list[str]:
    """The code in the last column, "here"."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [span for row in rows for span in SPAN.findall(row.split(" | ")[-1])]


COMMANDS = [span for span in _here() if span.startswith(("curl ", "triune "))]


@pytest.fixture(scope="module")
def server(
    every_task: Path,
    speech_bundles: Path,
    audio_bundles: Path,
    retrieval_bundles: Path,
    static_bundles: Path,
    gliner_bundles: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("default-names")
    folders = {
        "whisper": speech_bundles,
        "gliner": gliner_bundles,
        "ast": audio_bundles,
        **dict.fromkeys(("debian-splade", "debian-colbert"), retrieval_bundles),
        "potion": static_bundles,
    }
    for name, small in MODELS.items():
        shutil.copytree(folders.get(name, every_task) / small, root / name)
        manifest = root / name / "1" / "bundle.json"
        content = json.loads(manifest.read_text()) | {"name": name} | LANGUAGES.get(name, {})
        manifest.write_text(json.dumps(content))
    with server_process(root, "--threads", "1", "--slots", "4") as running:
        yield running


def test_every_tool_has_a_command() -> None:
    places = (
        "transcribe",
        "/v1/audio/transcriptions",
        "/embed",
        "/embed_sparse",
        "/v1/multi-vector",
        "embed --model debian-colbert",
        "/rerank",
        "tag --model gliner",
        "/translate",
        "/v1/completions",
        "/v1/messages",
        "/score",
        "/v2/",
        "/api/generate",
        "translate",
        "batch",
    )
    assert all(any(place in command for command in COMMANDS) for place in places)
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(server: ServerProcess, tmp_path: Path, command: str) -> None:
    (tmp_path / "recording.mp3").write_bytes(wav(tone(1.0, 16_000)))
    body = {"model": "smollm2", "prompt": "7,", "max_tokens": 5}
    row = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}
    (tmp_path / "requests.jsonl").write_text(json.dumps(row), encoding="utf-8")
    words = shlex.split(command.replace("localhost:8080", f"127.0.0.1:{server.http_port}"))
    if words[0] == "curl":
        words[1:1] = ["--silent", "--show-error", "--fail-with-body"]
    else:
        words[:1] = [sys.executable, "-m", "triune"]
    addresses = {"TRIUNE_TARGET": server.target, "TRIUNE_URL": server.http_url}
    variables = {**os.environ, **addresses, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=60, env=variables, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    if words[0] == "curl":
        assert json.loads(ran.stdout)
    else:
        assert ran.stdout.strip()


def test_coheres_client(server: ServerProcess) -> None:
    (code,) = (span for span in _here() if span.startswith("ClientV2("))
    (api_key, base_url) = re.findall(r'="([^"]*)"', code)
    address = base_url.replace("localhost:8080", f"127.0.0.1:{server.http_port}")
    client = cohere.ClientV2(api_key=api_key, base_url=address)
    answer = client.embed(texts=["a"], model="minilm", input_type="search_query")
    assert answer.embeddings.float_ is not None
    assert len(answer.embeddings.float_) == 1


def test_openais_client(server: ServerProcess) -> None:
    (code,) = (span for span in _here() if span.startswith("OpenAI("))
    (base_url, api_key) = re.findall(r'="([^"]*)"', code)
    client = openai.OpenAI(
        base_url=base_url.replace("localhost:8080", f"127.0.0.1:{server.http_port}"),
        api_key=api_key,
    )
    answer = client.completions.create(model="smollm2", prompt="7,", max_tokens=5)
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 5


def test_ollamas_client(server: ServerProcess) -> None:
    (code,) = (span for span in _here() if span.startswith("Client(host="))
    (host,) = re.findall(r'="([^"]*)"', code)
    client = ollama.Client(host.replace("localhost:8080", f"127.0.0.1:{server.http_port}"))
    turn = {"role": "user", "content": "7,"}
    answer = client.chat("smollm2", [turn], options={"num_predict": 5})
    assert answer.eval_count is not None
    assert 0 < answer.eval_count <= 5


def test_anthropics_client(server: ServerProcess) -> None:
    (code,) = (span for span in _here() if span.startswith("Anthropic("))
    (base_url, api_key) = re.findall(r'="([^"]*)"', code)
    client = anthropic.Anthropic(
        base_url=base_url.replace("localhost:8080", f"127.0.0.1:{server.http_port}"),
        api_key=api_key,
    )
    answer = client.messages.create(
        model="smollm2", max_tokens=5, messages=[{"role": "user", "content": "7,"}]
    )
    assert 0 < answer.usage.output_tokens <= 5
