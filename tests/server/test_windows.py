"""Windows of a text do not depend on whether its tokens' offsets are returned."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from server.text.windows import (
    LengthLimit,
    LongInput,
    TokenizedText,
    TooLongError,
    WindowBudget,
    tokenize_windows,
)

WORDS = ("[CLS]", "[SEP]", "a", "b", "c")


@pytest.fixture(scope="module", params=[False, True], ids=["bare", "framed"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    library = Tokenizer(models.WordLevel({word: id_ for id_, word in enumerate(WORDS)}, "a"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if request.param:
        library.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
        )
    return library


def read(
    tokenizer: Tokenizer, text: str, limit: LengthLimit, *, with_offsets: bool
) -> tuple[TokenizedText | None, WindowBudget]:
    budget = WindowBudget(4, 30)
    encode = tokenizer.encode_batch if with_offsets else tokenizer.encode_batch_fast
    try:
        found = tokenize_windows(
            encode([text])[0], limit, budget, is_pair=False, with_offsets=with_offsets
        )
    except TooLongError:
        return None, budget
    return found, budget


@given(
    words=st.lists(st.sampled_from(WORDS[2:]), max_size=12),
    long_input=st.sampled_from(LongInput),
    max_tokens=st.integers(1, 14),
    more=st.integers(0, 3),
)
def test_offsets_change_no_window(
    tokenizer: Tokenizer, words: list[str], long_input: LongInput, max_tokens: int, more: int
) -> None:
    limit = LengthLimit(long_input, max_tokens, max_tokens + more)
    text = " ".join(words)
    found, budget = read(tokenizer, text, limit, with_offsets=False)
    expected, left = read(tokenizer, text, limit, with_offsets=True)
    assert budget == left
    if expected is None:
        assert found is None
    else:
        assert found == replace(expected, offsets=(), word_ids=())
