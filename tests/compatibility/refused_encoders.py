"""Rejected calls to encoders, Tokenize and ModelService, and malformed calls."""

import math
from collections.abc import Iterator

from tests.compatibility.call_builder import Fields, call
from tests.compatibility.encoder_calls import ANNA, LONG, MASKED, QUESTION, WINDOWS
from tests.compatibility.refused_generation import MEBIBYTE
from tests.compatibility.wire import Call

NUM_TEXTS = 8193  # one more than the queue holds
PAIR = {"text": ANNA, "text_pair": "book"}
INFERENCE = "/triune.v1.InferenceService"

# A matching model and valid fields for each method.
GOOD: dict[str, tuple[str, Fields]] = {
    "Embed": ("embedder", {"inputs": [ANNA]}),
    "Classify": ("sorter", {"inputs": [ANNA]}),
    "Tag": ("tagger", {"inputs": [ANNA]}),
    "FillMask": ("filler", {"inputs": [MASKED]}),
    "Answer": ("answerer", {"questions": [QUESTION]}),
    "Rerank": ("judge", {"query": "book", "documents": ["a film", "a book"]}),
    "Tokenize": ("embedder", {"inputs": [ANNA]}),
}
# Invalid fields that replace the valid ones, by method.
BAD: dict[str, dict[str, Fields]] = {
    "Embed": {
        "too-many": {"inputs": ["a"] * NUM_TEXTS},
        "too-many-windows": {
            "inputs": ["a " * 2 * NUM_TEXTS],
            "length": {"long_input": WINDOWS, "max_tokens": 4, "stride": 0},
        },
        "dimensions=0": {"options": {"dimensions": 0}},
        "dimensions=7": {"options": {"dimensions": 7}},
        "dimensions=33": {"options": {"dimensions": 33}},
        "never-unnormalized": {"model": "unit-embedder", "options": {"normalize": False}},
        "without-token-embeddings": {
            "model": "plain-embedder",
            "options": {"token_embeddings": True},
        },
        "two-prompts": {"options": {"prompt": "a", "prompt_name": "query"}},
        "unknown-prompt": {"options": {"prompt_name": "nobody"}},
        "unknown-format": {"options": {"encoding_format": 9}},
        "windows-of-tokens": {
            "options": {"token_embeddings": True},
            "length": {"long_input": WINDOWS},
        },
        "prompt-too-long": {"options": {"prompt": LONG}},
    },
    "Classify": {
        "inputs-and-pairs": {"pairs": [PAIR]},
        "empty-text": {"inputs": [], "pairs": [PAIR, {"text_pair": "a"}]},
        "empty-text-pair": {"inputs": [], "pairs": [PAIR, {"text": "a"}]},
        "too-long-pair": {"inputs": [], "pairs": [PAIR, {"text": "a", "text_pair": LONG}]},
        "top_k=0": {"options": {"top_k": 0}},
        "top_k=-1": {"options": {"top_k": -1}},
        "unknown-function": {"options": {"score_function": 4}},
    },
    "Tag": {
        "unknown-aggregation": {"options": {"aggregation": 6}},
        "min_score=nan": {"options": {"min_score": math.nan}},
        "min_score=-0.1": {"options": {"min_score": -0.1}},
        "min_score=1.1": {"options": {"min_score": 1.1}},
        "min_score=inf": {"options": {"min_score": math.inf}},
    },
    "FillMask": {
        "top_k=0": {"options": {"top_k": 0}},
        "top_k-above-vocabulary": {"options": {"top_k": 1000}},
        "unknown-target": {"options": {"targets": ["paris", "lisbon"]}},
        "too-many-targets": {"options": {"targets": ["paris"] * 1025}},
        "no-mask": {"inputs": [MASKED, ANNA]},
        "mask-cut-off": {"inputs": [f"{LONG} [MASK]"], "length": {"long_input": 2}},
    },
    "Answer": {
        "no-question": {"questions": [QUESTION, {"context": ANNA}]},
        "no-context": {"questions": [QUESTION, {"question": "Who?"}]},
        "top_k=0": {"options": {"top_k": 0}},
        "top_k=1025": {"options": {"top_k": 1025}},
        "max_answer_tokens=0": {"options": {"max_answer_tokens": 0}},
        "max_answer_tokens=49": {"options": {"max_answer_tokens": 49}},
        "long-question": {"questions": [{"question": LONG, "context": LONG}]},
    },
    "Rerank": {
        "no-query": {"query": ""},
        "blank-query": {"query": "  "},
        "empty-document": {"documents": ["a", ""]},
        "top_n=0": {"options": {"top_n": 0}},
        "unknown-function": {"options": {"score_function": 5}},
        "unknown-query-prompt": {
            "model": "embedder",
            "options": {"query_prompt_name": "nobody"},
        },
        "unknown-document-prompt": {
            "model": "embedder",
            "options": {"document_prompt_name": "nobody"},
        },
        "long-query-of-embedder": {"model": "embedder", "query": LONG},
        "long-query": {"query": LONG, "length": {"long_input": WINDOWS}},
        "too-many": {"documents": ["a"] * NUM_TEXTS},
    },
    "Tokenize": {},
}
LENGTHS: dict[str, Fields] = {
    "unknown-length": {"long_input": 5},
    "max_tokens=0": {"max_tokens": 0},
    "max_tokens=49": {"max_tokens": 49},
    "stride=-1": {"stride": -1},
    "stride=49": {"stride": 49},
    "too-short": {"max_tokens": 5},
    "no-room": {"max_tokens": 2, "long_input": 2},
    "no-room-for-windows": {"max_tokens": 3, "long_input": WINDOWS, "stride": 30},
}


def calls() -> Iterator[Call]:
    """All calls of this module."""
    for method, (model, fields) in GOOD.items():
        repeated = {"Answer": "questions", "Rerank": "documents"}.get(method, "inputs")
        large = "a" * (MEBIBYTE + 1)
        text: object = {"question": large, "context": "a"} if method == "Answer" else large
        others: dict[str, Fields] = {
            "nothing": {repeated: []},
            "too-many-bytes": {repeated: [text]},
            "unknown-model": {"model": "nobody"},
            "unknown-version": {"version": "9"},
            "no-model": {"model": ""},
            "refused-model": {"model": "refused"},
            **BAD[method],
        }
        if method not in ("Tokenize", "Answer"):
            others["empty"] = {repeated: ["a", ""]}
        if method != "Tokenize":
            others["decoder"] = {"model": "tiny-decoder"}
            others["other-encoder"] = {"model": "tagger" if model == "sorter" else "sorter"}
            others |= {name: {"length": length} for name, length in LENGTHS.items()}
        if method in ("Tag", "Answer"):  # these split long texts into windows
            del others["too-short"]
        for name, bad in others.items():
            request = {"model": model, **fields, **bad}
            yield call(f"refused/{method}/{name}", method, request)
    yield call("refused/GetModel/unknown-model", "GetModel", {"model": "nobody"})
    unknown = {"model": "dates", "version": "3"}
    yield call("refused/GetModel/unknown-version", "GetModel", unknown)
    first: Fields = {"id": 1, "model": "embedder", "inputs": [ANNA]}
    second = {"id": 2, "inputs": [""]}
    yield call("refused/EmbedStream/the-second", "EmbedStream", first, second)
    yield from _no_calls()


def _no_calls() -> Iterator[Call]:
    """Malformed messages and unknown methods."""
    for method in ("Generate", "GenerateStream", "Embed", "EmbedStream"):
        name = f"refused/{method}/not-a-message"
        yield Call(name, "open", f"{INFERENCE}/{method}", (b"\xff\xff\xff",))
    yield Call("refused/unknown-method", "open", f"{INFERENCE}/Nothing", (b"",))
    yield Call("refused/unknown-service", "open", "/triune.v1.Nobody/Generate", (b"",))
    # Unknown fields are ignored.
    known = call("", "Tokenize", {"model": "tiny-decoder", "inputs": ["7"]})
    unknown_field = b"\xca\x3e\x03new"
    data = known.requests[0] + unknown_field
    yield Call("Tokenize/field-of-a-later-version", "open", known.path, (data,))
    for service in ("", "triune.v1.InferenceService", "nobody"):
        data = bytes([0x0A, len(service)]) + service.encode() if service else b""
        yield Call(f"Health/{service or 'all'}", "open", "/grpc.health.v1.Health/Check", (data,))
