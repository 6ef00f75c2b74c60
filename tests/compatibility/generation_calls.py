"""Valid calls to Generate, Translate, their streams and Score that cover every option."""

from collections.abc import Iterator

from tests.compatibility.call_builder import Fields, call
from tests.compatibility.wire import Call

DECODER, TRANSLATOR = "tiny-decoder", "dates"
DATE = "the 3rd of March, 2021"

SAMPLED: Fields = {"temperature": 1.0, "seed": 7}
SEEDED: Fields = {"temperature": 1.5, "seed": 11}
SCHEMA = '{"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}'
LARK = 'start: NUMBER "-" NUMBER\nNUMBER: /[0-9]{2}/'

# Options of Generate and Translate.
OPTIONS: dict[str, Fields] = {
    "greedy": {},
    "temperature-0": {"sampling": {"temperature": 0.0}},
    "tiny-temperature": {"sampling": {"temperature": 1e-6}},
    "sampled": {"sampling": SAMPLED},
    "seed-0": {"sampling": {"temperature": 2.0, "seed": 0}},
    "largest-seed": {"sampling": {"temperature": 2.0, "seed": 2**64 - 1}},
    "top-k": {"sampling": {**SEEDED, "top_k": 3}},
    "top-k-0": {"sampling": {**SEEDED, "top_k": 0}},
    "top-p": {"sampling": {**SEEDED, "top_p": 0.8}},
    "min-p": {"sampling": {**SEEDED, "min_p": 0.05}},
    "typical-p": {"sampling": {**SEEDED, "typical_p": 0.7}},
    "all-sampling": {
        "sampling": {**SEEDED, "top_k": 20, "top_p": 0.95, "min_p": 0.001, "typical_p": 0.99}
    },
    "repetition-penalty": {"sampling": {"repetition_penalty": 1.3}},
    "presence-penalty": {"sampling": {"presence_penalty": 1.5}},
    "frequency-penalty": {"sampling": {"frequency_penalty": -1.0}},
    "logit-bias": {"sampling": {"logit_bias": {20: 5.0, 21: -100.0}}},
    "no-repeat-ngram": {"decoding": {"no_repeat_ngram_size": 2}},
    "bad-words": {"decoding": {"bad_words": ["8", "03"]}},
    "samples": {"sampling": SAMPLED, "decoding": {"num_hypotheses": 3}},
    "samples-of-two": {
        "inputs": 2,
        "sampling": SEEDED,
        "decoding": {"num_hypotheses": 2},
        "response": {"token_ids": True, "logprobs": True},
    },
    "alternatives": {"decoding": {"num_hypotheses": 3, "alternatives": True}},
    "one-alternative": {"decoding": {"alternatives": True}},
    "beams": {"decoding": {"beam_size": 4}},
    "beam-hypotheses": {
        "decoding": {"beam_size": 4, "num_hypotheses": 3},
        "response": {"token_ids": True, "logprobs": True},
    },
    "length-penalty": {"decoding": {"beam_size": 3, "num_hypotheses": 2, "length_penalty": 0.0}},
    "early-stopping-heuristic": {
        "decoding": {"beam_size": 3, "num_hypotheses": 3, "early_stopping": 1}
    },
    "early-stopping-first": {
        "decoding": {"beam_size": 3, "num_hypotheses": 3, "early_stopping": 2}
    },
    "early-stopping-never": {
        "decoding": {"beam_size": 3, "num_hypotheses": 3, "early_stopping": 3}
    },
    "beams-with-penalties": {
        "sampling": {"presence_penalty": 0.5, "logit_bias": {22: 1.0}},
        "decoding": {"beam_size": 2, "num_hypotheses": 2},
    },
    "beams-of-two": {"inputs": 2, "decoding": {"beam_size": 2, "num_hypotheses": 2}},
    "target-prefix": {"decoding": {"target_prefix": ["20"]}, "response": {"token_ids": True}},
    "prefix-for-each": {"inputs": 2, "decoding": {"target_prefix": ["20", "19"]}},
    "prefix-for-one-of-two": {"inputs": 2, "decoding": {"target_prefix": ["", "19"]}},
    "prefix-with-beams": {
        "decoding": {"target_prefix": ["20"], "beam_size": 3, "num_hypotheses": 2}
    },
    "prefix-with-alternatives": {
        "decoding": {"target_prefix": ["20"], "alternatives": True, "num_hypotheses": 2}
    },
    "json-schema": {"decoding": {"grammar": {"json_schema": SCHEMA}}},
    "regex": {"decoding": {"grammar": {"regex": "[a-c]{3}-[0-9]+!"}}},
    "lark": {"decoding": {"grammar": {"lark": LARK}}},
    "choices": {"decoding": {"grammar": {"choices": {"values": ["no", "1?", "20"]}}}},
    "regex-sampled": {"sampling": SAMPLED, "decoding": {"grammar": {"regex": "[a-z]{6}"}}},
    "regex-with-beams": {
        "decoding": {"grammar": {"regex": "[a-z]{3}"}, "beam_size": 3, "num_hypotheses": 3}
    },
    "stop-string": {"stopping": {"stop_strings": ["10", "-0"]}, "response": {"token_ids": True}},
    "stop-string-sampled": {
        "sampling": SAMPLED,
        "decoding": {"num_hypotheses": 2},
        "stopping": {"stop_strings": ["1"]},
        "response": {"token_ids": True, "logprobs": True},
    },
    "stop-token": {"stopping": {"stop_token_ids": [20, 21]}, "response": {"token_ids": True}},
    "ignore-eos": {
        "stopping": {"ignore_eos": True, "max_new_tokens": 20},
        "response": {"token_ids": True},
    },
    "max-new-tokens": {"stopping": {"max_new_tokens": 3}},
    "min-new-tokens": {
        "stopping": {"min_new_tokens": 16, "max_new_tokens": 18},
        "response": {"token_ids": True},
    },
    "max-seconds": {"stopping": {"max_seconds": 3600.0}},
    "stop-before-deadline": {"stopping": {"stop_before_deadline": True}},
    "both-times": {"stopping": {"stop_before_deadline": True, "max_seconds": 3600.0}},
    "token-ids": {"response": {"token_ids": True}},
    "logprobs": {"response": {"logprobs": True}},
    "top-logprobs": {"response": {"logprobs": True, "top_logprobs": 2}},
    "top-logprobs-sampled": {
        "sampling": SAMPLED,
        "response": {"logprobs": True, "top_logprobs": 1, "token_ids": True},
    },
    "prompt-logprobs": {"response": {"prompt_logprobs": True}},
    "all-logprobs": {
        "inputs": 2,
        "response": {"logprobs": True, "prompt_logprobs": True, "top_logprobs": 2},
    },
    "attention": {"response": {"attention": {}}, "stopping": {"max_new_tokens": 4}},
    "attention-of-a-head": {
        "response": {"attention": {"layers": [1], "heads": [2, 0]}},
        "stopping": {"max_new_tokens": 4},
    },
    "attention-average": {
        "response": {"attention": {"average": True}},
        "stopping": {"max_new_tokens": 6},
    },
    "attention-average-of-a-layer": {
        "response": {"attention": {"average": True, "layers": [0], "kind": 2}},
        "stopping": {"max_new_tokens": 6},
    },
    "attention-with-prefix": {
        "decoding": {"target_prefix": ["20"]},
        "response": {"attention": {"average": True}, "token_ids": True},
        "stopping": {"max_new_tokens": 4},
    },
    "attention-of-hypotheses": {
        "sampling": SAMPLED,
        "decoding": {"num_hypotheses": 2},
        "response": {"attention": {"average": True}},
        "stopping": {"max_new_tokens": 4},
    },
    "priority": {"priority": 100},
    "low-priority": {"priority": -100},
    "three-inputs": {"inputs": 3},
    "version": {"version": "1"},
}

# Options of encoder-decoders only.
TRANSLATIONS: dict[str, Fields] = {
    "self-attention": {
        "response": {"attention": {"kind": 2, "average": True}},
        "stopping": {"max_new_tokens": 4},
    },
    "cross-attention": {
        "response": {"attention": {"kind": 1, "average": True}},
        "stopping": {"max_new_tokens": 4},
    },
    "alignments": {"response": {"attention": {"average": True, "alignments": True}}},
    "alignments-of-a-head": {
        "response": {"attention": {"layers": [1], "heads": [1], "alignments": True}},
        "stopping": {"max_new_tokens": 5},
    },
    "alignments-with-beams": {
        "decoding": {"beam_size": 2},
        "response": {"attention": {"average": True, "alignments": True}},
    },
}

# Options of decoder-only models.
CONTINUATIONS: dict[str, Fields] = {
    "echo": {"response": {"echo": True}},
    "echo-of-hypotheses": {
        "sampling": SAMPLED,
        "decoding": {"num_hypotheses": 2},
        "response": {"echo": True, "token_ids": True},
    },
    "echo-with-prefix-and-stop": {
        "decoding": {"target_prefix": ["8,"]},
        "response": {"echo": True},
        "stopping": {"stop_strings": ["10"]},
    },
    "echo-before-a-stop-string": {
        "response": {"echo": True},
        "stopping": {"stop_strings": ["7"]},
    },
}


def calls() -> Iterator[Call]:
    """All calls of this module."""
    for name, fields in {**OPTIONS, **CONTINUATIONS}.items():
        yield from _both("Generate", DECODER, ["7,", "98,", "113,"], name, fields)
    for name, fields in {**OPTIONS, **TRANSLATIONS}.items():
        texts = [DATE, "7 May 1999", "20240131"]
        yield from _both("Translate", TRANSLATOR, texts, name, fields)
    yield from _prompts()
    yield from _languages()
    yield from _scores()


def _both(method: str, model: str, texts: list[str], name: str, fields: Fields) -> Iterator[Call]:
    """The unary call and its streaming variant."""
    num_inputs = fields.get("inputs", 1)
    request = {"model": model, **fields, "inputs": texts[:num_inputs]}
    for suffix in ("", "Stream"):
        yield call(f"{method}{suffix}/{name}", f"{method}{suffix}", request)


def _prompts() -> Iterator[Call]:
    """Other forms of prompts, and other generation models."""
    ids = {"token_inputs": [{"ids": [3, 27, 16]}, {"ids": [3, 29, 28, 16]}]}
    turns = [{"role": "user", "content": "7"}, {"role": "assistant", "content": ","}]
    system = [{"role": "system", "content": "9"}, {"role": "user", "content": "7,"}]
    echo = {"response": {"echo": True, "token_ids": True}}
    long = {"inputs": ["1," * 60]}
    ended = {"stopping": {"max_seconds": 1e-9}}
    cases: dict[str, tuple[str, Fields]] = {
        "token-inputs": (DECODER, ids),
        "token-inputs-echoed": (DECODER, {**ids, **echo}),
        "token-inputs-to-an-encoder-decoder": ("rewriter", {"token_inputs": [{"ids": [54, 5]}]}),
        "messages": ("chat", {"messages": turns}),
        "system-message": ("chat", {"messages": system, "response": {"token_ids": True}}),
        "inputs-of-chat": ("chat", {"inputs": ["7,"]}),
        "rewriter": ("rewriter", {"inputs": [DATE], "response": {"logprobs": True}}),
        "rewriter-beams": (
            "rewriter",
            {"inputs": [DATE], "decoding": {"beam_size": 2, "num_hypotheses": 2}},
        ),
        "rewriter-prefix": ("rewriter", {"inputs": [DATE], "decoding": {"target_prefix": ["20"]}}),
        "int8": ("tiny-decoder-int8", {"inputs": ["7,", "98,"]}),
        "long-prompt": (DECODER, {**long, "stopping": {"max_new_tokens": 5}}),
        "filled-to-the-end": (DECODER, {**long, "stopping": {"ignore_eos": True}}),
        "unknown-characters": (DECODER, {"inputs": ["ü7,"], "response": {"echo": True}}),
        "time-is-over": (DECODER, {"inputs": ["7,"], **ended}),
    }
    for name, (model, fields) in cases.items():
        for suffix in ("", "Stream"):
            method = f"Generate{suffix}"
            yield call(f"{method}/{name}", method, {"model": model, **fields})


def _languages() -> Iterator[Call]:
    cases: dict[str, Fields] = {
        "target": {"target_language": "iso"},
        "other-target": {"target_language": "other", "response": {"token_ids": True}},
        "source-and-target": {"source_language": "written", "target_language": "iso"},
    }
    for name, fields in cases.items():
        for suffix in ("", "Stream"):
            method = f"Translate{suffix}"
            request = {"model": "polyglot", "inputs": [f"~{DATE}"], **fields}
            yield call(f"{method}/{name}", method, request)
    own = {"source_language": "written", "target_language": "iso"}
    yield call(
        "Translate/languages-of-a-bilingual-model",
        "Translate",
        {"model": "plain-dates", "inputs": [DATE], **own},
    )
    pairs = [{"context": f"~{DATE}", "target": "2021-03-03"}]
    request = {"model": "polyglot", "inputs": pairs, "target_language": "iso"}
    yield call("Score/languages", "Score", {**request, "source_language": "written"})


def _scores() -> Iterator[Call]:
    counted = [{"context": "7,", "target": "8,9,10,11."}, {"context": "7,", "target": "9"}]
    cases: dict[str, tuple[str, Fields]] = {
        "decoder": (DECODER, {"inputs": counted}),
        "without-context": (DECODER, {"inputs": [{"target": "7,8,"}]}),
        "logprobs": (DECODER, {"inputs": counted, "response": {"logprobs": True}}),
        "top-logprobs": (
            DECODER,
            {"inputs": counted, "response": {"logprobs": True, "top_logprobs": 2}},
        ),
        "priority": (DECODER, {"inputs": counted, "priority": 5}),
        "encoder-decoder": (
            TRANSLATOR,
            {
                "inputs": [{"context": DATE, "target": "2021-03-03"}],
                "response": {"logprobs": True},
                "version": "1",
            },
        ),
        "rewriter": ("rewriter", {"inputs": [{"context": DATE, "target": "2021"}]}),
    }
    for name, (model, fields) in cases.items():
        yield call(f"Score/{name}", "Score", {"model": model, **fields})
