"""Times of words: median filter, dynamic time warping, division into words."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models, pre_tokenizers

from server.service.segments import TokenSegment
from server.service.word_times import (
    median_filter,
    of_heads,
    split_words,
    timed_words,
    token_starts,
    warp,
)
from server.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = HuggingFaceTokenizer(models.BPE({piece: i for i, piece in enumerate(alphabet)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    library.save(str(path))
    return Tokenizer(path)


def test_the_median_of_seven_mirrors_the_edges() -> None:
    values = np.random.default_rng(0).normal(0, 1, (2, 3, 40)).astype(np.float32)
    filtered = median_filter(values)
    mirrored = np.concatenate([values[..., 3:0:-1], values, values[..., -2:-5:-1]], -1)
    for index in range(40):
        expected = np.median(mirrored[..., index : index + 7], -1)
        np.testing.assert_array_equal(filtered[..., index], expected)
    np.testing.assert_array_equal(median_filter(values[..., :3]), values[..., :3])


def cheapest(costs: npt.NDArray[np.float64]) -> float:
    """The cost of the cheapest path, from all of them."""
    rows, columns = costs.shape
    totals = np.full((rows, columns), np.inf)
    totals[0, 0] = costs[0, 0]
    for row, column in itertools.product(range(rows), range(columns)):
        before = [
            totals[row - i, column - j]
            for i, j in ((1, 0), (0, 1), (1, 1))
            if row >= i and column >= j
        ]
        if row or column:
            totals[row, column] = costs[row, column] + min(before)
    return float(totals[-1, -1])


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (6, 1), (5, 9), (9, 5)])
def test_the_path_is_the_cheapest(shape: tuple[int, int]) -> None:
    costs = np.random.default_rng(1).normal(0, 1, shape)
    rows, columns = warp(costs)
    assert (rows[0], columns[0], rows[-1], columns[-1]) == (0, 0, shape[0] - 1, shape[1] - 1)
    steps = set(zip(np.diff(rows).tolist(), np.diff(columns).tolist(), strict=True))
    assert steps <= {(0, 1), (1, 0), (1, 1)}
    assert costs[rows, columns].sum() == pytest.approx(cheapest(costs))


def test_tokens_begin_where_the_heads_attend() -> None:
    begins = [0, 20, 45, 60, 90]  # of four tokens and of what follows
    weights = np.full((2, 7, 120), 1e-4, np.float32)
    for row, (start, stop) in enumerate(itertools.pairwise([*begins, 100]), 1):
        weights[:, row, start:stop] = 1
    weights /= weights.sum(-1, keepdims=True)
    starts = token_starts(weights, 1, num_vectors=100)
    np.testing.assert_allclose(starts, begins, atol=1)


def test_heads_are_chosen_by_layer_and_number() -> None:
    attention = np.arange(2 * 3 * 2 * 4, dtype=np.float32).reshape(2, 3, 2, 4)
    pairs = [(1, 5), (4, 2), (2, 5)]  # layers 1, 2, 4 and heads 2, 5
    chosen = of_heads(attention, pairs)
    np.testing.assert_array_equal(chosen[0], attention[:, 0, 1])
    np.testing.assert_array_equal(chosen[1], attention[:, 2, 0])
    np.testing.assert_array_equal(chosen[2], attention[:, 1, 1])


def test_words_begin_with_spaces(tokenizer: Tokenizer) -> None:
    (ids,) = tokenizer.encode([" Não, “sim”."], special_tokens=False)
    words = split_words(ids, tokenizer, has_spaces=True)
    assert [text for text, _ in words] == [" Não,", " “sim”."]
    assert sum(size for _, size in words) == len(ids)
    characters = split_words(ids, tokenizer, has_spaces=False)
    assert "".join(text for text, _ in characters) == " Não, “sim”."
    assert len(characters) == len(" Não, “sim”.")


def test_words_of_segments_have_the_times_of_their_tokens(tokenizer: Tokenizer) -> None:
    (first, second) = tokenizer.encode([" a bc", " d"], special_tokens=False)
    segments = [TokenSegment(tuple(first), 0, 1), TokenSegment(tuple(second), 1, 2)]
    starts = [0.1 * index for index in range(8)]
    chances = [0.1, 0.3, 1.0, 0.5, 0.0, 0.6, 0.8]
    words = timed_words(segments, chances, starts, tokenizer, has_spaces=True)
    found = [(w.text, w.start_seconds, w.end_seconds, w.probability) for x in words for w in x]
    assert [len(own) for own in words] == [2, 1]
    assert [text for text, *_ in found] == [" a", " bc", " d"]
    numbers = [number for _, *values in found for number in values]
    assert numbers == pytest.approx([0.0, 0.2, 0.2, 0.2, 0.5, 0.5, 0.5, 0.7, 0.7])
