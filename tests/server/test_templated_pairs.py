"""Pairs in the template of a language model: tokens, windows, and a server's scores."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.encoder_types import LongInput as ClientLongInput
from client.sync import Client
from export.bundle_writer import write_bundle
from export.sources import load_checkpoint
from model.bundle import PairTemplate
from server.text.templated_pair import TemplatedPair
from server.text.windows import (
    LengthLimit,
    LongInput,
    TooLongError,
    WindowBudget,
    tokenize_windows,
)
from tests import rerankers
from tests.server.clients import connected

LIBRARY = rerankers.tokenizer()
TEMPLATE = PairTemplate(before="<|im_start|>Q: ", between="\nD: ", after="<|im_end|>\n?")
TEXTS = st.text(st.sampled_from("ab é東🙂\n{}"), min_size=1, max_size=20)


@given(TEXTS, TEXTS)
def test_offsets_are_those_of_the_texts(first: str, second: str) -> None:
    """Every token is a byte."""
    pair = TemplatedPair.of(TEMPLATE, first, second)
    whole = LIBRARY.encode(pair.text, add_special_tokens=False)
    limit, budget = LengthLimit(LongInput.ERROR, 1000, 1000), WindowBudget(1, 1000)
    text = tokenize_windows(whole, limit, budget, is_pair=True, with_offsets=True, templated=pair)
    (window,) = text.windows
    assert window.token_ids == tuple(whole.ids)
    assert window.num_text_tokens == len(second.encode())
    assert len(text.first_offsets) == len(first.encode())
    for offsets, words in ((text.offsets, second), (text.first_offsets, first)):
        assert {index for start, end in offsets for index in range(start, end)} == set(
            range(len(words))
        )


@given(TEXTS, TEXTS, st.integers(10, 60), st.sampled_from(LongInput))
def test_windows_keep_the_template(
    first: str, second: str, max_tokens: int, long_input: LongInput
) -> None:
    pair = TemplatedPair.of(TEMPLATE, first, second)
    whole = LIBRARY.encode(pair.text, add_special_tokens=False)
    limit, budget = LengthLimit(long_input, max_tokens, max_tokens), WindowBudget(1000, 100_000)
    fits = len(whole.ids) <= max_tokens
    try:
        text = tokenize_windows(
            whole, limit, budget, is_pair=True, with_offsets=False, templated=pair
        )
    except TooLongError:
        assert not fits
        return
    before, after = (
        tuple(LIBRARY.encode(part, add_special_tokens=False).ids)
        for part in (TEMPLATE.before, TEMPLATE.after)
    )
    for window in text.windows:
        assert len(window.token_ids) <= max(max_tokens, len(whole.ids) if fits else 0)
        assert window.token_ids[: len(before)] == before
        assert window.token_ids[-len(after) :] == after
    if fits:
        assert text.windows[0].token_ids == tuple(whole.ids)
    elif long_input == LongInput.WINDOWS:
        assert sum(window.num_text_tokens for window in text.windows) >= len(second.encode())
    else:
        assert text.num_truncated_tokens == len(whole.ids) - len(text.windows[0].token_ids)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, list[float]]]:
    """A client of a server of a reranker, and the probabilities that transformers computes."""
    folder = tmp_path_factory.mktemp("reranker")
    model = rerankers.save(folder / "source")
    logits = rerankers.scores(model, folder / "source")
    write_bundle(load_checkpoint(str(folder / "source")), folder / "bundles", name="reranker")
    with connected(folder / "bundles", "--threads", "1") as client:
        yield client, [1 / (1 + math.exp(-logit)) for logit in logits]


def test_classify_matches_transformers(served: Any) -> None:
    client, expected = served
    outputs = client.classify("reranker", pairs=rerankers.PAIRS).outputs
    scores = [output.labels[0].score for output in outputs]
    assert scores == pytest.approx(expected, abs=1e-5)


def test_rerank_matches_transformers(served: Any) -> None:
    client, expected = served
    for (query, document), score in zip(rerankers.PAIRS, expected, strict=True):
        result = client.rerank("reranker", query, [document, "another"])
        found = {output.index: output.score for output in result.outputs}
        assert found[0] == pytest.approx(score, abs=1e-5)


def test_windows_of_a_document_are_ranked(served: Any) -> None:
    client, _ = served
    query, document = rerankers.PAIRS[2]
    (output,) = client.rerank(
        "reranker", query, [document], long_input=ClientLongInput.WINDOWS, max_tokens=160
    ).outputs
    assert output.reading.windows > 1


def test_a_text_alone_has_no_template(served: Any) -> None:
    client, _ = served
    (output,) = client.classify("reranker", "x").outputs
    assert output.usage.input_tokens == 2  # a byte and the end of the text
