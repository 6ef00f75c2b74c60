"""Ids of queries and documents against the cutting and filling of Hugging Face's tokenizers."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from model.bundle import MultiVector
from model.late_interaction import document_ids, kept_tokens, query_ids

WORDS = ("[CLS]", "[SEP]", "[MASK]", "[Q]", "[D]", ".", "a", "b", "c", "d")
CLS, SEP, MASK, QUERY, DOCUMENT, POINT = range(6)
TEXTS = ("", "a", "a b . c", "a b c d . a b c d", "a . b . c . d . a . b . c . d")


def tokenizer(template: str) -> Tokenizer:
    words = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, "a"))
    words.pre_tokenizer = Whitespace()
    words.post_processor = TemplateProcessing(
        single=template, special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    return words


def with_marker(ids: list[int], marker: int) -> list[int]:
    return [*ids[:1], marker, *ids[1:]]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("attends", [False, True])
def test_a_query_is_cut_marked_and_filled(text: str, attends: bool) -> None:
    words = tokenizer("[CLS] $A [SEP]")
    ids = words.encode(text).ids
    spec = MultiVector(
        query_marker=QUERY,
        query_length=8,
        document_length=300,
        filler=MASK,
        attends_to_filler=attends,
    )
    words.enable_truncation(7)
    words.enable_padding(pad_id=MASK, length=7)
    expected = words.encode(text)
    num_attended = 8 if attends else sum(expected.attention_mask) + 1
    assert query_ids(ids, spec) == (with_marker(expected.ids, QUERY), num_attended)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("marker", [None, DOCUMENT])
@pytest.mark.parametrize("template", ["[CLS] $A [SEP]", "[CLS] $A"])
def test_a_document_is_cut_and_marked(text: str, marker: int | None, template: str) -> None:
    words = tokenizer(template)
    ids = words.encode(text).ids
    spec = MultiVector(
        document_marker=marker,
        query_length=32,
        document_length=10,
        has_end_token="[SEP]" in template,
    )
    words.enable_truncation(10 - (marker is not None))
    expected = words.encode(text).ids
    assert document_ids(ids, spec) == (
        expected if marker is None else with_marker(expected, marker)
    )


def test_a_query_without_a_filler_stays_short() -> None:
    spec = MultiVector(query_length=32, document_length=180)
    assert query_ids([CLS, 6, SEP], spec) == ([CLS, 6, SEP], 3)


def test_skipped_tokens_of_a_document_have_no_vector() -> None:
    spec = MultiVector(query_length=32, document_length=180, skipped=(POINT, 7))
    assert kept_tokens([CLS, DOCUMENT, 6, POINT, 7, 8, SEP], spec) == [0, 1, 2, 5, 6]
