"""Ollama's own client, unmodified, against a real server."""

import json
import re
from datetime import datetime
from typing import Any

import httpx2
import numpy as np
import ollama
import openai
import pytest

from server.frontends.http.ollama.generation import GenerateBody
from server.frontends.http.ollama.options import Options, generate_request
from tests.faults.serving import metric_at
from tests.frontends.conftest import CLASSIFIER, DECODER, EMBEDDER
from tests.serving import ServerProcess

PROMPT = "7,8,"
ASK: list[Any] = [{"role": "user", "content": PROMPT}]
GREEDY = {"temperature": 0, "ignore_eos": True, "num_predict": 6}
OPENAI: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "extra_body": {"ignore_eos": True}}


def test_generate_is_whole_or_streamed(ollamas: ollama.Client, client: openai.OpenAI) -> None:
    whole = ollamas.generate(DECODER, PROMPT, options=GREEDY)
    expected: Any = client.chat.completions.create(model=DECODER, messages=ASK, **OPENAI)
    assert whole.response == expected.choices[0].message.content
    assert (whole.model, whole.done, whole.done_reason) == (DECODER, True, "length")
    assert whole.created_at is not None
    assert datetime.fromisoformat(whole.created_at).tzinfo is not None
    assert whole.prompt_eval_count == expected.usage.prompt_tokens
    assert whole.eval_count == 6
    assert whole.total_duration is not None
    assert whole.prompt_eval_duration is not None
    assert whole.eval_duration is not None
    assert whole.total_duration > whole.prompt_eval_duration + whole.eval_duration > 0
    *parts, last = ollamas.generate(DECODER, PROMPT, options=GREEDY, stream=True)
    assert "".join(part.response or "" for part in parts) == whole.response
    assert not any(part.done for part in parts)
    assert (last.response, last.done, last.done_reason) == ("", True, "length")
    assert (last.prompt_eval_count, last.eval_count) == (whole.prompt_eval_count, 6)


def test_chat_is_whole_or_streamed(ollamas: ollama.Client) -> None:
    generated = ollamas.generate(DECODER, PROMPT, options=GREEDY)
    whole = ollamas.chat(DECODER, ASK, options=GREEDY)
    assert (whole.message.role, whole.message.content) == ("assistant", generated.response)
    assert (whole.done_reason, whole.eval_count) == ("length", 6)
    *parts, last = ollamas.chat(DECODER, ASK, options=GREEDY, stream=True)
    assert "".join(part.message.content or "" for part in parts) == generated.response
    assert (last.message.content, last.done, last.eval_count) == ("", True, 6)


async def test_the_asynchronous_client(server: ServerProcess) -> None:
    async with ollama.AsyncClient(host=server.http_url) as client:
        whole = await client.chat(DECODER, ASK, options=GREEDY)
        parts = await client.chat(DECODER, ASK, options=GREEDY, stream=True)
        assert "".join([part.message.content or "" async for part in parts]) == (
            whole.message.content
        )


def test_a_stream_has_an_object_on_each_line(server: ServerProcess) -> None:
    body = {"model": DECODER, "prompt": PROMPT, "options": GREEDY}
    with httpx2.stream("POST", f"{server.http_url}/api/generate", json=body) as answer:
        assert answer.headers["content-type"] == "application/x-ndjson"
        text = answer.read().decode()
    assert text.endswith("\n")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    whole = httpx2.post(f"{server.http_url}/api/generate", json=body | {"stream": False})
    assert whole.headers["content-type"] == "application/json"
    assert whole.json()["done"] is True


def test_a_system_prompt_comes_first(ollamas: ollama.Client) -> None:
    both = ollamas.generate(DECODER, "8,", system="7,", options=GREEDY)
    assert both.response == ollamas.generate(DECODER, PROMPT, options=GREEDY).response
    assert both.prompt_eval_count == 4


def test_raw_turns_the_template_off(ollamas: ollama.Client, client: openai.OpenAI) -> None:
    raw = ollamas.generate(DECODER, PROMPT, raw=True, options=GREEDY)
    expected: Any = client.completions.create(model=DECODER, prompt=PROMPT, **OPENAI)
    assert raw.response == expected.choices[0].text == "9,10,1"
    assert raw.prompt_eval_count == expected.usage.prompt_tokens
    parts = ollamas.generate(DECODER, PROMPT, raw=True, options=GREEDY, stream=True)
    assert "".join(part.response or "" for part in parts) == raw.response


def test_stop_strings_and_seeds(ollamas: ollama.Client) -> None:
    text: Any = ollamas.generate(DECODER, PROMPT, options=GREEDY).response
    stop = text[1]
    cut = ollamas.generate(DECODER, PROMPT, options={**GREEDY, "stop": [stop]})
    assert (cut.response, cut.done_reason) == (text.partition(stop)[0], "stop")
    hot = {**GREEDY, "temperature": 5, "top_k": 0, "top_p": 1, "seed": 3}
    first, again = (ollamas.generate(DECODER, PROMPT, options=hot).response for _ in range(2))
    assert first == again
    others = {
        ollamas.generate(DECODER, PROMPT, options={**hot, "seed": -1}).response for _ in range(8)
    }
    assert len(others) > 1
    assert ollamas.generate(DECODER, PROMPT, options={**hot, "top_p": 0}).response == text


def test_log_probabilities(ollamas: ollama.Client, client: openai.OpenAI) -> None:
    wanted: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
    whole = ollamas.chat(DECODER, ASK, options=GREEDY, **wanted)
    reference: Any = client.chat.completions.create(model=DECODER, messages=ASK, **OPENAI, **wanted)
    assert whole.logprobs is not None
    for found, expected in zip(whole.logprobs, reference.choices[0].logprobs.content, strict=True):
        assert (found.token, found.logprob) == (expected.token, expected.logprob)
        assert found.top_logprobs is not None
        assert [top.logprob for top in found.top_logprobs] == [
            top.logprob for top in expected.top_logprobs
        ]
    parts = ollamas.generate(DECODER, PROMPT, options=GREEDY, stream=True, **wanted)
    streamed = [token for part in parts for token in part.logprobs or ()]
    assert [token.logprob for token in streamed] == [token.logprob for token in whole.logprobs]
    ignored = ollamas.generate(DECODER, PROMPT, options=GREEDY, top_logprobs=2)
    assert ignored.logprobs is None


def test_the_defaults_are_those_of_the_protocol() -> None:
    sampling = generate_request(GenerateBody(model="m")).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.8, 40, 0.9)
    assert sampling.seed is None
    request = generate_request(GenerateBody(model="m", options=Options(num_predict=-2)))
    assert request.stopping.max_new_tokens is None
    assert request.logits.repetition_penalty == 1.0
    search = generate_request(GenerateBody(model="m", options=Options(beam_size=2)))
    assert search.sampling.temperature == 0.0


def test_penalties_apply_to_the_whole_text() -> None:
    given = {"repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    for window, expected in ((None, (1.3, 0.5, 0.25)), (-1, (1.3, 0.5, 0.25)), (0, (1, 0, 0))):
        options = Options(**given, repeat_last_n=window)
        logits = generate_request(GenerateBody(model="m", options=options)).logits
        assert (
            logits.repetition_penalty,
            logits.presence_penalty,
            logits.frequency_penalty,
        ) == expected


def test_options_without_effect(ollamas: ollama.Client) -> None:
    ignored = ollama.Options(
        numa=False,
        num_ctx=4096,
        num_batch=8,
        num_gpu=1,
        main_gpu=0,
        num_thread=2,
        num_keep=4,
        use_mmap=True,
        mirostat=0,
        tfs_z=1.0,
        repeat_last_n=64,
        penalize_newline=True,
    )
    options = ignored.model_dump(exclude_none=True) | GREEDY
    plain = ollamas.generate(DECODER, PROMPT, options=GREEDY, keep_alive="5m")
    answer = ollamas.generate(DECODER, PROMPT, options=options, keep_alive=0)
    assert answer.response == plain.response


def test_an_empty_request_loads_the_model(ollamas: ollama.Client) -> None:
    loaded = ollamas.generate(DECODER)
    assert (loaded.response, loaded.done, loaded.done_reason) == ("", True, "load")
    (part,) = ollamas.chat(DECODER, [], stream=True)
    assert (part.message.content, part.done, part.done_reason) == ("", True, "load")
    with pytest.raises(ollama.ResponseError) as caught:
        ollamas.generate(DECODER, keep_alive="0")
    assert caught.value.error.startswith("keep_alive: ")


def test_embed(ollamas: ollama.Client, client: openai.OpenAI) -> None:
    texts = ["a cat", "a dog"]
    answer = ollamas.embed(EMBEDDER, texts)
    expected = client.embeddings.create(model=EMBEDDER, input=texts)
    for vector, reference in zip(answer.embeddings, expected.data, strict=True):
        unit = np.array(reference.embedding) / np.linalg.norm(reference.embedding)
        np.testing.assert_allclose(vector, unit, atol=1e-6)
    assert answer.model == EMBEDDER
    assert answer.prompt_eval_count == expected.usage.prompt_tokens
    assert answer.total_duration is not None
    assert answer.total_duration > 0
    (vector,) = ollamas.embed(EMBEDDER, "a cat", dimensions=8).embeddings
    assert len(vector) == 8
    assert np.linalg.norm(vector) == pytest.approx(1.0)
    assert ollamas.embed(EMBEDDER).embeddings == []
    older = ollamas.embeddings(EMBEDDER, "a cat")
    np.testing.assert_allclose(older.embedding, expected.data[0].embedding, atol=1e-6)
    assert ollamas.embeddings(EMBEDDER).embedding == []


def test_long_texts_are_cut_unless_they_must_not_be(ollamas: ollama.Client) -> None:
    long = "a cat " * 200
    assert len(ollamas.embed(EMBEDDER, long).embeddings) == 1
    with pytest.raises(ollama.ResponseError) as caught:
        ollamas.embed(EMBEDDER, long, truncate=False)
    assert caught.value.error.startswith("input[0]: ")
    with pytest.raises(ollama.ResponseError) as caught:
        ollamas.embeddings(EMBEDDER, long)
    assert caught.value.error.startswith("prompt: ")


def test_models_are_listed(ollamas: ollama.Client) -> None:
    listed = {model.model: model for model in ollamas.list().models}
    assert listed.keys() == {f"{DECODER}:latest", f"{EMBEDDER}:latest"}
    decoder = listed[f"{DECODER}:latest"]
    assert re.fullmatch("[0-9a-f]{64}", decoder.digest or "")
    assert decoder.size is not None
    assert decoder.size > 1000
    assert decoder.modified_at is not None
    assert decoder.modified_at.year >= 2020
    assert decoder.details is not None
    assert decoder.details.format == "onnx"
    assert decoder.details.families == [decoder.details.family]
    running = {model.model: model for model in ollamas.ps().models}
    assert running.keys() == listed.keys()
    assert running[f"{DECODER}:latest"].digest == decoder.digest
    assert running[f"{DECODER}:latest"].context_length is not None


def test_a_model_is_shown(ollamas: ollama.Client, server: ServerProcess) -> None:
    shown = ollamas.show(f"{DECODER}:latest")
    assert shown.capabilities == ["completion"]
    assert shown.template == "{% for message in messages %}{{ message.content }}{% endfor %}"
    assert shown.modelinfo is not None
    name = shown.modelinfo["general.architecture"]
    length = shown.modelinfo[f"{name}.context_length"]
    assert shown.parameters == f"num_ctx {length}"
    assert ollamas.show(EMBEDDER).capabilities == ["embedding"]
    assert ollamas.show(CLASSIFIER).capabilities == []
    older = httpx2.post(f"{server.http_url}/api/show", json={"name": DECODER})
    assert older.json()["template"] == shown.template


def test_latest_is_the_bundle(ollamas: ollama.Client, server: ServerProcess) -> None:
    plain = ollamas.generate(DECODER, PROMPT, options=GREEDY)
    tagged = ollamas.generate(f"{DECODER}:latest", PROMPT, options=GREEDY)
    assert (tagged.model, tagged.response) == (f"{DECODER}:latest", plain.response)
    assert ollamas.embed(f"{EMBEDDER}:latest", "a").embeddings
    with pytest.raises(ollama.ResponseError) as caught:
        ollamas.generate(f"{DECODER}:135m", PROMPT)
    assert caught.value.status_code == 404
    labels = {"method": "/api/generate", "status": "OK"}
    assert metric_at(server.metrics_url, "triune_requests_total", model=DECODER, **labels) > 0
    assert ":latest" not in httpx2.get(server.metrics_url).text


def test_programs_that_look_for_the_server(server: ServerProcess) -> None:
    with httpx2.Client(base_url=server.http_url, follow_redirects=True) as http:
        assert http.head("/").status_code == 200
        assert http.head("/api/tags").status_code == 200
        assert http.head("/api/version").status_code == 200
        version = http.get("/api/version").json()["version"]
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)
