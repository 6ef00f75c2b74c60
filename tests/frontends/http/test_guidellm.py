"""GuideLLM, unmodified, in an environment of its own: a load test by OpenAI's protocol."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from loadtest.compare.environments import Environment
from loadtest.compare.prepare import prepare
from tests.frontends.conftest import DECODER, EMBEDDER
from tests.serving import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

BUILD = Path(__file__).resolve().parents[3] / "build"
GUIDELLM = Environment(name="guidellm", requirements=("guidellm==0.8.1", "torch==2.13.0"))
NUM_REQUESTS, NEW_TOKENS = 12, 8


@pytest.fixture(scope="module")
def python() -> Path:
    assert prepare([GUIDELLM], (), BUILD, print)
    return GUIDELLM.python(BUILD / "peers")


@pytest.mark.parametrize(
    ("route", "model"),
    [
        ("/v1/completions", DECODER),
        ("/v1/chat/completions", DECODER),
        ("/v1/responses", DECODER),
        ("/v1/embeddings", EMBEDDER),
    ],
)
def test_guidellm(
    server: ServerProcess, every_task: Path, python: Path, tmp_path: Path, route: str, model: str
) -> None:
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    source = every_task / DECODER / "1" / "tokenizer.json"
    (tokenizer / "tokenizer.json").write_bytes(source.read_bytes())
    (tokenizer / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8"
    )
    prompt = {"prompt": "100,101,", "output_tokens_count": NEW_TOKENS}
    data, report = tmp_path / "prompts.jsonl", tmp_path / "report.json"
    data.write_text(f"{json.dumps(prompt)}\n" * NUM_REQUESTS, encoding="utf-8")
    target = f"target={server.http_url},model={model},request_format={route}"
    options = {
        "backend": f"kind=openai_http,{target}",
        "tokenizer": f"kind=huggingface_auto,model={tokenizer}",
        "data": f"kind=json_file,path={data}",
        "profile": "kind=concurrent,streams=4",
        "constraint": f"kind=max_requests,count={NUM_REQUESTS}",
        "output": f"kind=json,path={report}",
    }
    command = [str(python), "-m", "guidellm", "run", "--disable-console"]
    command += [part for name, value in options.items() for part in (f"--{name}", value)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "data")}
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    (found,) = json.loads(report.read_text(encoding="utf-8"))["benchmarks"]
    metrics: Any = found["metrics"]
    totals = metrics["request_totals"]
    assert totals["successful"] == NUM_REQUESTS, (totals, found["requests"]["errored"])
    assert totals["errored"] == 0
    if route != "/v1/embeddings":
        assert metrics["output_token_count"]["successful"]["total_sum"] == NUM_REQUESTS * NEW_TOKENS
        assert metrics["time_to_first_token_ms"]["successful"]["min"] > 0
