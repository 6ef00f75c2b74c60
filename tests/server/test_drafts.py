"""Drafts by prompt lookup: which tokens, how many, and when none."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from server.engine.drafts import MAX_DRAFT_TOKENS, Drafter, continuation

# Few different tokens, so that n-grams repeat.
token_lists = st.lists(st.integers(1, 4), min_size=1, max_size=40)


def searched(tokens: Sequence[int]) -> list[int]:
    """Searches for the latest earlier occurrence of the last three tokens, then of the last two."""
    for size in (3, 2):
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[-size:]:
                return forever(tokens, end)
    return []


def forever(tokens: Sequence[int], start: int) -> list[int]:
    """The next tokens if each is the one that is as far before it as ``start`` is now."""
    longer = [*tokens]
    for index in range(start, start + MAX_DRAFT_TOKENS):
        longer.append(longer[index])
    return longer[len(tokens) :]


@given(token_lists, st.integers(0, 5))
def test_draft_follows_the_latest_occurrence(tokens, max_tokens) -> None:
    assert Drafter().draft(tokens, max_tokens) == searched(tokens)[:max_tokens]


@given(token_lists, st.integers(1, 40))
def test_draft_does_not_depend_on_earlier_calls(tokens, first) -> None:
    """Only the credit does: one call cannot use it up."""
    drafter = Drafter()
    drafter.draft(tokens[:first], MAX_DRAFT_TOKENS)
    assert drafter.draft(tokens, MAX_DRAFT_TOKENS) == searched(tokens)


@given(token_lists, st.data())
def test_continuation_repeats_what_follows(tokens, data) -> None:
    start = data.draw(st.integers(0, len(tokens) - 1))
    assert continuation(tokens, start, MAX_DRAFT_TOKENS) == forever(tokens, start)


def test_wrong_drafts_stop_and_a_right_one_starts_again() -> None:
    """After ``1 2``, the numbers from 10 on follow: each draft is that after the last ``1 2``."""
    drafter, tokens = Drafter(), [1, 2, 10]
    drafts = []
    for number in range(11, 18):
        tokens += [1, 2]
        drafts.append(drafter.draft(tokens, 1))
        tokens.append(number)
    assert drafts == [[10], [11], [12], [13], [], [], []]
    tokens += [1, 2]
    assert not drafter.draft(tokens, 1)
    tokens.append(17)  # as the draft that was not returned
    assert drafter.draft(tokens, 1) == [1]


class CountedTokens(list[int]):
    """A list that counts the tokens that are read."""

    num_read = 0

    def __getitem__(self, index):
        found = super().__getitem__(index)
        self.num_read += len(found) if isinstance(index, slice) else 1
        return found


@given(st.integers(100, 2000), st.integers(1, 40))
def test_a_call_reads_few_tokens(length, num_different) -> None:
    tokens = CountedTokens(index * index % num_different for index in range(length))
    drafter = Drafter()
    drafter.draft(tokens, MAX_DRAFT_TOKENS)
    tokens.append(1)
    tokens.num_read = 0
    drafter.draft(tokens, MAX_DRAFT_TOKENS)
    assert tokens.num_read <= 16
