"""Translate splits texts into sentences and joins their outputs, on a real server."""

import dataclasses
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client import types
from client.errors import TriuneError
from client.sync import Client
from tests.server.clients import connected

FIRST, SECOND, THIRD = "the 3rd of March, 2021", "the 4th of May, 1999", "June 5, 2003"
TEXT = f"\n{FIRST}\n\n- {SECOND}\n\n  {THIRD} "
DATES = "\n2021-03-03\n\n- 1999-05-04\n\n  2003-06-05 "


@pytest.fixture(scope="module")
def client(tiny_bundles: Path) -> Iterator[Client]:
    with connected(tiny_bundles, "--max-length", "96") as connection:
        yield connection


def test_sentences_are_translated_and_joined(client: Client) -> None:
    result = client.translate("dates", [TEXT, FIRST], logprobs=True, token_ids=True)
    alone = [
        client.translate("dates", text, logprobs=True, token_ids=True)
        for text in (FIRST, SECOND, THIRD)
    ]
    parts = [each.outputs[0] for each in alone]
    assert [output.text for output in result.outputs] == [DATES, "2021-03-03"]
    assert result.outputs[0].finish_reason == types.FinishReason.STOP
    assert result.outputs[0].token_ids == tuple(id_ for part in parts for id_ in part.token_ids)
    tokens = [token.token for part in parts for token in part.logprobs]
    assert [token.token for token in result.outputs[0].logprobs] == tokens
    usage = result.outputs[0].usage
    assert usage.input_tokens == sum(part.usage.input_tokens for part in parts)
    assert usage.output_tokens == sum(part.usage.output_tokens for part in parts)


def test_stream_is_in_the_order_of_the_text(client: Client) -> None:
    pieces = list(client.translate_stream("dates", [TEXT, FIRST]))
    texts = ["".join(piece.text for piece in pieces if piece.index == index) for index in (0, 1)]
    assert texts == [DATES, "2021-03-03"]
    finishes = [piece.index for piece in pieces if piece.finish_reason is not None]
    assert sorted(finishes) == [0, 1]
    last = [list(group)[-1] for _, group in groupby(pieces, key=lambda piece: piece.index)]
    assert last[-1].finish_reason is not None


def test_a_single_sentence_and_off_are_translated_whole(client: Client) -> None:
    whole = client.translate("dates", TEXT, sentence_split=types.SentenceSplit.OFF)
    assert whole.outputs[0].text != DATES
    options: Any = {"temperature": 1.5, "seed": 7, "token_ids": True}
    modes = [types.SentenceSplit.AUTO, types.SentenceSplit.OFF, types.SentenceSplit.ON]
    sampled = [
        client.translate("dates", f" {FIRST} ", sentence_split=mode, **options).outputs
        for mode in modes
    ]
    assert sampled[0] == sampled[1] == sampled[2]
    both = client.translate("dates", [TEXT, f" {FIRST} ", SECOND], **options).outputs
    apart = client.translate("dates", [THIRD, f" {FIRST} ", SECOND], **options).outputs
    assert both[1:] == apart[1:]  # their seeds do not depend on other texts' sentences


def test_hypotheses_join_those_of_each_sentence(client: Client) -> None:
    options: Any = {"beam_size": 3, "num_hypotheses": 3}
    output = client.translate("dates", TEXT, **options).outputs[0]
    parts = [
        client.translate("dates", text, **options).outputs[0] for text in (FIRST, SECOND, THIRD)
    ]
    texts = [[each.text for each in part.hypotheses] for part in parts]
    expected = [f"\n{a}\n\n- {b}\n\n  {c} " for a, b, c in zip(*texts, strict=True)]
    assert [each.text for each in output.hypotheses] == expected
    assert output.score == pytest.approx(sum(part.score or 0 for part in parts), abs=1e-4)
    scores = [each.score or 0 for each in output.hypotheses]
    assert scores == sorted(scores, reverse=True)


def test_alignments_count_characters_of_the_whole_texts(client: Client) -> None:
    options = types.AttentionOptions(average=True, alignments=True)
    output = client.translate("dates", TEXT, attention=options).outputs[0]
    attention = output.attention
    assert attention is not None
    (matrix,) = attention.matrices
    weights = np.array(matrix.weights)
    assert weights.shape == (len(attention.target_tokens), len(attention.source_tokens))
    assert weights.sum(1) == pytest.approx(1, abs=1e-3)
    ends = [each.target_end for each in attention.alignments]
    assert ends == sorted(ends)
    assert max(ends) == len(output.text.rstrip())
    for alignment in attention.alignments:
        line = output.text[: alignment.target_start].count("\n")
        assert TEXT[: alignment.source_start].count("\n") == line


def test_a_sentence_over_the_length_limit_is_split_further(client: Client) -> None:
    text = ", ".join([FIRST, SECOND, THIRD] * 3)
    with pytest.raises(TriuneError, match="tokens, at most 96"):
        client.translate("dates", text, sentence_split=types.SentenceSplit.OFF)
    output = client.translate("dates", text).outputs[0]
    assert output.usage.input_tokens > 96
    assert len(output.text.split()) >= 4


@pytest.mark.parametrize("rest", [f"\n{'-' * 100}", f"\n\n{'12 | ' * 30}\n"])
def test_a_long_rest_without_letters_is_kept(client: Client, rest: str) -> None:
    alignments = types.AttentionOptions(alignments=True)
    alone = client.translate("dates", FIRST, attention=alignments).outputs[0]
    output = client.translate("dates", f" - {FIRST}{rest}", attention=alignments).outputs[0]
    assert output.text == f" - {alone.text}{rest}"
    assert output.usage == alone.usage
    assert output.attention is not None
    assert alone.attention is not None
    expected = [
        types.Alignment(*(3 + place for place in dataclasses.astuple(each)))
        for each in alone.attention.alignments
    ]
    assert list(output.attention.alignments) == expected


@pytest.mark.parametrize(
    ("text", "number"),
    [("12 | " * 40, slice(0, 1)), ("=\n\n" + 40 * "- 7\n", slice(5, 6)), ("-" * 100, slice(0, 1))],
)
def test_a_long_text_without_letters_is_kept_but_for_one_token(
    client: Client, text: str, number: slice
) -> None:
    with pytest.raises(TriuneError, match="tokens, at most 96"):
        client.translate("dates", text, sentence_split=types.SentenceSplit.OFF)
    alone = client.translate("dates", text[number]).outputs[0]
    output = client.translate("dates", [text, FIRST]).outputs[0]
    assert output.text == text[: number.start] + alone.text + text[number.stop :]
    assert output.usage == alone.usage


def test_all_reasons_to_end_are_reported(client: Client) -> None:
    output = client.translate("dates", TEXT, max_new_tokens=3).outputs[0]
    assert output.finish_reason == types.FinishReason.LENGTH
    assert output.usage.output_tokens == 9


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("decoding.target_prefix", "20"),
        ("stopping.stop_strings", ["-"]),
        ("stopping.stop_token_ids", [5]),
        ("stopping.ignore_eos", True),
        ("stopping.min_new_tokens", 2),
        ("response.prompt_logprobs", True),
        ("grammar", types.Regex("[0-9-]+")),
    ],
)
def test_options_for_whole_texts(client: Client, field: str, value: Any) -> None:
    options: Any = {field.rpartition(".")[2]: value, "max_new_tokens": 8, "token_ids": True}
    with pytest.raises(TriuneError, match=f"{field}: .*sentence_split") as caught:
        client.translate("dates", TEXT, sentence_split=types.SentenceSplit.ON, **options)
    assert [each.field.removeprefix("decoding.") for each in caught.value.violations] == [
        field.removeprefix("decoding.")
    ]
    modes = [types.SentenceSplit.AUTO, types.SentenceSplit.OFF]
    whole = [client.translate("dates", TEXT, sentence_split=mode, **options) for mode in modes]
    assert whole[0].outputs == whole[1].outputs


def test_the_number_of_sentences_is_bounded(client: Client) -> None:
    for count, message in ((5000, "more than 4096 sentences"), (1000, "sequences, at most")):
        with pytest.raises(TriuneError, match=f"inputs.*{message}"):
            client.translate("dates", "A b.\n\n" * count)
