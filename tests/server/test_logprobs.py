"""Logprobs come from the model's logits, before logits processors."""

from dataclasses import replace

import numpy as np
import pytest

from server.constraint import Floats
from server.engine.decoding.bad_words import BadWordIds
from server.engine.decoding.options import (
    Beams,
    LogitsOptions,
    LogprobOptions,
)
from server.engine.decoding.sampling import log_probabilities, token_logprob
from server.engine.requests.lifecycle import Outcome
from tests.server.fake_backend import VOCABULARY, next_logits, reference
from tests.server.test_forking import run_alone
from tests.server.worker_harness import make_harness, make_job


def test_logits_options_change_the_selected_token() -> None:
    unrestricted = run_alone(replace(make_job([8, 9], 12), eos=frozenset())).tokens_of(0)
    first = unrestricted[0]
    banned = replace(
        make_job([8, 9], 12),
        logits_options=LogitsOptions(logit_bias=((first, -100.0),)),
        eos=frozenset(),
    )
    assert first not in run_alone(banned).tokens_of(0)
    word = tuple(unrestricted[2:4])
    without_bad_word = replace(
        make_job([8, 9], 12),
        logits_options=LogitsOptions(bad_word_ids=BadWordIds([word])),
        eos=frozenset(),
    )
    tokens = run_alone(without_bad_word).tokens_of(0)
    assert tokens[:3] == unrestricted[:3]
    assert tokens[3] != unrestricted[3]


class BannedTokens:
    """A constraint that forbids some tokens."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    def mask(self, logits: Floats) -> None:
        logits[self._tokens] = -np.inf

    def advance(self, token: int) -> None:
        assert token not in self._tokens

    def fork(self) -> "BannedTokens":
        return self


def test_prompt_logprobs_cover_all_positions() -> None:
    prompt = [(7 * k) % 96 + 1 for k in range(30)]
    for budget in (64, 5):
        harness = make_harness(max_batched_tokens=budget)
        harness.submit(
            0, replace(make_job(prompt, 0), logprob_options=LogprobOptions(prompt_logprobs=3))
        )
        harness.submit(1, make_job([3, 4], 5))
        harness.run()
        published = harness.last_update_of(0).prompt.logprobs
        assert len(published) == 29
        for index, row in enumerate(published, 1):
            expected = log_probabilities(next_logits(prompt[:index]))
            assert row.logprob == pytest.approx(expected[prompt[index]], abs=1e-5)
            assert row.top[0][0] == int(expected.argmax())
        assert harness.completions_of(0)[0].outcome == Outcome.LENGTH
        assert harness.tokens_of(0) == []
        assert harness.tokens_of(1) == reference([3, 4], 5)


def test_logprobs_ignore_logits_processors() -> None:
    job = replace(
        make_job([8, 9], 5),
        logits_options=LogitsOptions(logit_bias=((11, 50.0),)),
        logprob_options=LogprobOptions(top_logprobs=2),
        eos=frozenset(),
    )
    alone = run_alone(job)
    rows = [row for update in alone.updates for row in update.logprobs]
    assert alone.tokens_of(0) == [11] * 5
    expected = log_probabilities(next_logits([8, 9]))
    assert rows[0].logprob == pytest.approx(expected[11], abs=1e-5)
    assert rows[0].top[0][0] == int(expected.argmax())
    assert rows[0].top[0][1] == pytest.approx(expected.max(), abs=1e-5)


@pytest.mark.parametrize("beams", [None, Beams(2)])
def test_processed_logprobs_are_those_of_the_allowed_tokens(beams: Beams | None) -> None:
    allowed = [11, 12, 40]
    banned = [token for token in range(VOCABULARY) if token not in allowed]
    job = replace(
        make_job([8, 9], 1),
        constraint=BannedTokens(banned),
        beams=beams,
        logprob_options=LogprobOptions(top_logprobs=0, are_processed=True),
        eos=frozenset(),
    )
    last = run_alone(job).last_update_of(0)
    expected = log_probabilities(next_logits([8, 9])[allowed])
    assert last.tokens == (allowed[int(expected.argmax())],)
    assert last.logprobs[0].logprob == pytest.approx(expected.max(), abs=1e-5)


@pytest.mark.parametrize("prompt", [[8], [8, 9, 30]])
@pytest.mark.parametrize("beams", [None, Beams(2)])
def test_logprobs_of_given_tokens_follow_the_prompt(prompt: list[int], beams: Beams | None) -> None:
    ids = (17, 3)
    options = LogprobOptions(first_token_ids=ids)
    alone = run_alone(replace(make_job(prompt, 4), beams=beams, logprob_options=options))
    expected = log_probabilities(next_logits(prompt))[list(ids)]
    last = alone.last_update_of(0)
    assert last.prompt.first_logprobs == pytest.approx(tuple(expected), abs=1e-5)
    if beams is None:
        assert alone.tokens_of(0) == reference(prompt, 4)


def test_tokens_outside_of_a_shortlist_are_not_among_the_top() -> None:
    logits = np.full(500, -np.inf, np.float32)
    logits[[7, 300, 42]] = [1.0, 3.0, 2.0]
    found = token_logprob(logits, 300, num_top=5)
    assert [id_ for id_, _ in found.top] == [300, 42, 7]
    assert np.exp([logprob for _, logprob in found.top]).sum() == pytest.approx(1.0)
