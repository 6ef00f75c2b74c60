"""Random batches that mix all decoding methods with failing jobs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from server.engine.requests.job import GenerationJob
from tests.server.test_forking import generation_jobs
from tests.server.worker_harness import WorkerHarness, make_harness

# POISON makes a row's logits NaN; FAIL makes the whole run raise.
POISON, FAIL = 50, 51
FAULTS: dict[str, Any] = {"poison": POISON, "fail": FAIL}
NUM_SLOTS = 6

Arrival = tuple[GenerationJob, int | None, int]
"""A job, the failing token to insert into its prompt (or None), and steps before it arrives."""


def mixed_batches(
    strategy: st.SearchStrategy[GenerationJob] | None = None,
) -> st.SearchStrategy[list[Arrival]]:
    """Draws one to nine jobs. ``strategy``: default any decoding method."""
    job = generation_jobs() if strategy is None else strategy
    failing_token = st.sampled_from([None, None, POISON, FAIL])
    return st.lists(st.tuples(job, failing_token, st.integers(0, 3)), min_size=1, max_size=9)


def run_alone_with_faults(job: GenerationJob, **options: Any) -> WorkerHarness:
    """Runs one job in a worker of its own that can fail like the batched one."""
    harness = make_harness(num_slots=NUM_SLOTS, **options, **FAULTS)
    harness.submit(0, job)
    harness.run()
    return harness


def run_batched(
    harness: WorkerHarness, arrivals: Sequence[Arrival], source: tuple[int, ...] = ()
) -> list[GenerationJob]:
    """Runs all jobs to completion. Returns the submitted jobs, indexed by id."""
    jobs = []
    for id_, (job, failing_token, steps_before) in enumerate(arrivals):
        prompt = (
            job.prompt
            if failing_token is None
            else (*job.prompt[:-1], failing_token, job.prompt[-1])
        )
        jobs.append(replace(job, prompt=prompt, source=source))
        for _ in range(steps_before):
            harness.step()
        harness.submit(id_, jobs[-1])
    harness.run()
    return jobs
