"""Errors as OpenAI's own client, unmodified, gets them from a real server."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.frontends.conftest import DECODER
from tests.server.in_process_server import serving

PROMPT = "7,8,"
MESSAGES: Any = [{"role": "user", "content": PROMPT}]
CALL = {"type": "function_call", "call_id": "7", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "7", "output": "7"}
GREEDY: dict[str, Any] = {"model": DECODER, "max_tokens": 6, "temperature": 0}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 0, "max_tokens": 3}, "max_completion_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"max_new_tokens": 3}}, "max_new_tokens"),
        ({"extra_body": {"min_new_tokens": -1}}, "min_new_tokens"),
        ({"extra_body": {"min_tokens": -1}}, "min_tokens"),
        ({"stop": [""]}, "stop[0]"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"seed": 2**70}, "seed"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, None),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].image_url",
        ),
        ({"extra_body": {"nothing": 1}}, "nothing"),
        ({"extra_body": {"guided_json": "{"}}, "guided_json"),
        ({"extra_body": {"structured_outputs": {"regex": "("}}}, "structured_outputs.regex"),
        ({"extra_body": {"guided_regex": "7{1000000}"}}, "guided_regex"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"type": "x"}},
                }
            },
            "response_format.json_schema.schema",
        ),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_errors_name_the_field(
    client: openai.OpenAI, fields: dict[str, Any], param: str | None
) -> None:
    create: Any = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as caught:
        create(**{"model": DECODER, "messages": MESSAGES, **fields})
    assert caught.value.param == (param or "messages[0].content[0].type")
    assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("completions", {"prompt": PROMPT, "logprobs": -1}, "logprobs"),
        ("completions", {"prompt": PROMPT, "min_new_tokens": -1}, "min_new_tokens"),
        ("responses", {"input": []}, "input"),
        ("responses", {"input": PROMPT, "messages": []}, "messages"),
        ("responses", {"input": PROMPT, "max_output_tokens": 0}, "max_output_tokens"),
        ("responses", {"input": PROMPT, "reasoning": {"effort": "low"}}, "reasoning.effort"),
        ("responses", {"input": PROMPT, "reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ("responses", {"input": PROMPT, "reasoning": "none"}, "reasoning"),
        ("responses", {"input": PROMPT, "metadata": {"a": "b" * 513}}, "metadata"),
        ("responses", {"input": PROMPT, "metadata": {"a" * 65: "b"}}, "metadata"),
        ("responses", {"input": PROMPT, "metadata": {f"{n}": "" for n in range(17)}}, "metadata"),
        (
            "responses",
            {"input": PROMPT, "text": {"format": {"type": "json_schema", "schema": {"type": "x"}}}},
            "text.format.schema",
        ),
        ("responses", {"input": PROMPT, "text": {"format": {"type": "x"}}}, "text.format.type"),
        (
            "responses",
            {"input": PROMPT, "text": {"format": {"type": "json_schema"}}},
            "text.format.schema",
        ),
        ("responses", {"input": PROMPT, "response_format": {"type": "x"}}, "response_format"),
        ("responses", {"input": "", "instructions": ""}, "input"),
        *(
            ("responses", {"instructions": "7,", "input": [*MESSAGES, item]}, param)
            for item, param in (
                ({"role": "x", "content": "7,"}, "input[1].role"),
                ({**OUTPUT, "call_id": "7" * 257}, "input[1].call_id"),
                ({**CALL, "call_id": "7" * 257}, "input[1].call_id"),
                ({**CALL, "name": "7" * 257}, "input[1].name"),
            )
        ),
        (
            "decisions",
            {
                "input": PROMPT,
                "questions": [
                    {"type": "predicate", "instructions": text} for text in ("a", "7," * 1000)
                ],
            },
            "questions[1]",
        ),
    ],
)
def test_other_routes_name_their_own_field(
    client: openai.OpenAI, path: str, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.post(f"/{path}", body={"model": DECODER, **body}, cast_to=object)
    assert caught.value.param == param


def test_errors_mention_the_option_that_was_sent(client: openai.OpenAI) -> None:
    for name in ("max_completion_tokens", "max_tokens"):
        with pytest.raises(openai.BadRequestError, match=f"min_tokens: 5 is more than {name} 3"):
            client.chat.completions.create(
                model=DECODER, messages=MESSAGES, extra_body={"min_tokens": 5, name: 3}
            )


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "nothing", 404, "not_found"),
        ("DELETE", "models", 405, "invalid_argument"),
        ("POST", "chat", 404, "not_found"),
    ],
)
def test_unknown_addresses_have_openais_error(
    http: httpx2.Client, method: str, path: str, status: int, code: str
) -> None:
    answer = http.request(method, f"/v1/{path}")
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert error["message"]
    assert http.get("/nothing").json() == {"error": "there is nothing at /nothing"}


def test_unknown_models_are_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model="nothing", input="a")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
    assert caught.value.request_id


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("completions", {"prompt": ["7,", "7," * 2000]}, "prompt[1]"),
        ("completions", {"prompt": [1] * 2000}, "prompt[0]"),
        ("chat/completions", {"messages": [{"role": "user", "content": "7," * 2000}]}, None),
        ("responses", {"input": "7," * 2000, "stream": True}, None),
    ],
    ids=["texts", "token ids", "chat", "responses"],
)
def test_clients_know_that_a_conversation_is_too_long(
    client: openai.OpenAI, path: str, body: dict[str, Any], param: str | None
) -> None:
    """LangChain and DSPy look for this code, LiteLLM for these words."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.post(f"/{path}", body={"model": DECODER, **body}, cast_to=object)
    assert caught.value.code == "context_length_exceeded"
    assert "this model's maximum context length is" in caught.value.message
    assert param in (None, caught.value.param)


async def test_rejected_requests_are_retried_after_the_delay(every_task: Path) -> None:
    async with serving(every_task, http="127.0.0.1:0", num_slots=1, max_queue=0) as running:
        url = f"http://127.0.0.1:{running.http_port}/v1"
        long: dict[str, Any] = {
            "model": DECODER,
            "prompt": PROMPT,
            "max_tokens": 1000,
            "extra_body": {"ignore_eos": True},
        }
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            stream = await client.completions.create(stream=True, **long)
            await anext(aiter(stream))
            with pytest.raises(openai.RateLimitError) as caught:
                await client.completions.create(prompt=PROMPT, **GREEDY)
            headers = caught.value.response.headers
            assert int(headers["retry-after-ms"]) <= 1000 * int(headers["retry-after"])
            patient = client.with_options(max_retries=20)
            waiting = asyncio.create_task(patient.completions.create(prompt=PROMPT, **GREEDY))
            await stream.close()
            assert (await waiting).choices[0].text


async def test_the_deadline_header_ends_a_call(async_client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        await async_client.completions.create(
            prompt=PROMPT, extra_headers={"x-request-timeout": "0.000001"}, **GREEDY
        )
    assert caught.value.status_code == 504
    assert caught.value.response.headers["x-should-retry"] == "false"
