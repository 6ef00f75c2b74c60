"""OpenAI's own client, unmodified, against a real server."""

import base64
import json
from typing import Any

import numpy as np
import openai
import pytest

from tests.frontends.conftest import DECODER, EMBEDDER

PROMPT = "7,8,"
MESSAGES: Any = [{"role": "user", "content": PROMPT}]
GREEDY: dict[str, Any] = {"model": DECODER, "max_tokens": 6, "temperature": 0}
IGNORE_EOS: dict[str, Any] = {"extra_body": {"ignore_eos": True}}
SIX: dict[str, Any] = {**GREEDY, **IGNORE_EOS}
"""Exactly six tokens."""


def test_lists_and_gets_models(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert {DECODER, EMBEDDER} <= set(names)
    assert client.models.retrieve(DECODER).id == DECODER
    assert client.models.retrieve(f"{DECODER}:latest").id == DECODER
    for name in ("nothing", "owner/nothing"):
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve(name)
        assert caught.value.code == "model_not_found"
        assert f"{name!r} is not served here; served: " in caught.value.message


@pytest.mark.parametrize("route", ["chat", "completions"])
def test_every_event_has_the_usage_so_far(client: openai.OpenAI, route: str) -> None:
    """``continuous_usage_stats`` of vLLM, which load tools send."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    create: Any = client.chat.completions.create if route == "chat" else client.completions.create
    fields = {"messages": MESSAGES} if route == "chat" else {"prompt": ["100,", "7,101,"]}
    whole = create(**fields, **SIX).usage
    usages = [event.usage for event in create(**fields, stream=True, stream_options=options, **SIX)]
    counts = [usage.completion_tokens for usage in usages]
    assert counts == sorted(counts)
    assert len(set(counts)) > 2
    assert usages[-1].completion_tokens == whole.completion_tokens == counts[-1]
    assert usages[-1].prompt_tokens == whole.prompt_tokens
    assert 0 < usages[0].prompt_tokens <= whole.prompt_tokens
    assert [u.total_tokens for u in usages] == [
        u.prompt_tokens + u.completion_tokens for u in usages
    ]


def test_chat_streams_what_it_returns_whole(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=MESSAGES, **SIX)
    stream = client.chat.completions.create(
        messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **SIX
    )
    chunks = list(stream)
    deltas = [chunk.choices[0] for chunk in chunks[:-1]]
    assert deltas[0].delta.role == "assistant"
    assert [delta.delta.role for delta in deltas[1:]] == [None] * (len(deltas) - 1)
    text = "".join(delta.delta.content or "" for delta in deltas)
    assert text == whole.choices[0].message.content != ""
    assert deltas[-1].finish_reason == whole.choices[0].finish_reason == "length"
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 6


def test_empty_messages_add_nothing_to_a_conversation(client: openai.OpenAI) -> None:
    empty: Any = [{"role": "system", "content": ""}, {"role": "assistant", "content": None}]
    alone = client.chat.completions.create(messages=MESSAGES, **GREEDY)
    among = client.chat.completions.create(messages=[*empty, *MESSAGES], **GREEDY)
    assert among.choices[0].message.content == alone.choices[0].message.content
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(messages=empty, **GREEDY)
    assert caught.value.param == "messages[1].content"


async def test_async_client_streams(async_client: openai.AsyncOpenAI) -> None:
    stream = await async_client.completions.create(prompt=PROMPT, stream=True, **SIX)
    texts = [chunk.choices[0].text async for chunk in stream]
    whole = await async_client.completions.create(prompt=PROMPT, **SIX)
    assert len(texts) > 1
    assert "".join(texts) == whole.choices[0].text


def test_logprobs_are_those_of_the_tokens(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        messages=MESSAGES, logprobs=True, top_logprobs=3, **SIX
    ).choices[0]
    assert chat.logprobs is not None
    content = chat.logprobs.content or []
    spelled = b"".join(bytes(token.bytes or ()) for token in content).decode()
    assert spelled.replace("</s>", "") == chat.message.content
    for token in content:
        likeliest = token.top_logprobs[0]
        assert (token.token, token.logprob) == (likeliest.token, likeliest.logprob)
        assert [x.logprob for x in token.top_logprobs] == sorted(
            (x.logprob for x in token.top_logprobs), reverse=True
        )
    echoed = client.completions.create(prompt=PROMPT, logprobs=1, echo=True, **SIX).choices[0]
    assert echoed.logprobs is not None
    assert echoed.logprobs.token_logprobs is not None
    tokens = [token for token in echoed.logprobs.tokens or [] if token not in {"<s>", "</s>"}]
    assert "".join(tokens) == echoed.text
    assert echoed.logprobs.token_logprobs[0] is None
    offsets = echoed.logprobs.text_offset or []
    for token, offset in zip(echoed.logprobs.tokens or [], offsets, strict=True):
        assert token in {"<s>", "</s>"} or echoed.text[offset:].startswith(token)
    alone = client.completions.create(prompt=PROMPT, logprobs=1, **SIX).choices[0].logprobs
    assert alone is not None
    assert alone.token_logprobs == echoed.logprobs.token_logprobs[-6:]


@pytest.mark.parametrize("prompt", [["7,8,9,", "1,"], [[20, 21, 22], [23]]], ids=["text", "ids"])
def test_prompts_are_scored_without_new_tokens(client: openai.OpenAI, prompt: Any) -> None:
    """``max_tokens`` 0 with ``echo``, as evaluations and vLLM's clients send it."""
    fields: dict[str, Any] = {"prompt": prompt, "echo": True, "logprobs": 2, "n": 1}
    scored = client.completions.create(**{**GREEDY, **fields, "max_tokens": 0})
    longer = client.completions.create(**{**GREEDY, **fields, "max_tokens": 1}, **IGNORE_EOS)
    for alone, whole in zip(scored.choices, longer.choices, strict=True):
        assert alone.text
        assert whole.text.startswith(alone.text)
        assert alone.logprobs is not None
        assert whole.logprobs is not None
        assert alone.finish_reason == "length"
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert getattr(alone.logprobs, name) == getattr(whole.logprobs, name)[:-1]
    assert scored.usage is not None
    assert scored.usage.completion_tokens == 0
    assert (
        client.completions.create(**{**GREEDY, "prompt": prompt, "echo": True, "max_tokens": 0})
        .choices[0]
        .text
        == scored.choices[0].text
    )


def test_streamed_tokens_have_the_offsets_of_the_whole(client: openai.OpenAI) -> None:
    """Stop strings that begin like the text hold it back, but not the log-probabilities."""
    text = client.completions.create(prompt=PROMPT, **SIX).choices[0].text
    options: Any = {"prompt": PROMPT, "logprobs": 0, "stop": [f"{x}?" for x in sorted({*text})]}
    whole: Any = client.completions.create(**options, **SIX).choices[0].logprobs
    assert len(set(whole.text_offset)) > 3
    stream = client.completions.create(stream=True, **options, **SIX)
    pieces = [chunk.choices[0].logprobs for chunk in stream]
    offsets = [offset for piece in pieces if piece for offset in piece.text_offset or []]
    assert offsets == whole.text_offset


def test_several_outputs_per_prompt(client: openai.OpenAI) -> None:
    options = {**GREEDY, "temperature": 2.0, "seed": 5}
    first = client.completions.create(prompt=["7,", "9,"], n=2, **options)
    again = client.completions.create(prompt=["7,", "9,"], n=2, **options)
    assert [choice.index for choice in first.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in first.choices] == [choice.text for choice in again.choices]
    assert len({choice.text for choice in first.choices}) > 1


def test_structured_output_matches_its_schema(client: openai.OpenAI) -> None:
    schema: Any = {"type": "integer", "minimum": 100, "maximum": 199}
    answer = client.chat.completions.create(
        messages=MESSAGES,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        **GREEDY,
    )
    assert 100 <= json.loads(answer.choices[0].message.content or "") <= 199
    for field in ({"structured_outputs": {"choice": ["11", "12"]}}, {"guided_regex": "1[12]"}):
        chosen = client.chat.completions.create(messages=MESSAGES, extra_body=field, **GREEDY)
        assert chosen.choices[0].message.content in {"11", "12"}


def test_embeddings_are_equal_in_both_formats(client: openai.OpenAI) -> None:
    texts = ["a cat", "two dogs"]
    packed = client.embeddings.create(model=EMBEDDER, input=texts)  # base64 by default
    raw = client.embeddings.create(model=EMBEDDER, input=texts, encoding_format="base64")
    listed = client.embeddings.create(model=EMBEDDER, input=texts, encoding_format="float")
    for one, other, data in zip(packed.data, listed.data, raw.data, strict=True):
        assert one.embedding == other.embedding
        text: Any = data.embedding
        vector = np.frombuffer(base64.b64decode(text), "<f4")
        assert vector.tolist() == one.embedding
    short = client.embeddings.create(model=EMBEDDER, input=texts[0], dimensions=8)
    assert len(short.data[0].embedding) == 8


def test_responses_stream_what_they_return_whole(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": DECODER, "max_output_tokens": 16, "temperature": 0}
    whole = client.responses.create(input=PROMPT, **options)
    with client.responses.stream(input=PROMPT, **options) as stream:
        kinds = [event.type for event in stream]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    streamed = client.responses.create(input=PROMPT, stream=True, **options)
    deltas = [event.delta for event in streamed if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text != ""
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens


@pytest.mark.parametrize("reasoning", [None, {}, {"effort": None}, {"effort": "none"}])
def test_responses_without_reasoning(client: openai.OpenAI, reasoning: Any) -> None:
    metadata = {"a" * 64: "b" * 512}
    answer = client.responses.create(
        model=DECODER, input=PROMPT, reasoning=reasoning, metadata=metadata
    )
    assert (answer.status, answer.metadata) == ("completed", metadata)


def test_decisions_do_not_depend_on_each_other(client: openai.OpenAI) -> None:
    choice: Any = {
        "type": "choice",
        "instructions": "next",
        "choices": [{"value": "1"}, {"value": "2"}, {"value": True}],
    }
    predicate: Any = {"type": "predicate", "instructions": "a number", "name": "p"}
    score: Any = {
        "type": "score",
        "instructions": "size",
        "levels": [{"label": "1"}, {"label": "9"}],
    }
    both = client.decisions.create(
        model=DECODER, input=PROMPT, questions=[predicate, choice, score]
    )
    alone = client.decisions.create(model=DECODER, input=PROMPT, questions=[choice])
    assert both.answers[1] == alone.answers[0]
    assert [answer.type for answer in both.answers] == ["predicate", "choice", "score"]
    chosen: Any = alone.answers[0]
    assert sum(x.probability for x in chosen.probabilities) == pytest.approx(1)
    assert chosen.confidence == max(x.probability for x in chosen.probabilities)
