"""Estimates of waits against the waits that a worker then has, on a simulated clock."""

import random
from collections import deque
from dataclasses import dataclass

import pytest

from server.engine.requests.admission import Admission, AdmissionLimits
from server.engine.requests.job import Cost, GenerationJob
from server.errors import OverloadedError
from tests.server.worker_harness import make_harness

MAX_WAITING, NUM_JOBS = 16, 150
MEAN_TOKENS = 20
COST = Cost(1, MEAN_TOKENS)


@dataclass
class Arrival:
    """A job's estimated and actual wait in steps, and decisions on deadlines by their slack.

    The slack is the time left if it starts at the estimated moment, in mean service times.
    """

    estimate: float
    is_accepted: dict[float, bool]
    actual: float = -1.0


def simulate(num_slots: int, spread: float, *, arrives_in_bursts: bool) -> list[Arrival]:
    """Runs random jobs at a load of about 1. A run of the model takes one second.

    ``spread``: of the jobs' lengths, as a share of the mean.
    """
    rng = random.Random(7)
    harness = make_harness(num_slots=num_slots, max_batched_tokens=64)

    def advance() -> None:
        harness.clock.now += 1.0

    harness.graph.on_run = advance
    running = Cost(num_slots, num_slots * 1000)
    admission = Admission("m", AdmissionLimits(running + Cost(MAX_WAITING, 1 << 20), running))
    arrivals: dict[int, Arrival] = {}
    due = deque(range(NUM_JOBS))
    while due or harness.worker.has_work:
        now = harness.clock.now
        is_burst = arrives_in_bursts and rng.random() < 1 / 40
        num_new = num_slots * 2 if is_burst else rng.random() < num_slots / MEAN_TOKENS
        for _ in range(min(num_new, len(due))):
            if admission.accepted.num_sequences == num_slots + MAX_WAITING:
                break
            id_ = due.popleft()
            arrivals[id_] = Arrival(
                admission.wait_seconds(COST, now),
                {slack: accepts(admission, now, slack * MEAN_TOKENS) for slack in range(5)},
            )
            admission.accept(id_, COST, now)
            length = round(MEAN_TOKENS * rng.uniform(1 - spread, 1 + spread))
            harness.submit(id_, GenerationJob((5,), length))
        if not harness.worker.has_work:
            advance()
        for update in harness.step():
            if update.completion is not None:
                arrivals[update.id].actual = update.completion.queue_seconds
                admission.release(update.id, COST, update.completion, harness.clock.now)
    return list(arrivals.values())[num_slots:]  # the first ones have no estimate


def accepts(admission: Admission, now: float, remaining_seconds: float) -> bool:
    try:
        admission.check(COST, now, remaining_seconds)
    except OverloadedError:
        return False
    return True


@pytest.mark.parametrize(
    ("num_slots", "spread", "mean_error", "max_error"),
    [(1, 0.0, 0.05, 0.5), (2, 0.0, 0.05, 1.0), (8, 0.0, 0.05, 0.4), (8, 0.5, 0.25, 0.8)],
)
def test_estimates_match_waits(
    num_slots: int, spread: float, mean_error: float, max_error: float
) -> None:
    """Errors in mean service times. Deadlines that are met are accepted, others are refused.

    Deadlines closer to the truth than the largest error may be judged wrongly.
    """
    arrivals = simulate(num_slots, spread, arrives_in_bursts=num_slots > 1)
    errors = [(arrival.estimate - arrival.actual) / MEAN_TOKENS for arrival in arrivals]
    assert sum(arrival.actual > MEAN_TOKENS for arrival in arrivals) > NUM_JOBS / 4
    assert sum(map(abs, errors)) / len(errors) < mean_error
    assert abs(sum(errors)) / len(errors) < 0.05, "neither over- nor underestimated"
    assert max(map(abs, errors)) < max_error
    for arrival in arrivals:
        for slack, is_accepted in arrival.is_accepted.items():
            needed = arrival.actual / MEAN_TOKENS
            if abs(slack - needed) > max_error:
                assert is_accepted == (slack > needed)
