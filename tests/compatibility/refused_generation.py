"""Rejected calls to Generate, Translate and Score, each for one reason."""

import math
from collections.abc import Iterator

from tests.compatibility.call_builder import Fields, call
from tests.compatibility.generation_calls import DATE, DECODER, TRANSLATOR
from tests.compatibility.wire import Call

MEBIBYTE = 1 << 20
VOCABULARY_SIZE = 99
# Values outside their limits, and non-finite values.
NUMBERS: dict[str, tuple[float, ...]] = {
    "sampling.temperature": (-0.1, 100.5, math.nan, math.inf, -math.inf),
    "sampling.top_k": (-1,),
    "sampling.top_p": (0.0, -0.5, 1.5, math.nan),
    "sampling.min_p": (-0.1, 1.1, math.nan),
    "sampling.typical_p": (0.0, 2.0, math.nan),
    "sampling.repetition_penalty": (0.0, 101.0, math.nan, math.inf),
    "sampling.presence_penalty": (-2.5, 2.5, math.nan),
    "sampling.frequency_penalty": (-3.0, 3.0, math.nan),
    "decoding.beam_size": (0, -1, 65),
    "decoding.length_penalty": (-11.0, 11.0, math.nan, math.inf),
    "decoding.num_hypotheses": (0, -2, 65),
    "decoding.no_repeat_ngram_size": (-1, 1025),
    "stopping.max_new_tokens": (0, -5),
    "stopping.min_new_tokens": (-1,),
    "stopping.max_seconds": (0.0, -1.0, 1e6, math.nan, math.inf),
    "response.top_logprobs": (-1, 101),
}
SAMPLING: dict[str, Fields] = {
    "bias-of-an-unknown-token": {"logit_bias": {VOCABULARY_SIZE: 1.0}},
    "bias-of-a-negative-token": {"logit_bias": {-1: 1.0}},
    "bias-too-large": {"logit_bias": {5: 100.5}},
    "bias-too-small": {"logit_bias": {5: -101.0}},
    "bias-nan": {"logit_bias": {6: math.nan}},
    "bias-infinite": {"logit_bias": {6: math.inf}},
    "too-many-biases": {"logit_bias": dict.fromkeys(range(1025), 0.5)},
}
DECODING: dict[str, Fields] = {
    "unknown-early-stopping": {"early_stopping": 9},
    "beams-and-alternatives": {"beam_size": 2, "alternatives": True},
    "more-hypotheses-than-beams": {"beam_size": 2, "num_hypotheses": 3},
    "several-greedy-texts": {"num_hypotheses": 2},
    "more-beams-than-slots": {"beam_size": 9},
    "more-alternatives-than-slots": {"num_hypotheses": 9, "alternatives": True},
    "prefixes-for-others": {"target_prefix": ["1", "2", "3"]},
    "too-long-prefix": {"target_prefix": ["1" * 130]},
    "blank-bad-word": {"bad_words": ["a", " "]},
    "too-many-bad-words": {"bad_words": ["a"] * 1025},
    "schema-not-json": {"grammar": {"json_schema": "{"}},
    "schema-not-an-object": {"grammar": {"json_schema": "[1]"}},
    "bad-schema": {"grammar": {"json_schema": '{"type": "nothing"}'}},
    "bad-regex": {"grammar": {"regex": "("}},
    "bad-lark": {"grammar": {"lark": "start: nobody"}},
    "lark-in-json": {"grammar": {"lark": '{"grammars": []}'}},
    "empty-lark": {"grammar": {"lark": ""}},
    "no-choices": {"grammar": {"choices": {}}},
    "empty-choice": {"grammar": {"choices": {"values": ["a", ""]}}},
    "too-large-grammar": {"grammar": {"regex": "a" * (1 << 17)}},
    "unwritable-choice": {"grammar": {"choices": {"values": ["ü"]}}},
}
STOPPING: dict[str, Fields] = {
    "least-above-most": {"min_new_tokens": 5, "max_new_tokens": 4},
    "unknown-stop-token": {"stop_token_ids": [5, VOCABULARY_SIZE]},
    "negative-stop-token": {"stop_token_ids": [-1]},
    "too-many-stop-tokens": {"stop_token_ids": [5] * 1025},
    "empty-stop-string": {"stop_strings": ["a", ""]},
    "too-long-stop-string": {"stop_strings": ["a" * 257]},
    "too-many-stop-strings": {"stop_strings": ["a"] * 17},
}
RESPONSE: dict[str, Fields] = {
    "top-without-logprobs": {"top_logprobs": 2},
    "unknown-attention-kind": {"attention": {"kind": 7}},
    "unknown-layer": {"attention": {"layers": [0, 2]}},
    "negative-layer": {"attention": {"layers": [-1]}},
    "unknown-head": {"attention": {"heads": [1, 4]}},
    "too-many-weights": {"attention": {"layers": [0] * 2000}},
}
WHOLE: dict[str, Fields] = {
    "sampled-beams": {"sampling": {"temperature": 1.0}, "decoding": {"beam_size": 2}},
    "beams-and-top-logprobs": {
        "decoding": {"beam_size": 2},
        "response": {"logprobs": True, "top_logprobs": 1},
    },
    "grammar-and-ignore-eos": {
        "decoding": {"grammar": {"regex": "a"}},
        "stopping": {"ignore_eos": True},
    },
    "priority-too-high": {"priority": 101},
    "priority-too-low": {"priority": -101},
    "no-inputs": {"inputs": []},
    "empty-input": {"inputs": ["1", ""]},
    "blank-input": {"inputs": [" \n\t"]},
    "too-many-bytes": {"inputs": ["1", "1" * (MEBIBYTE + 1)]},
    "too-long-input": {"inputs": ["1", "1" * 129]},
    "too-many-inputs": {"inputs": ["1"] * 49},
    "too-many-beams-of-inputs": {"inputs": ["1"] * 7, "decoding": {"beam_size": 8}},
    "too-many-tokens": {"inputs": ["1" * 20] * 48, "stopping": {"max_new_tokens": 100}},
    "unknown-model": {"model": "nobody"},
    "unknown-version": {"version": "7"},
    "refused-model": {"model": "refused"},
    "an-encoder": {"model": "tiny-classifier"},
    "wrong-task-of-it": {"model": "embedder"},
}


def calls() -> Iterator[Call]:
    """All calls of this module."""
    options = [*_numbers(), *_named("sampling", SAMPLING), *_named("decoding", DECODING)]
    options += [*_named("stopping", STOPPING), *_named("response", RESPONSE), *WHOLE.items()]
    kinds = (("Generate", DECODER, "7,"), ("TranslateStream", TRANSLATOR, DATE))
    for method, model, text in kinds:
        for name, fields in options:
            request = {"model": model, "inputs": [text], **fields}
            if (method, name) == ("TranslateStream", "too-long-input"):
                request["sentence_split"] = 2  # off: a text without letters is not refused
            yield call(f"refused/{method}/{name}", method, request)
        yield call(
            f"refused/{method}/no-deadline-to-stop-before",
            method,
            {"model": model, "inputs": [text], "stopping": {"stop_before_deadline": True}},
            has_deadline=False,
        )
    yield from _of_one_call()


def _numbers() -> Iterator[tuple[str, Fields]]:
    for path, values in NUMBERS.items():
        group, _, field = path.partition(".")
        for value in values:
            yield f"{path}={value}", {group: {field: value}}


def _named(group: str, named: dict[str, Fields]) -> Iterator[tuple[str, Fields]]:
    for name, fields in named.items():
        yield f"{group}/{name}", {group: fields}


def _of_one_call() -> Iterator[Call]:
    user = {"role": "user", "content": "7,"}
    seven, pair = {"inputs": ["7,"]}, {"context": "7,", "target": "8"}
    long = {"context": "1" * 60, "target": "1" * 60}
    source, average = {"context": DATE, "target": "2021"}, {"average": True}
    cross = {"response": {"attention": {**average, "kind": 1}}}
    aligned = {"response": {"attention": {**average, "alignments": True}}}
    cases: list[tuple[str, str, str, Fields]] = [
        ("nothing", "Generate", DECODER, {}),
        ("two-prompts", "Generate", DECODER, {**seven, "token_inputs": [{"ids": [5]}]}),
        ("all-prompts", "Generate", "chat", {**seven, "messages": [user]}),
        ("no-template", "Generate", DECODER, {"messages": [user]}),
        ("unknown-role", "Generate", "chat", {"messages": [user, {"role": "x", "content": "a"}]}),
        ("empty-content", "Generate", "chat", {"messages": [{"role": "user"}, {"role": "user"}]}),
        (
            "refused-by-template",
            "GenerateStream",
            "chat",
            {"messages": [user, {"role": "system", "content": "9"}]},
        ),
        (
            "messages-too-large",
            "Generate",
            "chat",
            {"messages": [user, {"role": "user", "content": "1" * MEBIBYTE}]},
        ),
        (
            "messages-too-long",
            "Generate",
            "chat",
            {"messages": [{"role": "user", "content": "1" * 130}]},
        ),
        ("echo-of-messages", "Generate", "chat", {"messages": [user], "response": {"echo": True}}),
        ("echo", "Translate", TRANSLATOR, {**seven, "response": {"echo": True}}),
        ("echo", "Generate", "rewriter", {**seven, "response": {"echo": True}}),
        ("no-ids", "Generate", DECODER, {"token_inputs": [{"ids": [5]}, {}]}),
        ("unknown-id", "Generate", DECODER, {"token_inputs": [{"ids": [5]}, {"ids": [5, 99]}]}),
        ("negative-id", "GenerateStream", DECODER, {"token_inputs": [{"ids": [-1]}]}),
        ("too-many-ids", "Generate", DECODER, {"token_inputs": [{"ids": [5] * 128}]}),
        (
            "prefix-too-long-with-it",
            "Generate",
            DECODER,
            {
                "inputs": ["1" * 100],
                "decoding": {"target_prefix": ["1" * 50]},
            },
        ),
        ("cross-attention", "Generate", DECODER, {**seven, **cross}),
        ("alignments", "Generate", DECODER, {**seven, **aligned}),
        (
            "alignments-of-self-attention",
            "Translate",
            TRANSLATOR,
            {
                "inputs": [DATE],
                "response": {"attention": {"kind": 2, "alignments": True}},
            },
        ),
        ("a-decoder", "Translate", DECODER, seven),
        ("not-a-translator", "Translate", "rewriter", seven),
        ("not-a-generator", "Generate", TRANSLATOR, seven),
        ("target-missing", "Translate", "polyglot", seven),
        ("unknown-target", "Translate", "polyglot", {**seven, "target_language": "pt"}),
        (
            "unknown-source",
            "TranslateStream",
            "polyglot",
            {
                **seven,
                "target_language": "iso",
                "source_language": "pt",
            },
        ),
        ("target-of-one", "Translate", TRANSLATOR, {**seven, "target_language": "pt"}),
        ("source-of-one", "Translate", TRANSLATOR, {**seven, "source_language": "pt"}),
        ("no-attention", "Translate", "plain-dates", {**seven, "response": {"attention": {}}}),
        ("no-start", "Translate", "startless", seven),
        ("encoder", "Score", "embedder", {"inputs": [pair]}),
        ("nothing", "Score", DECODER, {}),
        ("no-target", "Score", DECODER, {"inputs": [pair, {"context": "7,"}]}),
        ("languages", "Score", DECODER, {"inputs": [pair], "target_language": "pt"}),
        ("source-language", "Score", DECODER, {"inputs": [pair], "source_language": "pt"}),
        ("unknown-target", "Score", "polyglot", {"inputs": [source], "target_language": "pt"}),
        ("target-missing", "Score", "polyglot", {"inputs": [source]}),
        ("no-source", "Score", TRANSLATOR, {"inputs": [source, {"target": "1"}]}),
        ("too-long", "Score", DECODER, {"inputs": [pair, {"target": "1" * 129}]}),
        ("too-large", "Score", DECODER, {"inputs": [{"target": "1" * (MEBIBYTE + 1)}]}),
        ("too-many-tokens", "Score", DECODER, {"inputs": [long] * 48}),
        ("too-many-inputs", "Score", DECODER, {"inputs": [pair] * 49}),
        ("top-logprobs", "Score", DECODER, {"inputs": [pair], "response": {"top_logprobs": 101}}),
        ("priority", "Score", DECODER, {"inputs": [pair], "priority": 200}),
        ("unknown-model", "Score", "nobody", {"inputs": [pair]}),
    ]
    for name, method, model, fields in cases:
        yield call(f"refused/{method}/{model}/{name}", method, {"model": model, **fields})
