"""The most expensive requests of every call: at the limits, and far beyond them."""

import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from protos.triune.v1 import inference_pb2 as pb

DECODER, TRANSLATOR = "tiny-decoder", "dates"
LETTERS = string.ascii_letters


@dataclass(frozen=True, slots=True, eq=False)
class CostlyRequest:
    """One request. ``name`` says what is costly about it."""

    name: str
    method: str
    message: Message


def _windows() -> Iterator[CostlyRequest]:
    """Texts that split into hundreds of thousands of windows, or into as many as are accepted."""
    windows = pb.LONG_INPUT_WINDOWS
    for name, text, options in (
        ("one token more in each window", "a " * 250_000, {"max_tokens": 4, "stride": 1}),
        ("many windows", "a " * 4_000, {"max_tokens": 4, "stride": 1}),
        ("a long text", "word " * 100_000, {}),
    ):
        length = pb.LengthOptions(long_input=windows, **options)
        for method, model in (("Embed", "embedder"), ("Tag", "tagger")):
            kind: Any = getattr(pb, f"{method}Request")
            yield CostlyRequest(name, method, kind(model=model, inputs=[text], length=length))
        question = pb.Question(question="who", context=text)
        yield CostlyRequest(
            name, "Answer", pb.AnswerRequest(model="answerer", questions=[question], length=length)
        )
        yield CostlyRequest(
            name,
            "Rerank",
            pb.RerankRequest(model="judge", query="who", documents=[text], length=length),
        )


def _texts() -> Iterator[CostlyRequest]:
    """Long texts, many texts, and texts that are repeated for every input."""
    half = "a " * 250_000
    yield CostlyRequest(
        "7 texts of 500 kB", "Tokenize", pb.TokenizeRequest(model="tagger", inputs=[half] * 7)
    )
    yield CostlyRequest(
        "one text of 500 kB",
        "Tokenize",
        pb.TokenizeRequest(model="tagger", inputs=["a " * 250_000]),
    )
    yield CostlyRequest(
        "texts of 60 kB", "Tokenize", pb.TokenizeRequest(model="tagger", inputs=["a " * 30_000] * 8)
    )
    yield CostlyRequest(
        "millions of texts",
        "Tokenize",
        pb.TokenizeRequest(model="tagger", inputs=["a"] * 1_300_000),
    )
    yield CostlyRequest(
        "a prompt of 4 kB for each text",
        "Embed",
        pb.EmbedRequest(
            model="embedder",
            inputs=["a"] * 3000,
            options=pb.EmbedOptions(prompt="a " * 2000),
            length=pb.LengthOptions(long_input=pb.LONG_INPUT_TRUNCATE_RIGHT),
        ),
    )
    yield CostlyRequest(
        "a long prompt for each text",
        "Embed",
        pb.EmbedRequest(
            model="embedder", inputs=["a"] * 8000, options=pb.EmbedOptions(prompt=half)
        ),
    )
    yield CostlyRequest(
        "a long query for each document",
        "Rerank",
        pb.RerankRequest(
            model="judge",
            query=half,
            documents=["a"] * 8000,
            length=pb.LengthOptions(long_input=pb.LONG_INPUT_TRUNCATE_RIGHT),
        ),
    )
    yield CostlyRequest(
        "a weight for 1,024 tokens of each text",
        "Embed",
        pb.EmbedRequest(model="splade", inputs=["a"] * 2700),
    )
    yield CostlyRequest(
        "a vector for each token of each text",
        "Rerank",
        pb.RerankRequest(model="colbert", query="a " * 8, documents=["a b c " * 6] * 4095),
    )
    yield CostlyRequest(
        "many short texts", "Embed", pb.EmbedRequest(model="embedder", inputs=["a b c"] * 4096)
    )
    yield CostlyRequest(
        "many pairs",
        "Classify",
        pb.ClassifyRequest(model="judge", pairs=[pb.TextPair(text="a", text_pair="b")] * 4096),
    )
    yield CostlyRequest(
        "long targets",
        "FillMask",
        pb.FillMaskRequest(
            model="filler",
            inputs=["a [MASK]"],
            options=pb.FillMaskOptions(targets=[half] * 7),
        ),
    )
    yield CostlyRequest(
        "many masks",
        "FillMask",
        pb.FillMaskRequest(
            model="filler",
            inputs=["[MASK] " * 30] * 256,
            options=pb.FillMaskOptions(top_k=30_000),
        ),
    )
    pair = pb.ScoreInput(context=half, target="a")
    yield CostlyRequest("long texts", "Score", pb.ScoreRequest(model=DECODER, inputs=[pair] * 7))


def _generation() -> Iterator[CostlyRequest]:
    """Options of Generate and Translate."""
    long = pb.StoppingOptions(max_new_tokens=200, ignore_eos=True)
    text = "1," * 1_900_000
    for name, decoding in (
        ("bad words of 4 MB", pb.DecodingOptions(bad_words=[text])),
        ("many bad words", pb.DecodingOptions(bad_words=[f"1{i}" for i in range(1024)])),
        ("a target prefix of 4 MB", pb.DecodingOptions(target_prefix=[text])),
        ("long n-grams", pb.DecodingOptions(no_repeat_ngram_size=100)),
        ("many hypotheses", pb.DecodingOptions(beam_size=8, num_hypotheses=8)),
    ):
        yield CostlyRequest(
            name,
            "Generate",
            pb.GenerateRequest(model=DECODER, inputs=["1,"], decoding=decoding, stopping=long),
        )
    stops = ["1" * 255 + letter for letter in LETTERS[:16]]
    yield CostlyRequest(
        "stop strings",
        "Generate",
        pb.GenerateRequest(
            model=DECODER,
            inputs=["1,"],
            stopping=pb.StoppingOptions(max_new_tokens=200, ignore_eos=True, stop_strings=stops),
        ),
    )
    yield CostlyRequest(
        "log-probabilities",
        "Generate",
        pb.GenerateRequest(
            model=DECODER,
            inputs=["1," * 60] * 8,
            stopping=pb.StoppingOptions(max_new_tokens=100, ignore_eos=True),
            response=pb.ResponseOptions(logprobs=True, top_logprobs=98, prompt_logprobs=True),
        ),
    )
    yield CostlyRequest(
        "millions of token ids",
        "Generate",
        pb.GenerateRequest(model=DECODER, token_inputs=[pb.TokenIds(ids=[5] * 3_900_000)]),
    )
    yield CostlyRequest(
        "millions of messages",
        "Generate",
        pb.GenerateRequest(model=DECODER, messages=[pb.ChatMessage()] * 1_900_000),
    )
    yield CostlyRequest(
        "a biased vocabulary",
        "Generate",
        pb.GenerateRequest(
            model=DECODER,
            inputs=["1,"],
            sampling=pb.SamplingOptions(logit_bias=dict.fromkeys(range(400_000), 1.0)),
        ),
    )
    lark = "start: " + " ".join(f"a{i}?" for i in range(800)) + "\n"
    lark += "\n".join(f'a{i}: "{i}"' for i in range(800))
    for name, grammar in (
        ("a grammar of many rules", pb.Grammar(lark=lark)),
        ("a regular expression", pb.Grammar(regex="([0-9]{1,50},){1,50}")),
        ("many choices", pb.Grammar(choices=pb.Choices(values=[f"{i}," for i in range(8000)]))),
    ):
        yield CostlyRequest(
            name,
            "Generate",
            pb.GenerateRequest(
                model=DECODER,
                inputs=["1,"],
                decoding=pb.DecodingOptions(grammar=grammar),
                stopping=pb.StoppingOptions(max_new_tokens=100),
            ),
        )
    yield CostlyRequest(
        "a long source",
        "Translate",
        pb.TranslateRequest(model=TRANSLATOR, inputs=["3 March 2021 " * 40_000] * 7),
    )


def costly_requests() -> tuple[CostlyRequest, ...]:
    """All of them."""
    return (*_windows(), *_texts(), *_generation())
