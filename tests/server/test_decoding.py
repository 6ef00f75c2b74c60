"""Decoding options end to end: trained models, a real server, real clients."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client.sync import Client
from client.types import (
    AttentionKind,
    AttentionOptions,
    Choices,
    FinishReason,
    GenerationOptions,
    Regex,
)
from model import bundle
from server.engine.decoding.options import AttentionSelection
from server.engine.observer import RunReport
from server.engine.requests.job import GenerationJob
from server.errors import InvalidArgumentError
from server.service.attention import AttentionPlan, check_attention_size
from tests.server.clients import connected
from tests.server.in_process_service import service_context

DECODER, DATES = "tiny-decoder", "dates"
DATE = "3 March 2021"


@pytest.fixture(scope="module")
def client(tiny_bundles: Path) -> Iterator[Client]:
    with connected(tiny_bundles, "--threads", "1", "--slots", "8") as client:
        yield client


def test_beam_search_returns_its_best_hypotheses(client: Client) -> None:
    output = client.translate(DATES, DATE, beam_size=4, num_hypotheses=3, logprobs=True).outputs[0]
    assert output.text == "2021-03-03"
    assert output.hypotheses[0].text == output.text
    scores = [hypothesis.score or 0.0 for hypothesis in output.hypotheses]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert len({hypothesis.text for hypothesis in output.hypotheses}) == 3
    total = sum(row.logprob for row in output.logprobs)
    assert output.score == pytest.approx(total / len(output.logprobs), abs=1e-4)


def test_joined_beam_search_stream_equals_the_unary_text(client: Client) -> None:
    options = GenerationOptions(beam_size=3, num_hypotheses=2)
    chunks = list(client.translate_stream(DATES, [DATE, "1 May 1999"], **options))
    unary = client.translate(DATES, [DATE, "1 May 1999"], **options)
    for index, output in enumerate(unary.outputs):
        for number, hypothesis in enumerate(output.hypotheses):
            hypothesis_chunks = [p for p in chunks if (p.index, p.hypothesis) == (index, number)]
            assert "".join(chunk.text for chunk in hypothesis_chunks) == hypothesis.text
            assert hypothesis_chunks[-1].score == pytest.approx(hypothesis.score, abs=1e-5)
    first = [chunk for chunk in chunks if (chunk.index, chunk.hypothesis) == (0, 0)]
    assert len(first) >= 2, "the agreed prefix is streamed"


def test_a_time_limit_while_prompts_are_scored(client: Client) -> None:
    """An output has the log-probabilities of the prompt tokens that were processed."""
    options = GenerationOptions(prompt_logprobs=True, max_new_tokens=1)
    prompt = "7," * 100  # one and a part of another fit into a step
    whole = client.generate(DECODER, prompt, **options).outputs[0].prompt_logprobs
    for seconds in np.arange(0.05, 1.0, 0.05).tolist():
        options["max_seconds"] = seconds
        outputs = client.generate(DECODER, [prompt] * 64, **options).outputs
        counts = [len(output.prompt_logprobs) for output in outputs]
        for output, count in zip(outputs, counts, strict=True):
            ids = [row.token_id for row in output.prompt_logprobs]
            assert ids == [row.token_id for row in whole[:count]]
        if any(0 < count < len(whole) for count in counts):
            return
    pytest.fail("no time limit fell into the prefill of a prompt")


def test_beams_have_no_tokens_after_a_stop_string(client: Client) -> None:
    options = GenerationOptions(beam_size=3, num_hypotheses=2, token_ids=True, logprobs=True)
    whole = client.translate(DATES, DATE, **options).outputs[0]
    options["stop_strings"] = ["-0"]
    cut = client.translate(DATES, DATE, **options).outputs[0]
    num_tokens = len("2021-0")  # a token is a character
    for hypothesis, uncut in zip(cut.hypotheses, whole.hypotheses, strict=True):
        year, _, _ = uncut.text.partition("-0")
        assert (hypothesis.text, hypothesis.finish_reason) == (year, FinishReason.STOP_STRING)
        assert hypothesis.token_ids == uncut.token_ids[:num_tokens]
        assert [row.token_id for row in hypothesis.logprobs] == list(hypothesis.token_ids)
    assert cut.usage.output_tokens == 2 * num_tokens


def test_mixes_beam_widths_and_samples_in_one_batch(client: Client) -> None:
    def send_request(width: int) -> str:
        if width == 0:
            return client.generate(DECODER, "7,", temperature=0.7, seed=3).outputs[0].text
        return client.translate(DATES, DATE, beam_size=width).outputs[0].text

    alone = send_request(0)
    with ThreadPoolExecutor(12) as pool:
        texts = list(pool.map(send_request, [1, 2, 0, 3, 4, 0, 5, 8, 1, 2, 0, 6] * 3))
    assert set(texts) == {"2021-03-03", alone}


def test_samples_differ_and_repeat_with_the_same_seed(client: Client) -> None:
    options = GenerationOptions(temperature=3.0, seed=5, num_hypotheses=4, max_new_tokens=8)
    first = client.generate(DECODER, "7,", **options).outputs[0]
    assert len({hypothesis.text for hypothesis in first.hypotheses}) > 1
    assert client.generate(DECODER, "7,", **options).outputs[0].hypotheses == first.hypotheses


def test_returns_alternatives_after_a_prefix(client: Client) -> None:
    output = client.translate(
        DATES, DATE, target_prefix="20", alternatives=True, num_hypotheses=3, max_new_tokens=12
    ).outputs[0]
    texts = [hypothesis.text for hypothesis in output.hypotheses]
    assert texts[0] == "2021-03-03"
    assert all(text.startswith("20") for text in texts)
    assert len({text[2] for text in texts}) == 3


def test_prefix_starts_the_output_and_is_not_counted(client: Client) -> None:
    output = client.translate(DATES, DATE, target_prefix="2021-0", token_ids=True).outputs[0]
    assert output.text == "2021-03-03"
    assert output.usage.output_tokens == len("3-03") + 1
    assert len(output.token_ids) == len("2021-03-03") + 1
    outputs = client.translate(DATES, [DATE, DATE], target_prefix=["2", "1999-"]).outputs
    assert [row.text[:5] for row in outputs] == ["2021-", "1999-"]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_grammar_describes_the_prefix_and_what_follows(client: Client, beam_size: int) -> None:
    dates = ("1999-01-31", "2021-03-03", "2021-12-24")
    prefixes = ["2021-1", "", "1"]
    outputs = client.translate(
        DATES, [DATE] * 3, target_prefix=prefixes, grammar=Choices(dates), beam_size=beam_size
    ).outputs
    assert [output.text for output in outputs] == ["2021-12-24", "2021-03-03", "1999-01-31"]
    shared = client.generate(
        DECODER, ["7,", "8,"], target_prefix="1", grammar=Regex("12?3?4"), beam_size=beam_size
    ).outputs
    assert all(re.fullmatch("12?3?4", output.text) for output in shared)


def test_echo_returns_the_prompt(client: Client) -> None:
    plain = client.generate(DECODER, "7,").outputs[0].text
    assert client.generate(DECODER, "7,", echo=True).outputs[0].text == "7," + plain


@pytest.mark.parametrize("beam_size", [1, 3])
def test_repeats_no_token_of_the_source_or_prompt(client: Client, beam_size: int) -> None:
    options = GenerationOptions(
        encoder_no_repeat_ngram_size=1, max_new_tokens=8, beam_size=beam_size
    )
    date = client.translate(DATES, DATE, **options).outputs[0].text
    assert date
    assert not set(date) & set(DATE)
    plain = client.generate(DECODER, "7,", max_new_tokens=8, beam_size=beam_size).outputs[0].text
    assert set(plain) & set("7,")
    text = client.generate(DECODER, "7,", **options).outputs[0].text
    assert text
    assert not set(text) & set("7,")


def test_applies_min_new_tokens_and_stop_token_ids(client: Client) -> None:
    unrestricted = client.generate(DECODER, "7,", token_ids=True).outputs[0]
    longer = client.generate(
        DECODER, "7,", min_new_tokens=len(unrestricted.token_ids) + 3, max_new_tokens=40
    )
    assert longer.usage.output_tokens >= len(unrestricted.token_ids) + 3
    stop = unrestricted.token_ids[1]
    cut = client.generate(DECODER, "7,", stop_token_ids=[stop], token_ids=True).outputs[0]
    assert cut.token_ids == unrestricted.token_ids[: unrestricted.token_ids.index(stop) + 1]
    assert cut.finish_reason == FinishReason.STOP


def test_logprobs_match_scores(client: Client) -> None:
    output = client.generate(DECODER, "7,", logprobs=True, top_logprobs=3, ignore_eos=True,
                             max_new_tokens=6, token_ids=True).outputs[0]  # fmt: skip
    assert [row.token_id for row in output.logprobs] == list(output.token_ids)
    for row in output.logprobs:
        assert row.top[0].token_id == row.token_id  # greedy
        assert row.top[0].logprob == pytest.approx(row.logprob, abs=1e-6)
        assert row.logprob <= 0
    scored = client.score(DECODER, [("7,", output.text)], logprobs=True).outputs[0]
    assert [row.token for row in scored.logprobs] == [row.token for row in output.logprobs]
    for generated, rescored in zip(output.logprobs, scored.logprobs, strict=True):
        assert generated.logprob == pytest.approx(rescored.logprob, abs=1e-3)


def test_correct_translation_scores_higher_than_a_wrong_one(client: Client) -> None:
    right, wrong = client.score(DATES, [(DATE, "2021-03-03"), (DATE, "2021-04-03")]).outputs
    assert right.num_tokens == wrong.num_tokens == len("2021-03-03") + 1
    assert right.score > -2
    assert wrong.score < right.score - 2
    best = client.translate(DATES, DATE, beam_size=2, length_penalty=0.0).outputs[0]
    assert right.score == pytest.approx(best.score, abs=1e-3)


def test_returns_prompt_logprobs(client: Client) -> None:
    output = client.generate(DECODER, "7,8,", prompt_logprobs=True, max_new_tokens=1).outputs[0]
    assert len(output.prompt_logprobs) == output.usage.input_tokens - 1
    whole = client.score(DECODER, [("", "7,8,")], logprobs=True).outputs[0]
    assert [row.token for row in whole.logprobs] == [row.token for row in output.prompt_logprobs]


def test_second_prompt_reuses_the_cached_prefix(client: Client) -> None:
    beginning = ",".join(str(number) for number in range(30, 60))
    first = client.generate(DECODER, beginning, max_new_tokens=2)
    second = client.generate(DECODER, beginning + ",60,", max_new_tokens=2)
    assert second.usage.reused_tokens >= len(beginning)
    assert first.usage.reused_tokens <= first.usage.input_tokens


def test_returns_attention_and_alignments(client: Client) -> None:
    """The model copies digits, so target digits attend to source digits."""
    options = AttentionOptions(alignments=True)
    output = client.translate(DATES, "2021-03-09", attention=options, token_ids=True).outputs[0]
    attention = output.attention
    assert attention is not None
    assert len(attention.target_tokens) == len(output.token_ids)
    assert len({(matrix.layer, matrix.head) for matrix in attention.matrices}) == len(
        attention.matrices
    )
    for matrix in attention.matrices:
        assert len(matrix.weights) == len(attention.target_tokens)
        for weights in matrix.weights:
            assert len(weights) == len(attention.source_tokens)
            assert sum(weights) == pytest.approx(1, abs=1e-4)
    spans = [(row.target_start, row.target_end) for row in attention.alignments]
    assert spans == [(index, index + 1) for index in range(len(output.text))]
    for row in attention.alignments:
        assert 0 <= row.source_start < row.source_end <= len("2021-03-09")


def test_alignments_end_before_a_stop_string(client: Client) -> None:
    options = AttentionOptions(alignments=True)
    output = client.translate(
        DATES, DATE, attention=options, stop_strings=["-0"], token_ids=True
    ).outputs[0]
    assert output.text == "2021"
    assert output.attention is not None
    assert len(output.attention.target_tokens) == len(output.token_ids) == len("2021-0")
    spans = [(row.target_start, row.target_end) for row in output.attention.alignments]
    assert spans == [(index, index + 1) for index in range(len("2021"))]


def test_selects_and_averages_attention_heads(client: Client) -> None:
    whole = client.translate(DATES, DATE, attention=AttentionOptions()).outputs[0].attention
    options = AttentionOptions(layers=(1,), heads=(0, 2), average=True)
    chunks = list(client.translate_stream(DATES, DATE, beam_size=3, attention=options))
    attention = chunks[-1].attention
    assert whole is not None
    assert attention is not None
    (averaged,) = attention.matrices
    selected = [m.weights for m in whole.matrices if m.layer == 1 and m.head in (0, 2)]
    np.testing.assert_allclose(averaged.weights, np.mean(selected, axis=0), atol=1e-5)


def test_returns_self_attention_over_prompt_and_output(client: Client) -> None:
    options = AttentionOptions(kind=AttentionKind.SELF)
    output = client.generate(
        DECODER, "7,8,9,", max_new_tokens=4, ignore_eos=True, attention=options, token_ids=True
    ).outputs[0]
    attention = output.attention
    assert attention is not None
    assert len(attention.target_tokens) == len(output.token_ids) == 4
    assert attention.source_tokens[-3:] == attention.target_tokens[:3]
    num_prompt_tokens = len(attention.source_tokens) - 3
    for matrix in attention.matrices:
        for index, weights in enumerate(matrix.weights):
            num_seen = num_prompt_tokens + index
            assert sum(weights[:num_seen]) == pytest.approx(1, abs=1e-4)
            assert not any(weights[num_seen:])
    single_step = client.generate(
        DECODER, "7,8,9,", max_new_tokens=1, ignore_eos=True, attention=options
    ).outputs[0]
    assert single_step.attention is not None
    first = [matrix.weights[0] for matrix in single_step.attention.matrices]
    np.testing.assert_allclose(
        first, [matrix.weights[0][:num_prompt_tokens] for matrix in attention.matrices], atol=1e-6
    )


def test_rejects_attention_larger_than_a_response_before_running() -> None:
    selection = AttentionSelection(
        bundle.AttentionKind.SELF, tuple(range(30)), tuple(range(9)), average=False
    )
    jobs = [GenerationJob(tuple(range(100)), max_new_tokens=28)]
    check_attention_size(AttentionPlan(selection, alignments=False, num_heads=9), jobs)
    check_attention_size(
        AttentionPlan(replace(selection, average=True), alignments=False, num_heads=9), jobs * 100
    )
    with pytest.raises(InvalidArgumentError, match=r"^attention: could be 8847360 weights"):
        check_attention_size(AttentionPlan(selection, alignments=False, num_heads=9), jobs * 2)


async def test_other_sequences_decode_together_beside_attention(tiny_bundles: Path) -> None:
    """The weights of a job's prompt are computed alone; neighbouring slots share a run."""
    bulk = GenerationJob((0,), max_new_tokens=6, source=tuple(range(4, 12)))
    selection = AttentionSelection(bundle.AttentionKind.CROSS, (0,), (0, 1), average=False)
    attending = replace(bulk, max_new_tokens=0, attention=selection)
    sizes = []
    async with service_context(tiny_bundles, num_lanes=1, num_slots=16) as context:
        on_run = context.metrics.on_run

        def record(model: str, report: RunReport) -> None:
            if report.phase != "encode":
                sizes.append(report.num_sequences)
            on_run(model, report)

        context.metrics.on_run = record  # type: ignore[method-assign]
        key = context.registry.get(DATES).key
        jobs = [bulk] * 5 + [attending] + [bulk] * 4 + [attending]
        for handle in context.engine.submit(key, jobs):
            update = await handle.next()
            while not update.is_last:
                update = await handle.next()
    assert sizes[:4] == [5, 1, 4, 1]
    assert set(sizes[4:]) == {9}
