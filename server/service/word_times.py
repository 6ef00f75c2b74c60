"""Finds when each word of a transcript is said, by dynamic time warping over cross-attention.

The method is that of the code released with Radford et al. 2022 (``whisper/timing.py``): the
attention of some heads follows the speech. Each head's weights are standardized over the tokens and
smoothed over time; the path with the most weight through their mean aligns tokens with times.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from server.service.segments import TokenSegment
from server.service.transcription_request import Word
from server.text.tokenizer import Tokenizer

MEDIAN_WIDTH = 7
_TINY = 1e-30  # replaces a sum or a deviation of 0
# Languages without spaces between words; there, each token with whole characters counts as a word.
LANGUAGES_WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]


class TokenWord(NamedTuple):
    """A word of ``num_tokens`` tokens."""

    text: str
    num_tokens: int


def timed_words(
    segments: Sequence[TokenSegment],
    probabilities: Sequence[float],
    starts: Sequence[float],
    tokenizer: Tokenizer,
    *,
    has_spaces: bool,
) -> list[tuple[Word, ...]]:
    """The words of each segment of a window.

    Args:
        segments: the segments, in order.
        probabilities: the probabilities of the segments' tokens.
        starts: the start of each token, then the end of the last one, in seconds from the start of
            the recording.
        tokenizer: the model's tokenizer.
        has_spaces: whether spaces separate the words of the language.
    """
    words: list[tuple[Word, ...]] = []
    index = 0
    for segment in segments:
        own = []
        for text, size in split_words(segment.token_ids, tokenizer, has_spaces=has_spaces):
            mean = sum(probabilities[index : index + size]) / size
            own.append(Word(text, starts[index], starts[index + size], mean))
            index += size
        words.append(tuple(own))
    return words


def split_words(
    token_ids: Sequence[int], tokenizer: Tokenizer, *, has_spaces: bool
) -> list[TokenWord]:
    """Groups tokens into words: at spaces, or if ``has_spaces`` is false, between characters."""
    words: list[TokenWord] = []
    detokenizer = tokenizer.detokenizer()
    num_pending = 0
    for id_ in token_ids:
        text = detokenizer.push(id_)
        num_pending += 1
        if not text:  # an incomplete character
            continue
        if words and has_spaces and not text.startswith(" "):
            text, num_pending = words[-1].text + text, words.pop().num_tokens + num_pending
        words.append(TokenWord(text, num_pending))
        num_pending = 0
    rest = detokenizer.finish()
    if num_pending:
        last = words.pop() if words else TokenWord("", 0)
        words.append(TokenWord(last.text + rest, last.num_tokens + num_pending))
    return words


def of_heads(attention: Floats, pairs: Sequence[tuple[int, int]]) -> Floats:
    """Selects the weights of (layer, head) ``pairs``: ``[pairs, tokens, vectors]``.

    ``attention`` has shape ``[tokens, layers, heads, vectors]``, with the layers and heads that
    occur in ``pairs``.
    """
    layers, heads = (sorted(set(ids)) for ids in zip(*pairs, strict=True))
    return np.stack([attention[:, layers.index(x), heads.index(y)] for x, y in pairs])


def token_starts(attention: Floats, first_row: int, num_vectors: int) -> Indices:
    """The index of the audio vector at which each token starts.

    Args:
        attention: softmax weights ``[heads, tokens, vectors]`` of a prompt with the text and the
            token after it.
        first_row: the row that predicts the text's first token; the last row is not used.
        num_vectors: number of vectors with sound; padding follows.

    Returns:
        ``[text + 1]``: the starts of the text's tokens, then the end of the last one.
    """
    weights = attention[..., :num_vectors]
    weights = weights / np.maximum(weights.sum(-1, keepdims=True), _TINY)
    mean, deviation = weights.mean(1, keepdims=True), weights.std(1, keepdims=True)
    scores = (weights[:, first_row:-1] - mean) / np.maximum(deviation, _TINY)
    matrix = median_filter(scores).mean(0, dtype=np.float64)
    rows, columns = warp(-matrix)
    is_first = np.diff(rows, prepend=-1) > 0
    return columns[is_first]


def median_filter(values: Floats) -> Floats:
    """Median filter of width :data:`MEDIAN_WIDTH` along the last axis, mirrored at the edges."""
    half = MEDIAN_WIDTH // 2
    if values.shape[-1] <= half:
        return values
    padding = [(0, 0)] * (values.ndim - 1) + [(half, half)]
    padded = np.pad(values, padding, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, MEDIAN_WIDTH, -1)
    medians: Floats = np.partition(windows, half, -1)[..., half]
    return medians


def warp(costs: npt.NDArray[np.float64]) -> tuple[Indices, Indices]:
    """The cheapest path through ``costs [n, m]`` from the first corner to the last one.

    Each step goes to the next row, column, or both (Sakoe and Chiba 1978). Returns the rows and the
    columns of the path.
    """
    num_rows, num_columns = costs.shape
    totals = np.full((num_rows + 1, num_columns + 1), np.inf)
    totals[0, 0] = 0.0
    for diagonal in range(2, num_rows + num_columns + 1):  # row + column; depends on earlier ones
        rows = np.arange(max(1, diagonal - num_columns), min(num_rows, diagonal - 1) + 1)
        columns = diagonal - rows
        best = np.minimum(totals[rows - 1, columns], totals[rows, columns - 1])
        best = np.minimum(best, totals[rows - 1, columns - 1])
        totals[rows, columns] = costs[rows - 1, columns - 1] + best
    row, column = num_rows, num_columns
    path = []
    while row or column:
        path.append((row - 1, column - 1))
        both = totals[row - 1, column - 1] if row and column else np.inf
        above = totals[row - 1, column] if row else np.inf
        before = totals[row, column - 1] if column else np.inf
        if both < above and both < before:
            row, column = row - 1, column - 1
        elif above < both and above < before:
            row -= 1
        else:
            column -= 1
    found = np.array(path[::-1])
    return found[:, 0], found[:, 1]
