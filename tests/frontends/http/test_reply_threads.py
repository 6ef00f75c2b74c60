"""Large replies are built in a thread, small ones on the event loop."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from server.frontends.http import rerank, tei, tei_bodies, vllm
from server.frontends.http.event_stream import EventStream
from server.frontends.http.openai import chat, completions, response_events, responses
from server.service.service import Service
from tests.frontends.conftest import CLASSIFIER, DECODER, RERANKER
from tests.frontends.http.calls import call_of, handlers
from tests.server.in_process_service import service_context

PROMPT = "7,8,"
OPTIONS = {"model": DECODER, "ignore_eos": True}
DOCUMENTS = [f"{number}" for number in range(1024)]
CHAT = {"messages": [{"role": "user", "content": PROMPT}], "logprobs": True, "top_logprobs": 20}
SCORED = {"include": ["message.output_text.logprobs"], "top_logprobs": 20, "input": PROMPT}


@pytest.mark.parametrize(
    ("module", "name", "path", "kind", "fields", "size"),
    [
        (chat, "json_response", "/v1/chat/completions", chat.ChatBody, CHAT, "max_tokens"),
        (
            completions,
            "json_response",
            "/v1/completions",
            completions.CompletionBody,
            {"prompt": PROMPT, "logprobs": 20},
            "max_tokens",
        ),
        (
            responses,
            "json_response",
            "/v1/responses",
            responses.ResponseBody,
            SCORED,
            "max_output_tokens",
        ),
        (
            response_events,
            "event",
            "/v1/responses",
            responses.ResponseBody,
            SCORED | {"stream": True},
            "max_output_tokens",
        ),
        (rerank, "json_response", "/v2/rerank", rerank.RerankBody, {}, "documents"),
        (rerank, "json_response", "/rerank", rerank.RerankBody, {}, "documents"),
        (tei, "answer_with", "/{model}/rerank", tei_bodies.RerankBody, {}, "texts"),
        (vllm, "list_response", "/classify", vllm.ClassifyBody, {}, "input"),
    ],
)
async def test_large_replies_are_built_in_a_thread(
    every_task: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    path: str,
    kind: Any,
    fields: dict[str, Any],
    size: str,
) -> None:
    threads = recorded(monkeypatch, module, name)
    here = threading.get_ident()
    async with service_context(every_task) as context:
        for length in (1, 60):
            if size.startswith("max"):
                body: dict[str, Any] = OPTIONS | fields | {size: length}
            else:
                model = CLASSIFIER if path == "/classify" else RERANKER
                body = {"model": model, "query": "a", size: DOCUMENTS[: 16 * length]}
            call = call_of(msgspec.convert(body, kind), Service(context), body["model"])
            answer = await handlers()[path](call)
            if isinstance(answer, EventStream):
                async for _ in answer.items:
                    pass
            assert (threads[-1] == here) == (
                length == 1
            )  # the last event of a stream is the largest


def recorded(patch: pytest.MonkeyPatch, module: Any, name: str) -> list[int]:
    """The threads in which the module's function ``name`` will run."""
    threads = []
    function: Callable[..., Any] = getattr(module, name)

    def record(*args: Any, **keywords: Any) -> Any:
        threads.append(threading.get_ident())
        return function(*args, **keywords)

    patch.setattr(module, name, record)
    return threads
