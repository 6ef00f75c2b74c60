"""Drafts by prompt lookup: which tokens, how many, and when none."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from server.engine.drafts import FIRST_DRAFT_TOKENS, MAX_DRAFT_TOKENS, Drafter, continuation

# Few different tokens, so that n-grams repeat.
token_lists = st.lists(st.integers(1, 4), min_size=1, max_size=40)


def searched(tokens: Sequence[int]) -> list[int]:
    """Searches for the latest earlier occurrence of the last three tokens, then of the last two."""
    for size in (3, 2):
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[-size:]:
                return forever(tokens, end, FIRST_DRAFT_TOKENS)
    return []


def forever(tokens: Sequence[int], start: int, count: int) -> list[int]:
    """The next ``count`` tokens if each is the one that is as far before it as ``start`` is now."""
    longer = [*tokens]
    for index in range(start, start + count):
        longer.append(longer[index])
    return longer[len(tokens) :]


@given(token_lists, st.integers(0, 5))
def test_draft_follows_the_latest_occurrence(tokens, max_tokens) -> None:
    assert Drafter().draft(tokens, max_tokens) == searched(tokens)[:max_tokens]


@given(token_lists, st.integers(1, 40))
def test_draft_does_not_depend_on_earlier_calls(tokens, first) -> None:
    """Only the credit and the size do: one call cannot use up the credit."""
    drafter = Drafter()
    drafter.draft(tokens[:first], MAX_DRAFT_TOKENS)
    assert drafter.draft(tokens, MAX_DRAFT_TOKENS)[:FIRST_DRAFT_TOKENS] == searched(tokens)


@given(token_lists, token_lists)
def test_a_source_is_searched_as_if_it_came_before(source, tokens) -> None:
    assert Drafter(source).draft(tokens, MAX_DRAFT_TOKENS) == searched([*source, *tokens])


@given(token_lists, token_lists, st.integers(1, 40))
def test_a_source_is_searched_in_later_calls_too(source, tokens, first) -> None:
    drafter = Drafter(source)
    drafter.draft(tokens[:first], MAX_DRAFT_TOKENS)
    found = drafter.draft(tokens, MAX_DRAFT_TOKENS)
    assert found[:FIRST_DRAFT_TOKENS] == searched([*source, *tokens])


def test_right_drafts_are_followed_by_longer_ones_and_wrong_ones_by_short_ones() -> None:
    drafter, source = Drafter(range(100)), list(range(100))
    tokens, sizes = [10, 11], []
    for _ in range(5):
        draft = drafter.draft(tokens, MAX_DRAFT_TOKENS)
        sizes.append(len(draft))
        tokens += draft
    assert sizes == [3, 7, 7, 7, 7]
    assert tokens == source[10 : 12 + sum(sizes)]
    drafter.draft(tokens, MAX_DRAFT_TOKENS)
    tokens += [30, 31]  # not what was drafted
    assert drafter.draft(tokens, MAX_DRAFT_TOKENS) == [32, 33, 34]


@given(token_lists, st.data())
def test_continuation_repeats_what_follows(tokens, data) -> None:
    start = data.draw(st.integers(0, len(tokens) - 1))
    assert continuation(tokens, start, MAX_DRAFT_TOKENS) == forever(tokens, start, MAX_DRAFT_TOKENS)


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
