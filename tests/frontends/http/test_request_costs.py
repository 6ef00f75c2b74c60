"""What one request can cost before it is refused, and where its body is decoded."""

import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any, NoReturn

import httpx2
import msgspec
import pytest
from starlette.datastructures import Headers
from starlette.responses import Response

from server.bounds import (
    MAX_ENTRIES,
    MAX_IMAGES,
    MAX_MESSAGES,
    MAX_TEXTS,
    MAX_TOKEN_IDS,
    MAX_TOOLS,
)
from server.config import ServerConfig
from server.errors import InvalidArgumentError
from server.frontends.http import libretranslate, oip_codec, rerank, tei_bodies, vllm
from server.frontends.http.access import Access
from server.frontends.http.anthropic.bodies import (
    Block,
    CountBody,
    MessagesBody,
    SentMessage,
    SentTool,
    Source,
)
from server.frontends.http.anthropic.messages import create_message
from server.frontends.http.application import Application
from server.frontends.http.body import MAX_RAW_BYTES, BodyBudget, json_decoder
from server.frontends.http.endpoint import (
    MAX_ANONYMOUS_BYTES,
    MIN_THREADED_BYTES,
    Api,
    Call,
    Context,
    Handler,
)
from server.frontends.http.form import decode_form
from server.frontends.http.listener import Listener, bound_socket
from server.frontends.http.ollama import embeddings as ollama_embeddings
from server.frontends.http.ollama import generation as ollama
from server.frontends.http.ollama.messages import (
    OllamaMessage,
    SentCall,
    SentFunction,
    service_messages,
)
from server.frontends.http.openai.chat import ChatBody, chat_completions
from server.frontends.http.openai.completions import CompletionBody
from server.frontends.http.openai.decisions import (
    MAX_CHARACTERS,
    MAX_QUESTIONS,
    DecisionsBody,
    Predicate,
    decisions,
)
from server.frontends.http.openai.embeddings import EmbeddingsBody
from server.frontends.http.openai.messages import ChatMessage
from server.frontends.http.openai.prompts import texts_or_tokens
from server.frontends.http.openai.responses import ResponseBody
from server.frontends.http.probes import error_response
from server.frontends.http.settings import HttpSettings
from server.frontends.http.token_vectors import MultiVectorBody, PoolingBody
from server.service.service import Service
from tests.frontends.conftest import DECODER
from tests.frontends.http.calls import call_of, handlers
from tests.server.in_process_server import serving
from tests.server.in_process_service import service_context


async def test_decisions_are_refused_before_their_prompts_are_built() -> None:
    body = DecisionsBody(
        model="m",
        input="a" * MAX_CHARACTERS,
        questions=[Predicate(instructions="b")] * MAX_QUESTIONS,
    )
    call = call_of(body)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgumentError, match="characters to score"):
            await decisions(call)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MAX_CHARACTERS


def test_unknown_datatypes_leave_nothing_behind() -> None:
    def decode(datatype: str) -> None:
        tensor = {"name": "text_input", "shape": [1], "datatype": datatype, "data": [1]}
        oip_codec.decode_infer(msgspec.json.encode({"inputs": [tensor]}), Headers({}))

    before = oip_codec.data_decoder.cache_info().currsize
    for number in range(10):
        with pytest.raises(InvalidArgumentError, match="text_input: datatype 'INT"):
            decode(f"INT{number}x")
    assert oip_codec.data_decoder.cache_info().currsize == before
    decode("INT64")


class Sealed(list[Any]):
    """A list whose items nobody may read, but for the first."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("the items are read before they are counted")


class SealedDict(dict[str, float]):
    """A dict that nobody may read."""

    def items(self) -> NoReturn:
        raise AssertionError("the items are read before they are counted")


TEXTS = Sealed(["a"] * (MAX_TEXTS + 1))
TURNS = Sealed([SentMessage(role="user", content="a")] * (MAX_MESSAGES + 1))
RESULTS = [Block(type="tool_result", tool_use_id="7")] * (MAX_MESSAGES + 1)
IMAGES = [Block(type="image", source=Source(type="base64", data="?"))] * (MAX_IMAGES + 1)
TOOLS = Sealed([SentTool(name="f")] * (MAX_TOOLS + 1))
USES = [Block(type="tool_use", id="7", name="f", input={})] * (MAX_TOOLS + 1)
MESSAGES = Sealed([ChatMessage(role="user", content="a")] * (MAX_MESSAGES + 1))
BIASES = SealedDict({str(id_): 1.0 for id_ in range(MAX_ENTRIES + 1)})
OLLAMA_TURNS = Sealed([OllamaMessage(role="user", content="a")] * (MAX_MESSAGES + 1))
PICTURES = Sealed(["eA=="] * (MAX_IMAGES + 1))
CALLS = Sealed([SentCall(function=SentFunction(name="f"))] * (MAX_TOOLS + 1))
IDS = Sealed([1] * (MAX_TOKEN_IDS + 1))
ROWS: list[Any] = [[1] * (MAX_TOKEN_IDS // 2)] * 3


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/chat/completions", ChatBody(model="m", messages=MESSAGES), "messages"),
        (
            "/v1/chat/completions",
            ChatBody(model="m", messages=list(MESSAGES[:1]), logit_bias=BIASES),
            "logit_bias",
        ),
        ("/v1/completions", CompletionBody(model="m", prompt=TEXTS), "prompt"),
        ("/v1/completions", CompletionBody(model="m", prompt=IDS), "prompt"),
        ("/v1/completions", CompletionBody(model="m", prompt=ROWS), "prompt"),
        ("/v1/responses", ResponseBody(model="m", input=MESSAGES), "input"),
        ("/v1/messages", MessagesBody(model="m", messages=TURNS, max_tokens=1), "messages"),
        ("/v1/messages/count_tokens", CountBody(model="m", messages=TURNS), "messages"),
        ("/tokenize", vllm.TokenizeBody(model="m", messages=MESSAGES), "messages"),
        (
            "/v1/messages",
            MessagesBody(model="m", messages=list(TURNS[:1]), max_tokens=1, tools=TOOLS),
            "tools",
        ),
        (
            "/v1/messages",
            MessagesBody(
                model="m",
                messages=[SentMessage(role="assistant", content=USES), TURNS[0]],
                max_tokens=1,
            ),
            "messages[0].content",
        ),
        (
            "/v1/messages",
            MessagesBody(
                model="m", messages=[SentMessage(role="user", content=RESULTS)], max_tokens=1
            ),
            "messages",
        ),
        (
            "/v1/messages",
            MessagesBody(
                model="m", messages=[SentMessage(role="user", content=IMAGES)], max_tokens=1
            ),
            "messages",
        ),
        ("/v1/embeddings", EmbeddingsBody(model="m", input=TEXTS), "input"),
        ("/api/chat", ollama.ChatBody(model="m", messages=OLLAMA_TURNS), "messages"),
        (
            "/api/chat",
            ollama.ChatBody(
                model="m", messages=[OllamaMessage(role="assistant", tool_calls=CALLS)]
            ),
            "messages[0].tool_calls",
        ),
        (
            "/api/chat",
            ollama.ChatBody(model="m", messages=[OllamaMessage(role="user", images=PICTURES)]),
            "messages[0].images",
        ),
        ("/api/embed", ollama_embeddings.EmbedBody(model="m", input=TEXTS), "input"),
        ("/classify", vllm.ClassifyBody(model="m", input=TEXTS), "input"),
        ("/score", vllm.ScoreBody(model="m", text_1="a", text_2=TEXTS), "text_2"),
        ("/score", vllm.ScoreBody(model="m", text_1=TEXTS, text_2=TEXTS), "text_1"),
        ("/v2/rerank", rerank.RerankBody(model="m", query="a", documents=TEXTS), "documents"),
        ("/{model}/predict", tei_bodies.PredictBody(inputs=TEXTS), "inputs"),
        ("/{model}/decode", tei_bodies.DecodeBody(ids=IDS), "ids"),
        ("/{model}/decode", tei_bodies.DecodeBody(ids=ROWS), "ids"),
        ("/translate", libretranslate.TranslateBody(q=TEXTS, source="en", target="de"), "inputs"),
    ],
)
async def test_lists_are_counted_before_they_are_read(path: str, body: Any, field: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"at most \d+$") as caught:
        await handlers()[path](call_of(body))
    assert caught.value.field == field


def test_results_are_joined_to_calls_in_one_pass() -> None:
    """Results that name no call are not compared with all calls."""
    calls = [SentCall(function=SentFunction(name="f"))] * MAX_TOOLS
    num_each = MAX_MESSAGES // 8
    messages = [OllamaMessage(role="assistant", tool_calls=calls)] * num_each
    messages += [OllamaMessage(role="tool", content="x", tool_name="g")] * num_each
    num_lines = 0

    def count(_: Any, event: str, __: Any) -> Any:
        nonlocal num_lines
        num_lines += event == "line"
        return count

    sys.settrace(count)
    try:
        service_messages(messages, iter(()))
    finally:
        sys.settrace(None)
    assert num_lines < 30 * num_each * MAX_TOOLS


def test_mixed_inputs_are_named() -> None:
    with pytest.raises(InvalidArgumentError, match=r"input\[2\]: is of another type"):
        texts_or_tokens([1, 2, "a"], "input")


@pytest.mark.parametrize(
    ("kind", "decoded"),
    [
        (ChatBody, {"guided_json"}),
        (CompletionBody, {"guided_json"}),
        (ResponseBody, {"guided_json"}),
        (EmbeddingsBody, set()),
        (DecisionsBody, set()),
        (MultiVectorBody, set()),
        (PoolingBody, set()),
        (ChatMessage, set()),
        (MessagesBody, set()),
        (CountBody, set()),
        (SentTool, set()),
        (Block, set()),
    ],
)
def test_fields_without_effect_are_not_decoded(kind: Any, decoded: set[str]) -> None:
    fields = msgspec.structs.fields(kind)
    assert {field.name for field in fields if field.type is Any} == decoded


ANNOTATED = {"role": "user", "content": "7,8,", "annotations": [[]] * 1000}
CACHED = {"type": "text", "text": "7,8,", "cache_control": [[]] * 1000}


@pytest.mark.parametrize(
    ("kind", "handler", "message"),
    [
        (ChatBody, chat_completions, ANNOTATED),
        (MessagesBody, create_message, {"role": "user", "content": [CACHED]}),
    ],
)
async def test_a_call_does_not_keep_its_body(
    every_task: Path, kind: Any, handler: Handler, message: Any
) -> None:
    body = {"model": DECODER, "max_tokens": 1, "messages": [message], "metadata": [[]] * 50_000}
    data = msgspec.json.encode(body)
    before = sys.getrefcount(data)
    call = call_of(json_decoder(kind)(data))
    assert len(memoryview(call.body.metadata)) == MAX_RAW_BYTES + 1
    async with service_context(every_task) as context:
        await handler(call_of(call.body, Service(context)))
    assert sys.getrefcount(data) == before


async def test_large_bodies_are_decoded_in_a_thread(bundles: Path) -> None:
    threads = []

    def decode(data: bytes, _: Headers) -> int:
        threads.append(threading.get_ident())
        return len(data)

    async def answer(_: Call[int]) -> Response:
        return Response()

    async with service_context(bundles) as service:
        access = Access(ServerConfig(bundles=bundles))
        context = Context(Service(service), HttpSettings(), access, BodyBudget(1 << 30))
        api = Api(context=context, error=error_response)
        app = Application([api.post("/size", decode, answer)], access)
        bound = bound_socket("127.0.0.1:0")
        listener = Listener(bound, app, HttpSettings(), None)
        await listener.start()
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/size"
        async with httpx2.AsyncClient() as client:
            for size in (MIN_THREADED_BYTES - 1, MIN_THREADED_BYTES):
                assert (await client.post(url, content=b"a" * size)).status_code == 200
        await listener.stop(grace_seconds=1.0)
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [True, False]


async def test_a_body_is_small_until_its_token_is_known(bundles: Path, tokens: Path) -> None:
    form = {
        "q": "a" * MAX_ANONYMOUS_BYTES,
        "source": "en",
        "target": "de",
        "api_key": "first-token",
    }
    async with (
        serving(bundles, http="127.0.0.1:0", tokens=tokens) as running,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{running.http_port}") as client,
    ):
        refused = await client.post("/translate", data=form)
        assert (refused.status_code, "bearer" in refused.json()["error"]) == (413, True)
        bearer = {"authorization": "Bearer first-token"}
        assert (await client.post("/translate", data=form, headers=bearer)).status_code == 400
        wrong = {"authorization": "Bearer third-token"}
        assert (await client.post("/translate", data=form, headers=wrong)).status_code == 401
        form["q"] = "a"
        assert (await client.post("/translate", data=form)).status_code == 400


def test_escapes_of_a_form_are_decoded_in_pieces() -> None:
    data = b"q=" + b"%41" * (1 << 20) + b"&source=en&target=de"
    headers = Headers({"content-type": "application/x-www-form-urlencoded"})
    tracemalloc.start()
    try:
        body = decode_form(data, headers, libretranslate.TranslateBody)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert body.q == "A" * (1 << 20)
    assert peak_bytes < 5 * len(data)
