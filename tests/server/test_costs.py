"""Costs are counted before the work: bytes, tokens, windows, and the size of the reply."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from client.encoder_types import LongInput, Question
from client.sync import Client
from server.bounds import MAX_PREFIX_BYTES, MAX_TEXTS
from server.engine.decoding.options import LogprobOptions
from server.engine.requests.job import Delivery, GenerationJob
from server.errors import InvalidArgumentError
from server.service.caller import Caller
from server.service.collect import check_reply_size, collect
from server.service.generate import prepare_generate
from server.service.generation_options import DecodingOptions, StoppingOptions
from server.service.generation_request import GenerateRequest
from server.service.text_stream import stream
from server.text.windows import LengthLimit, TooLongError, WindowBudget, tokenize_windows
from server.text.windows import LongInput as ServerLongInput
from tests import heads
from tests.server.clients import connected
from tests.server.encoder_calls import error_of, field_of
from tests.server.in_process_service import service_context

WINDOWS: dict[str, Any] = {"long_input": LongInput.WINDOWS, "stride": 1}
LONG = "a " * 50_000
CALLS: dict[str, tuple[Callable[[Client], object], str, str]] = {
    "windows of Embed": (
        lambda client: client.embed("embedder", ["b", LONG], max_tokens=4, **WINDOWS),
        "inputs[1]",
        "49999 windows",
    ),
    "windows of Tag": (
        lambda client: client.tag("tagger", LONG, max_tokens=4, **WINDOWS),
        "inputs[0]",
        "49999 windows",
    ),
    "windows of Answer": (
        lambda client: client.answer("answerer", [Question("b", LONG)], max_tokens=6, **WINDOWS),
        "questions[0]",
        "windows",
    ),
    "windows of Rerank": (
        lambda client: client.rerank("judge", "b", [LONG], max_tokens=6, **WINDOWS),
        "documents[0]",
        "windows",
    ),
    "a query for each document": (
        lambda client: client.rerank("judge", LONG, ["b"] * 400),
        "documents",
        "characters to tokenize",
    ),
    "a prompt for each text": (
        lambda client: client.embed("embedder", "b", prompt="a" * (MAX_PREFIX_BYTES + 1)),
        "options.prompt",
        "bytes",
    ),
    "texts": (
        lambda client: client.embed("embedder", ["b"] * (MAX_TEXTS + 1)),
        "inputs",
        "at most",
    ),
    "targets": (
        lambda client: client.fill_mask("filler", "[MASK]", targets=["b" * 300]),
        "options.targets[0]",
        "bytes",
    ),
    "masks": (
        lambda client: client.fill_mask("filler", ["[MASK] " * 30] * 80),
        "inputs",
        "logits of masks",
    ),
    "tokens of a reply": (
        lambda client: client.tokenize("tagger", ["a " * 200_000] * 3),
        "inputs",
        "tokens in the reply",
    ),
}


@pytest.fixture(scope="module")
def client(head_bundles: Path) -> Iterator[Client]:
    with connected(head_bundles, "--threads", "1") as client:
        yield client


@pytest.mark.parametrize(("call", "field", "reason"), CALLS.values(), ids=CALLS)
def test_what_costs_too_much_is_rejected_by_its_field(
    client: Client, call: Callable[[Client], object], field: str, reason: str
) -> None:
    error = error_of(call, client)
    assert field_of(error) == field
    assert reason in error.message


def test_large_replies_are_the_same_as_small_ones(client: Client) -> None:
    text = "one two three " * 700
    alone = client.tokenize("tagger", text).outputs[0]
    assert len(alone.token_ids) > 2000
    whole = client.tokenize("tagger", [text, "a", text]).outputs
    assert [whole[0], whole[2]] == [alone, alone]
    assert whole[1] == client.tokenize("tagger", "a").outputs[0]
    short = client.embed("embedder", "a b").outputs[0].values
    many = client.embed("embedder", ["a b"] * 200).outputs
    assert all(output.values == pytest.approx(short, abs=1e-6) for output in many)


@pytest.mark.parametrize(("budget", "unit"), [((5, 10_000), "windows"), ((500, 99), "tokens")])
def test_windows_are_counted_before_they_are_built(budget: tuple[int, int], unit: str) -> None:
    library = heads.tokenizer().backend_tokenizer
    library.no_padding()
    library.no_truncation()
    whole = library.encode("a " * 200)
    limit = LengthLimit(ServerLongInput.WINDOWS, 12, 12, stride=2)
    left = WindowBudget(*budget)
    with pytest.raises(TooLongError, match=unit):
        tokenize_windows(whole, limit, left, is_pair=False, with_offsets=False)
    assert (left.num_windows, left.num_tokens) == budget
    exact = WindowBudget(25, 25 * 12)
    tokenized = tokenize_windows(whole, limit, exact, is_pair=False, with_offsets=False)
    assert len(tokenized.windows) == 25 - exact.num_windows
    assert tokenized.num_tokens == 25 * 12 - exact.num_tokens


def test_log_probabilities_of_a_reply_are_counted_before_generation() -> None:
    job = GenerationJob((1, 2), 1000, logprob_options=LogprobOptions(top_logprobs=99))
    check_reply_size([job] * 5)
    with pytest.raises(InvalidArgumentError, match="600000 log-probabilities"):
        check_reply_size([job] * 6)


def test_log_probabilities_of_prompts_are_counted_in_streams_too(tiny_bundles: Path) -> None:
    prompts = [list(range(4, 90)) * 2] * 60
    options: dict[str, Any] = {"prompt_logprobs": True, "top_logprobs": 98, "max_new_tokens": 1}
    with connected(tiny_bundles, "--threads", "1") as client:

        def stream() -> object:
            return list(client.generate_stream("tiny-decoder", token_inputs=prompts, **options))

        for call in (
            stream,
            lambda: client.generate("tiny-decoder", token_inputs=prompts, **options),
        ):
            error = error_of(call)
            assert field_of(error) == "response.prompt_logprobs"
            assert "1021680 log-probabilities" in error.message


async def test_jobs_of_a_request_share_their_bad_words(tiny_bundles: Path) -> None:
    request = GenerateRequest(
        model="tiny-decoder", inputs=("7,", "8,"), decoding=DecodingOptions(bad_words=("1", "23"))
    )
    async with service_context(tiny_bundles) as context:
        caller = Caller("", None)
        prepared = await prepare_generate(request, context, caller, Delivery.WHOLE, ExitStack())
    first, second = (job.logits_options.bad_word_ids for job in prepared.jobs)
    assert first is not None
    assert first is second


async def test_tokens_are_counted_whose_reader_left(tiny_bundles: Path) -> None:
    def count(direction: str) -> float:
        labels = {"model": "tiny-decoder", "direction": direction}
        return context.metrics.registry.get_sample_value("triune_tokens_total", labels) or 0.0

    request = GenerateRequest(
        model="tiny-decoder", inputs=("7,",), stopping=StoppingOptions(max_new_tokens=9)
    )
    async with service_context(tiny_bundles) as context:
        caller = Caller("", None)
        whole = await prepare_generate(request, context, caller, Delivery.WHOLE, ExitStack())
        await collect(whole, context)
        expected = count("in"), count("out")
        assert expected == (3.0, 9.0)
        prepared = await prepare_generate(request, context, caller, Delivery.EACH, ExitStack())
        chunks = stream(prepared, context)
        read = await anext(chunks)
        await chunks.aclose()
        left = count("in") - expected[0], count("out") - expected[1]
    assert read.finish is None
    assert left == (3.0, float(read.num_output_tokens))
