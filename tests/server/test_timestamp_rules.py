"""Timestamp rules against ``transformers``."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    GenerationConfig,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from server.constraint import Constraint
from server.engine.decoding.options import Beams, LogprobOptions, Sampling
from server.engine.decoding.timestamps import ForcedStart, TimestampRules, TimestampTokens
from tests.server.worker_harness import make_harness, make_job

SIZE, EOS, START, NO_TIMESTAMPS = 40, 12, 13, 19
FIRST = NO_TIMESTAMPS + 1
MAX_FIRST = FIRST + 5
SUPPRESSED = (3, 7, START, 14)
TOKENS = TimestampTokens(
    first_timestamp=FIRST,
    eos=EOS,
    max_first=MAX_FIRST,
    suppressed=(NO_TIMESTAMPS, *SUPPRESSED),
    first_suppressed=(0, EOS),
)
PROMPT = [START, 15]


def expected(history: list[int], logits: np.ndarray) -> np.ndarray:
    config = GenerationConfig(
        eos_token_id=EOS,
        bos_token_id=EOS,
        no_timestamps_token_id=NO_TIMESTAMPS,
        max_initial_timestamp_index=MAX_FIRST - FIRST,
    )
    ids, scores = torch.tensor([[*PROMPT, *history]]), torch.tensor(logits[None])
    for processor in (
        SuppressTokensLogitsProcessor(list(SUPPRESSED)),
        SuppressTokensAtBeginLogitsProcessor([0, EOS], len(PROMPT)),
        WhisperTimeStampLogitsProcessor(config, len(PROMPT)),
    ):
        scores = processor(ids, scores)
    return scores[0].numpy()


@given(seed=st.integers(0, 2**32 - 1), num_tokens=st.integers(0, 24), scale=st.floats(0.5, 6))
def test_rules_match_transformers_on_sampled_histories(
    seed: int, num_tokens: int, scale: float
) -> None:
    random = np.random.default_rng(seed)
    rules: Constraint = TimestampRules(TOKENS)
    history: list[int] = []
    for _ in range(num_tokens + 1):
        logits = random.normal(0, scale, SIZE).astype(np.float32)
        logits[FIRST:] += random.normal(0, 2)
        masked = logits.copy()
        rules.mask(masked)
        np.testing.assert_array_equal(masked, expected(history, logits))
        allowed = np.flatnonzero(masked > -np.inf)
        token = int(random.choice(allowed))
        if token == EOS:
            break
        history.append(token)
        rules = rules.fork()
        rules.advance(token)


def test_rules_match_transformers_after_every_pair_of_tokens() -> None:
    logits = np.random.default_rng(0).normal(0, 1, SIZE).astype(np.float32)
    kinds = (1, 2, FIRST, FIRST + 3, SIZE - 2)
    for first in (FIRST, FIRST + 2):
        for second in kinds:
            for third in kinds:
                history = [first, second, third]
                if second >= FIRST:
                    continue  # no text between: the rules forbid it
                rules = TimestampRules(TOKENS)
                for token in history:
                    rules.advance(token)
                masked = logits.copy()
                rules.mask(masked)
                np.testing.assert_array_equal(masked, expected(history, logits))


def test_a_fork_is_independent() -> None:
    rules = TimestampRules(TOKENS)
    rules.advance(FIRST)
    fork = rules.fork()
    fork.advance(1)
    fork.advance(FIRST + 2)
    masked = np.zeros(SIZE, np.float32)
    rules.mask(masked)
    assert masked[1] == 0
    assert masked[FIRST + 3] == -np.inf


def test_a_forced_start_takes_the_likeliest_choice_and_then_follows_the_rules() -> None:
    start = ForcedStart([(4, 9, 2), (30,)], TimestampRules(TOKENS))
    logits = np.arange(SIZE, dtype=np.float32)
    for token in (9, 30):
        masked = logits.copy()
        start.fork().mask(masked)
        assert np.flatnonzero(masked > -np.inf).tolist() == [token]
        assert masked[token] == logits[token]
        start.advance(token)
    fork = start.fork()
    fork.advance(FIRST)
    masked = logits.copy()
    start.mask(masked)
    np.testing.assert_array_equal(masked, expected([], logits))


@pytest.mark.parametrize(
    "options",
    [
        {"memory": "device", "samples_on_device": True},
        {"memory": "device", "samples_on_device": True, "has_buckets": True},
    ],
)
def test_rules_hold_on_a_device_and_beside_other_jobs(options: dict[str, Any]) -> None:
    tokens = TimestampTokens(first_timestamp=50, eos=0, max_first=60, suppressed=(3, 4))
    constraint = ForcedStart([(7, 8)], TimestampRules(tokens))
    logprobs = LogprobOptions(top_logprobs=0, are_processed=True, first_token_ids=(9, 3))
    plain = replace(make_job([5, 6], 12), constraint=constraint, logprob_options=logprobs)
    jobs = [
        plain,
        replace(plain, sampling=Sampling(0.8, seed=3)),
        replace(plain, beams=Beams(2)),
        make_job([1, 2, 3], 20),
    ]
    mixed = make_harness(num_slots=8, **options)
    for id_, job in enumerate(jobs):
        mixed.submit(id_, job)
    mixed.run()
    for id_, job in enumerate(jobs):
        alone = make_harness(num_slots=8)
        alone.submit(0, job)
        alone.run()
        assert mixed.tokens_of(id_) == alone.tokens_of(0)
        ours, reference = mixed.last_update_of(id_), alone.last_update_of(0)
        expected = pytest.approx(reference.prompt.first_logprobs, abs=1e-5)
        assert ours.prompt.first_logprobs == expected
        if job.constraint is not None:
            assert mixed.tokens_of(id_)[0] in (7, 8)
            assert mixed.tokens_of(id_)[1] in range(50, 61)
