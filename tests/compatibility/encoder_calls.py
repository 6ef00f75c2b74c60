"""Valid calls to encoders, Tokenize and ModelService that cover every option."""

from collections.abc import Iterator

from tests.compatibility.call_builder import Fields, call
from tests.compatibility.wire import Call

ANNA = "Anna lives in Paris, Peter works at the bank of London."
LONG = "anna lives in paris and peter works in berlin . " * 9
DOCUMENTS = ["a red house", "the river bank of London", "Anna works in Berlin"]
QUESTION = {"question": "Where is Anna?", "context": ANNA}
LONG_QUESTION = {"question": "Where is Anna?", "context": LONG}
ERROR, CUT_RIGHT, CUT_LEFT, WINDOWS = 1, 2, 3, 4
FLOAT, FLOAT32_BYTES, FLOAT16_BYTES = 1, 2, 3

EMBED: dict[str, Fields] = {
    "one": {},
    "several": {"inputs": [ANNA, "book", "a good film"]},
    "float": {"options": {"encoding_format": FLOAT}},
    "float32-bytes": {"options": {"encoding_format": FLOAT32_BYTES}},
    "float16-bytes": {"options": {"encoding_format": FLOAT16_BYTES}},
    "dimensions": {"options": {"dimensions": 8}},
    "all-dimensions": {"options": {"dimensions": 32}},
    "dimensions-normalized": {"options": {"dimensions": 16, "normalize": True}},
    "normalized": {"options": {"normalize": True}},
    "not-normalized": {"options": {"normalize": False}},
    "prompt-name": {"options": {"prompt_name": "query"}},
    "empty-prompt-name": {"options": {"prompt_name": "passage"}},
    "prompt": {"options": {"prompt": "book: "}},
    "empty-prompt": {"options": {"prompt": ""}},
    "token-embeddings": {"options": {"token_embeddings": True, "prompt_name": "query"}},
    "token-embeddings-float16": {
        "options": {"token_embeddings": True, "encoding_format": FLOAT16_BYTES}
    },
    "token-embeddings-cut-left": {
        "inputs": [LONG],
        "options": {"token_embeddings": True},
        "length": {"long_input": CUT_LEFT, "max_tokens": 8},
    },
    "version": {"version": "1"},
}
LENGTHS: dict[str, Fields] = {
    "max-tokens": {"max_tokens": 47},
    "cut-right": {"long_input": CUT_RIGHT},
    "cut-left": {"long_input": CUT_LEFT},
    "cut-right-to": {"long_input": CUT_RIGHT, "max_tokens": 12},
    "cut-left-to": {"long_input": CUT_LEFT, "max_tokens": 12},
    "error": {"long_input": ERROR},
}
WINDOW_LENGTHS: dict[str, Fields] = {
    "windows": {"long_input": WINDOWS},
    "windows-of": {"long_input": WINDOWS, "max_tokens": 16},
    "windows-with-stride": {"long_input": WINDOWS, "max_tokens": 20, "stride": 3},
    "windows-without-stride": {"long_input": WINDOWS, "max_tokens": 20, "stride": 0},
}
CLASSIFY: dict[str, tuple[str, Fields]] = {
    "newest-version": ("tiny-classifier", {"inputs": ["1a2b3", "abc1"]}),
    "version": ("tiny-classifier", {"inputs": ["1a2b3"], "version": "1"}),
    "top-k": ("sorter", {"inputs": [ANNA], "options": {"top_k": 2}}),
    "large-top-k": ("sorter", {"inputs": [ANNA], "options": {"top_k": 1000}}),
    "model-s-own-function": ("sorter", {"inputs": [ANNA, "book"]}),
    "softmax": ("sorter", {"inputs": [ANNA], "options": {"score_function": 1}}),
    "sigmoid": ("sorter", {"inputs": [ANNA], "options": {"score_function": 2}}),
    "identity": ("sorter", {"inputs": [ANNA], "options": {"score_function": 3}}),
    "pairs": ("sorter", {"pairs": [{"text": ANNA, "text_pair": "book"}]}),
    "pairs-cut": (
        "sorter",
        {
            "pairs": [{"text": LONG, "text_pair": ANNA}, {"text": "a", "text_pair": LONG}],
            "length": {"long_input": CUT_RIGHT},
        },
    ),
    "pairs-cut-left": (
        "sorter",
        {"pairs": [{"text": LONG, "text_pair": LONG}], "length": {"long_input": CUT_LEFT}},
    ),
    "judge": ("judge", {"inputs": ["book"]}),
}
TAG: dict[str, Fields] = {
    **{f"aggregation-{number}": {"options": {"aggregation": number}} for number in range(6)},
    "long": {"inputs": [LONG]},
    "several": {"inputs": [ANNA, "Londonbank works", "river"]},
    "ignored-labels": {"options": {"ignored_labels": ["B-PER", "I-LOC"]}},
    "nothing-ignored": {"options": {"ignored_labels": ["none"], "aggregation": 1}},
    "min-score": {"options": {"min_score": 0.4, "aggregation": 1}},
}
MASKED = "anna lives in [MASK] ."
FILL_MASK: dict[str, Fields] = {
    "one": {},
    "two-masks": {"inputs": ["[MASK] lives in [MASK]"]},
    "several": {"inputs": [MASKED, "a [MASK] book"]},
    "top-k": {"options": {"top_k": 2}},
    "targets": {"options": {"targets": ["paris", "london", "paris"]}},
    "targets-and-top-k": {"options": {"targets": ["paris", "london"], "top_k": 1}},
}
ANSWER: dict[str, Fields] = {
    "one": {},
    "several": {"questions": [QUESTION, {"question": "Who?", "context": "peter and anna"}]},
    "top-k": {"options": {"top_k": 3}},
    "max-answer-tokens": {"options": {"max_answer_tokens": 1, "top_k": 2}},
    "no-answer": {"options": {"allow_no_answer": True, "top_k": 3}},
    "long": {"questions": [LONG_QUESTION], "options": {"top_k": 2}},
}
RERANK: dict[str, Fields] = {
    "all": {},
    "top-n": {"options": {"top_n": 2}},
    "large-top-n": {"options": {"top_n": 50}},
    "documents": {"options": {"return_documents": True, "top_n": 1}},
}
RERANK_FUNCTIONS: dict[str, Fields] = {
    f"function-{number}": {"options": {"score_function": number}} for number in range(4)
}
RERANK_PROMPTS: dict[str, Fields] = {
    "query-prompt": {"options": {"query_prompt_name": "query"}},
    "document-prompt": {"options": {"document_prompt_name": "query"}},
    "both-prompts": {"options": {"query_prompt_name": "query", "document_prompt_name": "passage"}},
}
TOKENIZE: dict[str, tuple[str, Fields]] = {
    "decoder": ("tiny-decoder", {"inputs": ["7,8", "x"]}),
    "bare": ("tiny-decoder", {"inputs": ["7,8"], "without_special_tokens": True}),
    "encoder": ("embedder", {"inputs": [ANNA, "zebra"]}),
    "encoder-decoder": ("dates", {"inputs": ["May 1999"], "version": "1"}),
    "whole": ("embedder", {"inputs": [ANNA], "without_special_tokens": False}),
}
MODELS = (
    *("dates", "tiny-decoder", "tiny-decoder-int8", "chat", "rewriter", "polyglot"),
    *("tiny-classifier", "tagger", "answerer", "filler", "judge", "sorter", "embedder", "refused"),
    *("unit-embedder", "plain-embedder", "plain-dates", "startless"),
)


def calls() -> Iterator[Call]:
    """All calls of this module."""
    for name, fields in EMBED.items():
        yield call(f"Embed/{name}", "Embed", {"model": "embedder", "inputs": [ANNA], **fields})
    for name, (model, fields) in CLASSIFY.items():
        yield call(f"Classify/{name}", "Classify", {"model": model, **fields})
    for name, fields in TAG.items():
        yield call(f"Tag/{name}", "Tag", {"model": "tagger", "inputs": [ANNA], **fields})
    for name, fields in FILL_MASK.items():
        request = {"model": "filler", "inputs": [MASKED], **fields}
        yield call(f"FillMask/{name}", "FillMask", request)
    for name, fields in ANSWER.items():
        request = {"model": "answerer", "questions": [QUESTION], **fields}
        yield call(f"Answer/{name}", "Answer", request)
    for name, (model, fields) in TOKENIZE.items():
        yield call(f"Tokenize/{name}", "Tokenize", {"model": model, **fields})
    for model in ("unit-embedder", "plain-embedder"):
        yield call(f"Embed/{model}", "Embed", {"model": model, "inputs": [ANNA, "book"]})
    yield from _reranks()
    yield from _lengths()
    yield from _streams()
    yield call("ListModels", "ListModels", {})
    for model in MODELS:
        yield call(f"GetModel/{model}", "GetModel", {"model": model})
    yield call("GetModel/version", "GetModel", {"model": "tiny-classifier", "version": "1"})


def _reranks() -> Iterator[Call]:
    base_fields: Fields = {"query": "who works in london", "documents": DOCUMENTS}
    options = {
        "judge": {**RERANK, **RERANK_FUNCTIONS},
        "embedder": {**RERANK, **RERANK_PROMPTS},
    }
    for model, named in options.items():
        for name, fields in named.items():
            yield call(
                f"Rerank/{model}/{name}", "Rerank", {"model": model, **base_fields, **fields}
            )


def _lengths() -> Iterator[Call]:
    """Too long texts for every method; some are rejected."""
    both: Fields = {"query": "london", "documents": ["book", LONG]}
    cases: dict[str, tuple[str, Fields]] = {
        "Embed": ("embedder", {"inputs": ["book", LONG]}),
        "Classify": ("sorter", {"inputs": [LONG, "book"]}),
        "Tag": ("tagger", {"inputs": [LONG]}),
        "FillMask": ("filler", {"inputs": [f"[MASK] {LONG} [MASK]"]}),
        "Answer": ("answerer", {"questions": [LONG_QUESTION]}),
        "Rerank": ("judge", both),
    }
    for method, (model, fields) in cases.items():
        for name, length in {**LENGTHS, **WINDOW_LENGTHS}.items():
            request = {"model": model, **fields, "length": length}
            yield call(f"{method}/length/{name}", method, request)
    for name, length in {**LENGTHS, **WINDOW_LENGTHS}.items():
        request = {"model": "embedder", **both, "length": length}
        yield call(f"Rerank/length-of-embedder/{name}", "Rerank", request)


def _streams() -> Iterator[Call]:
    """EmbedStream: messages inherit unset fields from earlier ones."""
    first: Fields = {"id": 1, "model": "embedder", "inputs": [ANNA]}
    cases: dict[str, list[Fields]] = {
        "nothing": [],
        "one": [first],
        "several": [first, {"id": 2, "inputs": ["book", "film"]}, {"id": -3, "inputs": ["a"]}],
        "options-stay": [
            {**first, "options": {"dimensions": 8, "prompt_name": "query"}},
            {"id": 2, "inputs": [ANNA]},
            {"id": 3, "inputs": [ANNA], "options": {"encoding_format": FLOAT16_BYTES}},
            {"id": 4, "inputs": [LONG], "length": {"long_input": CUT_LEFT}},
            {"id": 5, "inputs": [LONG]},
        ],
        "windows": [{**first, "inputs": [LONG], "length": WINDOW_LENGTHS["windows-of"]}],
        "model-again": [first, {"id": 2, "model": "embedder", "version": "1", "inputs": ["a"]}],
        "many": [{**first, "id": number, "options": {"dimensions": 8}} for number in range(70)],
        "without-model": [{"id": 1, "inputs": [ANNA]}],
        "without-inputs": [{"id": 1, "model": "embedder"}],
        "wrong-model": [{"id": 1, "model": "dates", "inputs": [ANNA]}],
        "unknown-model": [{"id": 1, "model": "nobody", "inputs": [ANNA]}],
        "bad-option": [{**first, "options": {"dimensions": 7}}],
        "bad-length": [{**first, "inputs": [LONG]}],
    }
    for name, requests in cases.items():
        yield call(f"EmbedStream/{name}", "EmbedStream", *requests)
