"""Random batches of jobs of all kinds, some of which fail."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from server.engine.requests.job import GenerationJob
from tests.server.generating import Bench, bench
from tests.server.test_branching import jobs

# A token after which logits are not finite, and one that makes the run raise.
POISON, FAIL = 50, 51
FAULTS: dict[str, Any] = {"poison": POISON, "fail": FAIL}
NUM_SLOTS = 6

Guest = tuple[GenerationJob, int | None, int]
"""A job, the failing token in its prompt if there is one, and the steps before it arrives."""


def companies(of: st.SearchStrategy[GenerationJob] | None = None) -> st.SearchStrategy[list[Guest]]:
    """Up to nine jobs from a strategy; of any kind if it is None."""
    one = jobs() if of is None else of
    bad = st.sampled_from([None, None, POISON, FAIL])
    return st.lists(st.tuples(one, bad, st.integers(0, 3)), min_size=1, max_size=9)


def alone(wanted: GenerationJob, **options: Any) -> Bench:
    """Runs a job alone."""
    lone = bench(num_slots=NUM_SLOTS, **options, **FAULTS)
    lone.submit(0, wanted)
    lone.run()
    return lone


def run_together(
    mixed: Bench, guests: Sequence[Guest], source: tuple[int, ...] = ()
) -> list[GenerationJob]:
    """Runs all jobs to the end. Returns them as they were submitted, by id."""
    wanted = []
    for id_, (one, bad, steps_before) in enumerate(guests):
        prompt = one.prompt if bad is None else (*one.prompt[:-1], bad, one.prompt[-1])
        wanted.append(replace(one, prompt=prompt, source=source))
        for _ in range(steps_before):
            mixed.step()
        mixed.submit(id_, wanted[-1])
    mixed.run()
    return wanted
