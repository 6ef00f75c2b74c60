"""Bodies of every HTTP route: random bytes, and JSON with random values in known fields."""

import json
from collections.abc import Iterator
from typing import Any

from tests.fuzz.draw import Draw
from tests.fuzz.service import service

SIZE = 512
MODELS = (
    *("tiny-decoder", "embedder", "judge", "sorter", "dates", "nothing"),
    *("splade", "colbert"),
)
# Fields of the routes whose protocols share names; others ignore or reject them.
FIELDS: dict[str, tuple[Any, ...]] = {
    "messages": (
        [{"role": "user", "content": "1,"}],
        [],
        [{"role": "tool", "content": None, "tool_call_id": "1"}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1"}}]}],
        [
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
            },
            {"role": "tool", "tool_name": "f", "content": "x"},
        ],
        [{"role": "user", "content": "1,", "thinking": "x", "images": ["eA=="]}],
        [{"role": "user", "content": [{"type": "text", "text": "1,"}]}],
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]}],
        [
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}],
            },
            {"role": "user", "content": "1,"},
        ],
    ),
    "system": ("1,", "", [{"type": "text", "text": "1,"}], [{"type": "image"}]),
    "stop_sequences": (["1"], [""], []),
    "thinking": ({"type": "disabled"}, {"type": "enabled", "budget_tokens": 1}, {"type": 1}),
    "output_config": (
        {"effort": "none"},
        {"format": {"type": "json_schema", "schema": {"type": "integer"}}},
    ),
    "tools": (
        [{"type": "function", "function": {"name": "f"}}],
        [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        [{"type": "function", "function": {"name": "f", "parameters": {"type": 1}}}],
        [{"name": "f", "input_schema": {"type": "object"}}],
        [],
    ),
    "tool_choice": (
        *("required", "none", {"type": "function", "function": {"name": "f"}}),
        *({"type": "any"}, {"type": "tool", "name": "f"}),
    ),
    "parallel_tool_calls": (False,),
    "chat_template_kwargs": ({"a": 1}, {"tools": 1}),
    "prompt": ("1,", ["1,", "2,"], [3, 4], [[3], [4, 5]], [], [1, "2"], [10**9]),
    "input": (
        *("a cat", ["a", "b"], [5, 6], [[5]], [{"role": "user", "content": "x"}]),
        [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}],
        [{"type": "function_call_output", "call_id": "1", "output": "x"}],
    ),
    "inputs": ("a cat", ["a", "b"], [["a", "b"]]),
    "q": ("2020-01-02", ["a", "b"], ""),
    "source": ("en", "auto", "xx"),
    "target": ("en", "xx"),
    "format": ("html", "text", "json", {"type": "integer"}, {"type": 1}, ""),
    "options": (
        {"num_predict": 3, "temperature": 0, "stop": ["1"]},
        {"num_predict": -1, "top_k": -1, "top_p": 0, "seed": -1, "repeat_last_n": 0},
        {"repeat_penalty": 1.3, "repeat_last_n": 64},
        {"mirostat": 1},
        {"beam_size": 2, "num_ctx": 8, "logit_bias": [[3, 1], [3, 2]]},
    ),
    "think": (True, False, "low"),
    "raw": (True,),
    "keep_alive": (0, "0s", "5m"),
    "texts": (["a", "b"], []),
    "truncate": (True, "NONE", "START"),
    "raw_scores": (True,),
    "query": ("cat", ""),
    "documents": (["a", "b"], [{"text": "c"}], []),
    "text_1": ("a", ["a", "b"]),
    "text_2": ("a", ["a", "b"], []),
    "tokens": ([1, 2], [], [-1]),
    "questions": (
        [{"type": "predicate", "instructions": "x"}],
        [{"type": "choice", "instructions": "x", "choices": [{"value": "1"}, {"value": True}]}],
        [{"type": "score", "instructions": "x", "levels": [{"label": "1"}]}],
    ),
    "stream": (True, False),
    "stream_options": ({"include_usage": True},),
    "max_tokens": (1, 3, 0, -1, 2**40),
    "n": (1, 3, 0, 65),
    "temperature": (0, 1, -1, 1e308),
    "seed": (0, -1, 2**63, 2**70),
    "stop": ("1", ["1", "2"], [""], "é" * 300),
    "logit_bias": ({"3": 1}, {"x": 1}, {"-1": 1}, {"3": 1e9}),
    "logprobs": (True, 2, 10**6),
    "top_logprobs": (1, 200),
    "echo": (True,),
    "top_k": (-1, 0, 5),
    "beam_size": (2, 65),
    "min_tokens": (1, 5),
    "priority": (5, -500),
    "ignore_eos": (True,),
    "response_format": ({"type": "json_object"}, {"type": "json_schema"}, {"type": "x"}),
    "guided_choice": (["1", "2"], []),
    "guided_regex": ("1+", "(" * 50),
    "guided_json": ({"type": "integer"}, "{"),
    "structured_outputs": ({"grammar": "start: /1/"}, {"regex": "["}),
    "dimensions": (8, 0, -1),
    "encoding_format": ("base64", "float", "x"),
    "truncate_prompt_tokens": (-1, 1, 8, 0),
    "input_type": ("query", "document", "search_query", "clustering", "x"),
    "task": ("embed", "token_embed", "retrieval.query", "text-matching", "x"),
    "images": ([], ["x"], ["data:image/png;base64,eA=="]),
    "embedding_type": ("float", "base64"),
    "embedding_types": (["float", "base64"], [], ["int8"]),
    "output_dimension": (8, 0),
    "max_active_dims": (1, 0, 1025),
    "top_n": (0, 1, -1, 10**9),
    "max_tokens_per_doc": (1, 8),
    "add_special_tokens": (False,),
    "return_token_strs": (True,),
}
NAMES = tuple(FIELDS)
NOT_ANSWERED = 501  # calls that are always refused


def run(data: bytes) -> None:
    """First byte: the route. Second byte: whether the rest is the body, or draws its fields."""
    draw = Draw(data)
    routes = service().routes
    route = routes[draw.byte() % len(routes)]
    if draw.byte() % 4 == 0:
        body = draw.rest()
    else:
        fields: dict[str, Any] = {"model": draw.choice(MODELS)}
        for _ in range(1 + draw.below(8)):
            name = draw.choice(NAMES)
            value = draw.text() if draw.below(8) == 0 else draw.choice(FIELDS[name])
            fields[name] = value
        body = json.dumps(fields).encode()
    status, answer = service().post(route, body)
    assert status < 500 or status == NOT_ANSWERED, (route.path, body, answer)
    answer.decode()
    if status != 200:
        assert json.loads(answer), (route.path, body)


def seeds() -> Iterator[bytes]:
    bodies = (
        {"model": "tiny-decoder", "prompt": "1,", "max_tokens": 2, "stream": True},
        {"model": "tiny-decoder", "prompt": ["1,", "2,"], "logprobs": 2, "echo": True},
        {"model": "embedder", "input": ["a", "b"], "dimensions": 8},
        {"model": "judge", "query": "a", "documents": ["b", {"text": "c"}]},
        {"model": "sorter", "input": "a"},
        {"model": "embedder", "texts": ["a", "b"], "input_type": "search_query"},
        {"model": "colbert", "input": ["a", "b"], "input_type": "query"},
        {"model": "embedder", "input": ["a", "b"], "task": "token_embed"},
        {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
        {"model": "tiny-decoder", "tokens": [3, 4]},
        {"model": "tiny-decoder:latest", "prompt": "1,", "options": {"num_predict": 2}},
        {
            "model": "tiny-decoder",
            "messages": [{"role": "user", "content": "1,"}],
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": "required",
            "max_tokens": 4,
        },
        {
            "model": "tiny-decoder",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "1,"}]}],
            "system": "1,",
            "max_tokens": 4,
            "stream": True,
        },
    )
    for route in range(32):
        yield bytes([route, 1, 7]) + bytes(range(route, route + 60))
        for body in bodies:
            yield bytes([route, 0]) + json.dumps(body).encode()
