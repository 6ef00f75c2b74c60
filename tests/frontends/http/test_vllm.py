"""vLLM's routes, against the same calls by gRPC."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from client.sync import Client
from tests.frontends.conftest import CLASSIFIER, DECODER, EMBEDDER, RERANKER
from tests.serving import ServerProcess

TEXTS = ["a cat sat", "two dogs ran", "études"]


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.http_url) as client:
        yield client


def ok(answer: httpx2.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_score_is_rerank_in_the_order_of_the_texts(
    server: ServerProcess, http: httpx2.Client
) -> None:
    body = {"model": RERANKER, "text_1": "cat", "text_2": TEXTS}
    scores = [item["score"] for item in ok(http.post("/score", json=body))["data"]]
    pairs = {**body, "text_1": ["cat", "dog", "cat"]}
    paired = [item["score"] for item in ok(http.post("/v1/score", json=pairs))["data"]]
    with Client(server.target) as client:
        outputs = client.rerank(RERANKER, "cat", TEXTS).outputs
        expected = {output.index: output.score for output in outputs}
        (dog,) = client.rerank(RERANKER, "dog", TEXTS[1:2]).outputs
    assert scores == pytest.approx([expected[index] for index in range(3)], rel=1e-6)
    assert paired == pytest.approx([expected[0], dog.score, expected[2]], rel=1e-6)


@pytest.mark.parametrize(
    ("first", "second"),
    [("data_1", "data_2"), ("queries", "documents"), ("queries", "items")],
)
def test_texts_to_score_have_several_names(http: httpx2.Client, first: str, second: str) -> None:
    body = {"model": RERANKER, "text_1": "cat", "text_2": TEXTS}
    renamed = {"model": RERANKER, first: "cat", second: TEXTS}
    expected = ok(http.post("/score", json=body))["data"]
    assert ok(http.post("/score", json=renamed))["data"] == expected
    for wrong, field in (
        ({**renamed, second: ["a", ""]}, f"{second}[1]"),
        ({**renamed, first: ["a", "b"]}, first),
        ({**renamed, first: ""}, first),
        ({"model": RERANKER, first: "cat"}, "data_2" if first == "data_1" else "documents"),
    ):
        answer = http.post("/score", json=wrong)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_classify_gives_probabilities_in_the_order_of_the_labels(
    server: ServerProcess, http: httpx2.Client
) -> None:
    (item,) = ok(http.post("/classify", json={"model": CLASSIFIER, "input": TEXTS[0]}))["data"]
    with Client(server.target) as client:
        (output,) = client.classify(CLASSIFIER, TEXTS[0]).outputs
        labels = client.get_model(CLASSIFIER).labels
    scores = {label.label: label.score for label in output.labels}
    assert item["probs"] == pytest.approx([scores[label] for label in labels], rel=1e-6)
    assert (item["label"], item["num_classes"]) == (output.labels[0].label, len(labels))


@pytest.mark.parametrize(("model", "text"), [(DECODER, "7,8,9"), (EMBEDDER, "two dogs ran")])
def test_detokenize_reverses_tokenize(http: httpx2.Client, model: str, text: str) -> None:
    body = {"model": model, "prompt": text, "return_token_strs": True}
    tokenized = ok(http.post("/tokenize", json=body))
    assert tokenized["count"] == len(tokenized["tokens"]) == len(tokenized["token_strs"])
    plain = ok(http.post("/tokenize", json={**body, "add_special_tokens": False}))
    assert plain["count"] < tokenized["count"]
    for tokens in (tokenized["tokens"], plain["tokens"]):
        answer = ok(http.post("/detokenize", json={"model": model, "tokens": tokens}))
        assert answer["prompt"] == text


def test_token_ids_are_embedded_as_their_text(http: httpx2.Client) -> None:
    body = {"model": EMBEDDER, "prompt": TEXTS[1], "add_special_tokens": False}
    tokens = ok(http.post("/tokenize", json=body))["tokens"]
    vectors = [
        ok(http.post("/v1/embeddings", json={"model": EMBEDDER, "input": given}))["data"]
        for given in (TEXTS[1], tokens, [tokens])
    ]
    assert vectors[0] == vectors[1] == vectors[2]


NEUTRAL: dict[str, Any] = {
    "use_beam_search": False,
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "return_token_ids": False,
    "truncate_prompt_tokens": None,
    "prompt_logprobs": None,
    "allowed_token_ids": None,
    "logits_processors": None,
    "cache_salt": None,
    "vllm_xargs": None,
    "truncation_side": None,
    "logprob_token_ids": None,
    "stream_interval": None,
    "prompt_embeds": None,
    "repetition_detection": None,
    "thinking_token_budget": -1,
    "watermarking": None,
    "ec_transfer_params": None,
    "session_id": "s",
}
"""Defaults of vLLM's completions and chat."""
NEUTRAL_CHAT = {
    **NEUTRAL,
    "echo": False,
    "add_generation_prompt": True,
    "continue_final_message": False,
    "add_special_tokens": False,
    "documents": None,
    "chat_template": None,
    "chat_template_kwargs": {},
    "mm_processor_kwargs": None,
    "include_reasoning": True,
}


@pytest.mark.parametrize(
    ("path", "prompt", "neutral", "other"),
    [
        (
            "/v1/completions",
            {"prompt": "7,8,"},
            {**NEUTRAL, "add_special_tokens": True},
            {"skip_special_tokens": False, "allowed_token_ids": [1], "logprob_token_ids": [1]},
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "7,8,"}]},
            NEUTRAL_CHAT,
            {"echo": True, "chat_template": "x", "cache_salt": "a"},
        ),
    ],
)
def test_defaults_of_vllm_change_nothing_and_other_values_are_refused(
    http: httpx2.Client, path: str, prompt: Any, neutral: dict[str, Any], other: dict[str, Any]
) -> None:
    body = {"model": DECODER, "max_tokens": 4, "temperature": 0, **prompt}
    (plain,) = ok(http.post(path, json=body))["choices"]
    assert ok(http.post(path, json={**body, **neutral}))["choices"] == [plain]
    for name, value in other.items():
        answer = http.post(path, json={**body, **neutral, name: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1"),
        ("/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/score", {}, "text_1"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c", ""]}, "text_2[1]"),
        ("/detokenize", {"tokens": [1, 10**9]}, "tokens[0].ids[1]"),
        ("/detokenize", {"tokens": []}, "tokens[0]"),
        ("/tokenize", {"prompt": ""}, "prompt[0]"),
        ("/tokenize", {"prompt": "a", "nothing": 1}, "nothing"),
    ],
)
def test_errors_name_the_field(
    http: httpx2.Client, path: str, body: dict[str, Any], field: str
) -> None:
    answer = http.post(path, json={"model": EMBEDDER, **body})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_the_version_is_that_of_the_server(http: httpx2.Client) -> None:
    version = ok(http.get("/v2"))["version"]
    assert version
    assert ok(http.get("/version")) == {"version": version}
    assert ok(http.get(f"/{EMBEDDER}/info"))["version"] == version


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_ping_is_a_health_check(http: httpx2.Client, method: str) -> None:
    assert ok(http.request(method, "/ping")) == ok(http.get("/health"))


def test_logprobs_of_prompts(server: ServerProcess, http: httpx2.Client) -> None:
    prompts = ["7,8,9,", "1,"]
    body = {"model": DECODER, "prompt": prompts, "max_tokens": 3, "temperature": 0}
    plain = ok(http.post("/v1/completions", json={**body, "logprobs": 1}))["choices"]
    given = {**body, "logprobs": 1, "prompt_logprobs": 2}
    choices = ok(http.post("/v1/completions", json=given))["choices"]
    with Client(server.target) as client:
        result = client.generate(
            DECODER, prompts, max_new_tokens=3, prompt_logprobs=True, logprobs=True, top_logprobs=2
        )
    for choice, alone, output in zip(choices, plain, result.outputs, strict=True):
        first, *scored = choice.pop("prompt_logprobs")
        assert choice == alone
        assert first is None
        for found, token in zip(scored, output.prompt_logprobs, strict=True):
            (id_, own), *_ = found.items()
            assert (int(id_), own["logprob"]) == (token.token_id, pytest.approx(token.logprob))
            ranked = {entry["rank"]: int(id_) for id_, entry in found.items() if entry["rank"]}
            assert ranked == {rank: top.token_id for rank, top in enumerate(token.top, start=1)}
        spelled = [next(iter(found.values()))["decoded_token"] for found in scored]
        assert "".join(spelled) == prompts[choice["index"]]
    alone = ok(http.post("/v1/completions", json={**body, "prompt_logprobs": 0}))["choices"]
    assert [choice["logprobs"] for choice in alone] == [None, None]
    assert {len(found) for found in alone[0]["prompt_logprobs"][1:]} == {1}
    several = {**body, "prompt": "7,", "n": 2, "temperature": 1, "prompt_logprobs": 1}
    both = ok(http.post("/v1/completions", json=several))["choices"]
    assert [choice.get("prompt_logprobs") is None for choice in both] == [False, True]
    for wrong in ({"prompt_logprobs": -1}, {"prompt_logprobs": 101}, {"stream": True}):
        answer = http.post("/v1/completions", json={**given, **wrong})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt_logprobs")
    answer = http.post("/v1/completions", json={**given, "logprobs": -1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logprobs")
