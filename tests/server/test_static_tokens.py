"""Texts as a static embedding model reads them: without the unknown token, and never empty."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import models, pre_tokenizers

from model.bundle import StaticTokens
from server.text.tokenizer import Tokenizer
from server.text.windows import LengthLimit, LongInput, TokenizedText, WindowBudget

UNKNOWN, BLANK, WIDTH = 0, 4, 3  # a word and the space after it have WIDTH characters
WORDS = ("aa", "bb", "cc")
IDS = {"[UNK]": UNKNOWN, **{word: index for index, word in enumerate(WORDS, 1)}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    library = HuggingFaceTokenizer(models.WordLevel(IDS, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = tmp_path_factory.mktemp("static") / "tokenizer.json"
    library.save(str(path))
    return Tokenizer(path)


def read(
    tokenizer: Tokenizer,
    text: str,
    limit: LengthLimit,
    *,
    characters_per_token: int | None = None,
    with_offsets: bool = False,
) -> TokenizedText:
    tokens = StaticTokens(blank=BLANK, ignored=UNKNOWN, characters_per_token=characters_per_token)
    (found,) = tokenizer.tokenize_windows(
        *([text], None, limit, WindowBudget(100, 1000)),
        with_offsets=with_offsets,
        static_tokens=tokens,
    )
    return found


TEXTS = st.lists(st.sampled_from([*WORDS, "??"]), max_size=12)


@given(
    words=TEXTS,
    long_input=st.sampled_from(
        [LongInput.TRUNCATE_LEFT, LongInput.TRUNCATE_RIGHT, LongInput.WINDOWS]
    ),
    max_tokens=st.integers(1, 14),
    per_token=st.sampled_from([None, WIDTH, 2 * WIDTH]),
)
def test_keeps_known_tokens_of_what_is_not_cut(
    tokenizer: Tokenizer,
    words: list[str],
    long_input: LongInput,
    max_tokens: int,
    per_token: int | None,
) -> None:
    limit = LengthLimit(long_input, max_tokens, max_tokens, stride=0)
    with_offsets = long_input != LongInput.WINDOWS
    text = " ".join(words)
    found = read(
        *(tokenizer, text, limit), characters_per_token=per_token, with_offsets=with_offsets
    )
    kept = words
    if long_input == LongInput.TRUNCATE_RIGHT:
        kept = words[:max_tokens]
    elif long_input == LongInput.TRUNCATE_LEFT:
        kept = words[-max_tokens:]
    expected = [IDS[word] for word in kept if word in IDS]
    ids = [id_ for window in found.windows for id_ in window.token_ids]
    assert ids == (expected or [BLANK])
    assert all(window.token_ids for window in found.windows)
    assert sum(window.num_text_tokens for window in found.windows) == len(expected)
    assert found.num_truncated_tokens == len(words) - len(kept)
    if with_offsets:
        spans = found.offsets[found.windows[0].first_token :]
        assert [text[start:end] for start, end in spans] == [x for x in kept if x in IDS]
        assert len(found.word_ids) == len(found.offsets)


def test_characters_are_cut_before_tokens(tokenizer: Tokenizer) -> None:
    limit = LengthLimit(LongInput.TRUNCATE_RIGHT, 3, 3)
    found = read(tokenizer, "aa bb cc aa bb", limit, characters_per_token=2)
    assert found.windows[0].token_ids == (IDS["aa"], IDS["bb"])
    assert found.num_truncated_tokens == 3
    left = LengthLimit(LongInput.TRUNCATE_LEFT, 3, 3)
    found = read(tokenizer, "aa bb cc aa bb", left, characters_per_token=2)
    assert found.windows[0].token_ids == (IDS["cc"], IDS["aa"], IDS["bb"])


@pytest.mark.parametrize("long_input", LongInput)
@pytest.mark.parametrize("text", ["", "?? ??"])
def test_a_text_without_tokens_is_blank(
    tokenizer: Tokenizer, text: str, long_input: LongInput
) -> None:
    limit = LengthLimit(long_input, 5, 5)
    found = read(tokenizer, text, limit, with_offsets=True)
    (window,) = found.windows
    assert (window.token_ids, window.segment_ids, window.num_text_tokens) == ((BLANK,), (0,), 0)
    assert found.offsets == ()
