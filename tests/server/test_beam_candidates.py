"""Which next tokens a beam search considers: few of them, but all that can count."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from server.engine.decoding.beam import BeamSearch, Branch
from server.engine.decoding.options import Beams, EarlyStopping
from server.runtime.host_ops import TopTokens

VOCABULARY = 40


@st.composite
def rankings(draw: st.DrawFn) -> TopTokens:
    """All allowed tokens of the vocabulary, the likeliest first."""
    tokens = draw(st.permutations(range(VOCABULARY)))
    steps = draw(st.lists(st.floats(0.01, 2), min_size=VOCABULARY, max_size=VOCABULARY))
    num_allowed = draw(st.integers(0, VOCABULARY))
    logprobs, logprob = [], 0.0
    for step in steps:
        logprob -= step
        logprobs.append(logprob)
    return TopTokens(list(tokens)[:num_allowed], logprobs[:num_allowed], 0.0, 0.0)


def truncated(top: TopTokens, count: int) -> TopTokens:
    return top._replace(tokens=top.tokens[:count], logprobs=top.logprobs[:count])


def exhaustive_branches(search: BeamSearch, rows: Sequence[TopTokens]) -> list[Branch]:
    """The best hypotheses among those that ``generate`` of ``transformers`` considers."""
    size = search.beams.size
    every = sorted(
        (
            (live.score + logprob, -parent, token)
            for parent, (live, row) in enumerate(zip(search.live, rows, strict=True))
            for token, logprob in zip(row.tokens, row.logprobs, strict=True)
        ),
        key=lambda candidate: candidate[:2],
        reverse=True,
    )[: (1 + len(search.eos)) * max(size, 2)]
    going_on = [(-parent, token) for _, parent, token in every if token not in search.eos]
    return [Branch(parent, token) for parent, token in going_on[:size]]


@given(
    st.integers(1, 5),
    st.frozensets(st.integers(0, VOCABULARY - 1), max_size=12),
    st.lists(st.lists(rankings(), min_size=5, max_size=5), min_size=1, max_size=4),
)
def test_few_tokens_give_the_hypotheses_of_all(
    size: int, eos: frozenset[int], steps: list[list[TopTokens]]
) -> None:
    beams = Beams(size, early_stopping=EarlyStopping.NEVER)
    few, all_ = (BeamSearch(beams, eos, 10**6) for _ in range(2))
    for rows in steps:
        expected = exhaustive_branches(all_, rows[: len(all_.live)])
        branches = all_.advance(rows[: len(all_.live)])
        kept = [truncated(row, few.num_candidates) for row in rows[: len(few.live)]]
        assert few.advance(kept) == branches
        assert (few.live, few.finished) == (all_.live, all_.finished)
        if all_.is_over:
            break
        assert branches == expected


def test_many_end_tokens_need_few_candidates() -> None:
    search = BeamSearch(Beams(32), frozenset(range(1025)), 100)
    assert search.num_candidates == 32 + 1025


def test_finished_hypotheses_stay_in_order() -> None:
    search = BeamSearch(Beams(3), frozenset({0}), 1)
    search.advance([TopTokens([4, 0, 7], [-1.0, -2.0, -3.0], 0.0, 0.0)])
    scores = [hypothesis.score for hypothesis in search.finished]
    assert all(a >= b for a, b in pairwise(scores))
    assert len(scores) == 3


def test_a_search_without_allowed_tokens_returns_no_hypothesis_that_goes_on() -> None:
    search = BeamSearch(Beams(2), frozenset({0}), 10)
    search.advance([TopTokens([5], [-0.5], 0.0, 0.0)])  # the only token that is allowed
    search.advance([TopTokens([0], [-0.1], 0.0, 0.0)])
    assert search.is_over
    assert [hypothesis.tokens for hypothesis in search.best(2)] == [(5, 0)]
    dead_end = BeamSearch(Beams(2), frozenset({0}), 10)
    dead_end.advance([TopTokens([5], [-0.5], 0.0, 0.0)])
    dead_end.advance([TopTokens([], [], 0.0, 0.0)])
    assert (dead_end.is_over, dead_end.best(2)) == (True, [])
