"""Errors as Anthropic's own client, unmodified, gets them from a real server."""

import asyncio
import json
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest

from tests.frontends.conftest import DECODER
from tests.frontends.http.ended_streams import wait_for
from tests.frontends.http.raw import connect, post
from tests.pictures import encoded, picture
from tests.server.in_process_server import serving
from tests.serving import ServerProcess

PROMPT = "7,8,"
MESSAGES: Any = [{"role": "user", "content": PROMPT}]
USE: Any = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


@pytest.fixture
def client(server: ServerProcess) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.http_url, api_key="none", max_retries=0)


def error_of(caught: pytest.ExceptionInfo[anthropic.APIStatusError]) -> dict[str, str]:
    """The error, whose shape is Anthropic's."""
    body: Any = caught.value.body
    assert body.keys() == {"type", "error"}
    assert body["type"] == "error"
    assert body["error"].keys() == {"type", "message"}
    assert caught.value.request_id
    error: dict[str, str] = body["error"]
    return error


def of_user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def of_assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    answer = {"role": "assistant", "content": list(blocks)}
    return {"messages": [*MESSAGES, answer, *MESSAGES]}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
    ({"messages": []}, "messages"),
    ({"messages": [*MESSAGES, {"role": "assistant", "content": ""}]}, "messages[1].content"),
    (
        {"messages": [*MESSAGES, {"role": "assistant", "content": [USE]}]},
        "messages[1].content",
    ),
    ({"messages": [{"role": "tool", "content": "7"}]}, "messages[0].role"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    (of_user({"type": "document"}), "messages[0].content[0].type"),
    (of_user({"type": "text"}), "messages[0].content[0].text"),
    (of_user({"type": "text", "text": 7}), "messages[0].content[0].text"),
    (of_user({"type": "text", "words": "7"}), "messages[0].content[0].words"),
    (of_user({"type": "image"}), "messages[0].content[0].source"),
    (of_user({"type": "tool_use"}), "messages[0].content[0].type"),
    (of_user({"type": "tool_result"}), "messages[0].content[0].tool_use_id"),
    (
        of_user({"type": "tool_result", "tool_use_id": "7", "content": [{"type": "document"}]}),
        "messages[0].content[0].content[0].type",
    ),
    (
        of_user({"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}),
        "messages[0].content[0].source.type",
    ),
    (
        of_user({"type": "image", "source": {"type": "base64"}}),
        "messages[0].content[0].source.data",
    ),
    (
        of_user({"type": "tool_result", "tool_use_id": "7", "content": [IMAGE]}),
        "messages[0].content[0].content[0].source.data",
    ),
    (of_assistant(IMAGE), "messages[1].content[0].type"),
    (of_assistant({"type": "redacted_thinking"}), "messages[1].content[0].type"),
    (of_assistant({"type": "tool_use", "id": "7"}), "messages[1].content[0].name"),
    (
        {"system": "7,", **of_assistant({"type": "tool_use", "id": "7", "name": "f" * 257})},
        "messages[1].content[0].name",
    ),
    ({"tools": [{"name": "f g"}]}, "tools[0].name"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tools": [{**TOOL, "input_examples": [{}]}]}, "tools[0].input_examples"),
    ({"tools": [TOOL]}, "tools"),  # the template does not describe them
    ({"tool_choice": {"type": "x"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "tool", "name": "g"}, "tools": [TOOL]}, "tool_choice.name"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.type"),
    ({"thinking": {"type": "adaptive", "display": "x"}}, "thinking.display"),
    ({"output_config": {"effort": "low"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "x"}}}, "output_config.format.type"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}},
        "output_config.format.schema",
    ),
    ({"container": "7"}, "container"),
    ({"inference_geo": "us"}, "inference_geo"),
    ({"diagnostics": {"previous_message_id": None}}, "diagnostics"),
    ({"speed": "fast"}, "speed"),
    ({"mcp_servers": []}, "mcp_servers"),
]


@pytest.mark.parametrize(("fields", "path"), REFUSED)
def test_errors_name_the_field(
    client: anthropic.Anthropic, fields: dict[str, Any], path: str
) -> None:
    given = {"model": DECODER, "max_tokens": 3, "messages": MESSAGES, **fields}
    for stream in (False, True):
        with pytest.raises(anthropic.BadRequestError) as caught:
            client.post("/v1/messages", body={**given, "stream": stream}, cast_to=object)
        error = error_of(caught)
        assert error["type"] == "invalid_request_error"
        assert error["message"].startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"messages": []}, "messages"),
        ({"system": "7,", "messages": [{"role": "x", "content": "7"}]}, "messages[0].role"),
        ({"tools": [{"name": "f g"}]}, "tools[0].name"),
        ({"tools": [TOOL]}, "tools"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.type"),
        ({"speed": "fast"}, "speed"),
        ({"max_tokens": 7}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "7" * (1 << 20)}]}, "messages"),
    ],
)
def test_errors_of_counting_name_the_field(
    client: anthropic.Anthropic, fields: dict[str, Any], path: str
) -> None:
    body = {"model": DECODER, "messages": MESSAGES, **fields}
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.post("/v1/messages/count_tokens", body=body, cast_to=object)
    assert error_of(caught)["message"].startswith(f"{path}: ")


def test_a_field_is_required(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.post("/v1/messages", body={"model": DECODER, "messages": []}, cast_to=object)
    assert error_of(caught)["message"] == "max_tokens: is required"


def test_a_text_model_reads_no_images(client: anthropic.Anthropic) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": encoded(picture())}
    given: Any = of_user({"type": "text", "text": "7,"}, {"type": "image", "source": source})
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model=DECODER, max_tokens=3, system="7,", **given)
    message = error_of(caught)["message"]
    assert message.startswith("messages[0].content[1].source.data: ")
    assert "reads no images" in message


def test_clients_know_that_a_conversation_is_too_long(client: anthropic.Anthropic) -> None:
    long: Any = [{"role": "user", "content": "7," * 2000}]
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(model=DECODER, max_tokens=3, messages=long)


def test_unknown_models_and_addresses(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(model="nothing", max_tokens=3, messages=MESSAGES)
    assert error_of(caught)["type"] == "not_found_error"
    for call in (client.messages.batches.list, client.beta.files.list):
        with pytest.raises(anthropic.NotFoundError) as caught:
            call()
        assert error_of(caught)["message"].startswith("there is nothing at /v1/")
    with pytest.raises(anthropic.APIStatusError) as failed:
        client.get("/v1/messages", cast_to=object)
    assert failed.value.status_code == 405
    assert error_of(failed)["type"] == "invalid_request_error"


def test_a_large_body_is_refused(server: ServerProcess) -> None:
    answer = httpx2.post(f"{server.http_url}/v1/messages", content=b" " * (17 << 20))
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "request_too_large"


async def test_a_key_is_required(every_task: Path, tokens: Path) -> None:
    async with serving(every_task, http="127.0.0.1:0", tokens=tokens) as running:
        url = f"http://127.0.0.1:{running.http_port}"
        wrong = anthropic.AsyncAnthropic(base_url=url, api_key="wrong", max_retries=0)
        for call in (
            wrong.messages.create(model=DECODER, max_tokens=3, messages=MESSAGES),
            wrong.models.list(),
            wrong.messages.batches.list(),
        ):
            with pytest.raises(anthropic.AuthenticationError) as caught:
                await call
            assert error_of(caught)["type"] == "authentication_error"
        keys: list[dict[str, Any]] = [{"api_key": "first-token"}, {"auth_token": "first-token"}]
        for key in keys:
            async with anthropic.AsyncAnthropic(base_url=url, **key) as right:
                answer = await right.messages.create(model=DECODER, max_tokens=3, messages=MESSAGES)
                assert answer.usage.output_tokens


async def test_rejected_requests_are_retried_after_the_delay(every_task: Path) -> None:
    async with serving(every_task, http="127.0.0.1:0", num_slots=1, max_queue=0) as running:
        url = f"http://127.0.0.1:{running.http_port}"
        async with anthropic.AsyncAnthropic(base_url=url, api_key="-", max_retries=0) as client:
            few: Any = {"model": DECODER, "max_tokens": 3, "messages": MESSAGES}
            many = few | {"max_tokens": 1000, "extra_body": {"ignore_eos": True}}
            while True:  # again if the stream has ended before the other request arrives
                stream = await client.messages.create(**many, stream=True)
                await anext(aiter(stream))
                try:
                    await client.messages.create(**few)
                except anthropic.RateLimitError as error:
                    body: Any = error.body
                    break
            assert body["error"]["type"] == "rate_limit_error"
            patient = client.with_options(max_retries=20)
            waiting = asyncio.create_task(patient.messages.create(**few))
            await stream.close()
            assert (await waiting).content


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_slot(every_task: Path, *, stream: bool) -> None:
    body = {
        "model": DECODER,
        "max_tokens": 255,
        "messages": MESSAGES,
        "stream": stream,
        "ignore_eos": True,
    }
    async with serving(every_task, http="127.0.0.1:0", num_slots=1) as running:
        assert running.http_port is not None
        async with connect(running.http_port) as connection:
            await connection.send(post("/v1/messages", json.dumps(body).encode()))
            if stream:
                assert await connection.status() == 200
            connection.writer.transport.abort()
            await wait_for(running, "/v1/messages", "CANCELLED")
        url = f"http://127.0.0.1:{running.http_port}"
        async with anthropic.AsyncAnthropic(base_url=url, api_key="-") as client:
            answer = await client.messages.create(model=DECODER, max_tokens=1, messages=MESSAGES)
            assert answer.usage.output_tokens == 1


@pytest.mark.parametrize(
    "limit",
    [{"extra_headers": {"x-request-timeout": "0.000001"}}, {"timeout": 1e-6}],
    ids=["header", "read timeout"],
)
def test_a_deadline_ends_a_call(server: ServerProcess, limit: dict[str, Any]) -> None:
    headers = dict(limit.get("extra_headers", {}))
    if "timeout" in limit:
        headers["x-stainless-read-timeout"] = str(limit["timeout"])
    client = anthropic.Anthropic(base_url=server.http_url, api_key="-", max_retries=0)
    with pytest.raises(anthropic.InternalServerError) as caught:
        client.messages.create(
            model=DECODER, max_tokens=3, messages=MESSAGES, extra_headers=headers
        )
    assert caught.value.status_code == 504
    assert error_of(caught)["type"] == "timeout_error"


async def error_after_the_start(bundles: Path) -> anthropic.APIStatusError | None:
    """The error of a stream whose server shuts down; ``None`` if the stream ends before."""
    server = serving(bundles, http="127.0.0.1:0", num_slots=1, grace_seconds=0.0)
    running = await server.__aenter__()
    url = f"http://127.0.0.1:{running.http_port}"
    async with anthropic.AsyncAnthropic(base_url=url, api_key="-", max_retries=0) as client:
        stream = await client.messages.create(
            model=DECODER,
            max_tokens=1000,
            messages=MESSAGES,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        await anext(aiter(stream))
        closing = asyncio.create_task(server.__aexit__(None, None, None))
        try:
            _ = [event async for event in stream]
        except anthropic.APIStatusError as error:
            return error
        finally:
            await closing
    return None


async def test_an_error_after_the_start_is_an_event(every_task: Path) -> None:
    error = None
    while error is None:  # again if the stream has ended before the server shuts down
        error = await error_after_the_start(every_task)
    assert isinstance(error.body, dict)
    assert error.body["error"] == {
        "type": "overloaded_error",
        "message": "the server is shutting down",
    }
