"""Logits processors against ``transformers`` and against explicit formulas."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    LogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from server.engine.decoding.bad_words import BadWordIds
from server.engine.decoding.logits_processors import TokenHistory, logits_processors
from server.engine.decoding.options import LogitsOptions

SIZE = 12
EOS = 1
ids = st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=14)


def before_and_after(
    options: LogitsOptions, tokens: list[int], num_prompt: int, source: Sequence[int] = ()
) -> Any:
    logits = np.random.default_rng(sum(tokens)).normal(0, 2, SIZE).astype(np.float32)
    before = logits.copy()
    for process in logits_processors(options, (EOS,), source):
        edit = process(TokenHistory(tokens, num_prompt))
        if edit is not None:
            edit.apply(logits)
    return before, logits


def processed(processor: LogitsProcessor, tokens: list[int], before: Any) -> Any:
    return processor(torch.tensor([tokens]), torch.from_numpy(before[None].copy()))[0].numpy()


@given(tokens=ids, penalty=st.sampled_from([0.5, 1.3, 2.0]))
def test_repetition_penalty_matches_transformers(tokens: list[int], penalty: float) -> None:
    before, after = before_and_after(LogitsOptions(repetition_penalty=penalty), tokens, 1)
    expected = processed(RepetitionPenaltyLogitsProcessor(penalty), tokens, before)
    np.testing.assert_allclose(after, expected, rtol=1e-6)


@given(tokens=ids, size=st.integers(1, 4))
def test_no_repeat_ngram_matches_transformers(tokens: list[int], size: int) -> None:
    before, after = before_and_after(LogitsOptions(no_repeat_ngram_size=size), tokens, 1)
    expected = processed(NoRepeatNGramLogitsProcessor(size), tokens, before)
    np.testing.assert_array_equal(after, expected)


@given(tokens=ids, source=ids, size=st.integers(1, 4))
def test_encoder_no_repeat_ngram_matches_transformers(
    tokens: list[int], source: list[int], size: int
) -> None:
    options = LogitsOptions(encoder_no_repeat_ngram_size=size)
    before, after = before_and_after(options, tokens, 1, source)
    source_ids: Any = torch.tensor([source])
    processor = EncoderNoRepeatNGramLogitsProcessor(size, source_ids)
    np.testing.assert_array_equal(after, processed(processor, tokens, before))


@given(
    tokens=ids,
    words=st.lists(
        st.lists(st.integers(2, SIZE - 1), min_size=1, max_size=3).map(tuple),
        min_size=1,
        max_size=4,
        unique=True,
    ),
)
def test_bad_words_match_transformers(tokens: list[int], words: list[tuple[int, ...]]) -> None:
    before, after = before_and_after(LogitsOptions(bad_word_ids=BadWordIds(words)), tokens, 0)
    processor = NoBadWordsLogitsProcessor([list(word) for word in words], eos_token_id=EOS)
    np.testing.assert_array_equal(after, processed(processor, tokens, before))


class CountedIds(list[int]):
    """Counts the ids that are read."""

    num_read = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.num_read += len(found) if isinstance(key, slice) else 1
        return found


def test_a_step_reads_as_many_tokens_for_many_bad_words_as_for_one() -> None:
    tokens = [5] * 500
    num_read = []
    for words in ([(5, 5, 7)], [(5, 5, last) for last in range(6, 12)], [(8, 5, 1)] * 1000):
        history = CountedIds(tokens)
        (process,) = logits_processors(LogitsOptions(bad_word_ids=BadWordIds(words)), ())
        process(TokenHistory(history, 1))
        num_read.append(history.num_read)
    assert num_read == [2, 2, 2]


@given(tokens=ids, min_tokens=st.integers(1, 9), num_prompt=st.integers(0, 14))
def test_min_new_tokens_matches_transformers(
    tokens: list[int], min_tokens: int, num_prompt: int
) -> None:
    num_prompt = min(num_prompt, len(tokens))
    before, after = before_and_after(LogitsOptions(min_new_tokens=min_tokens), tokens, num_prompt)
    processor = MinNewTokensLengthLogitsProcessor(num_prompt, min_tokens, EOS, device="cpu")
    np.testing.assert_array_equal(after, processed(processor, tokens, before))


@given(
    tokens=ids,
    num_prompt=st.integers(0, 14),
    presence=st.sampled_from([-1.0, 0.0, 0.7]),
    frequency=st.sampled_from([-0.5, 0.0, 1.5]),
)
def test_presence_and_frequency_penalties_match_openai(
    tokens: list[int], num_prompt: int, presence: float, frequency: float
) -> None:
    """Formula of the OpenAI API: subtract ``c * frequency + (c > 0) * presence``."""
    options = LogitsOptions(presence_penalty=presence, frequency_penalty=frequency)
    before, after = before_and_after(options, tokens, num_prompt)
    for id_ in range(SIZE):
        count = tokens[num_prompt:].count(id_)
        expected = before[id_] - count * frequency - (count > 0) * presence
        assert after[id_] == pytest.approx(expected, abs=1e-5)


def test_adds_logit_bias() -> None:
    before, after = before_and_after(LogitsOptions(logit_bias=((3, 5.0), (7, -100.0))), [1], 1)
    assert after[3] == before[3] + 5
    assert after[7] == pytest.approx(before[7] - 100, rel=1e-6)
    assert (after != before).sum() == 2


def test_default_options_have_no_processors() -> None:
    assert logits_processors(LogitsOptions(), (EOS,)) == ()
