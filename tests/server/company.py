"""Jobs of any kind in any company, some of which break their runs: what several tests try."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from server.engine.requests.sequence import GenerationJob
from tests.server.generating import Bench, bench
from tests.server.test_branching import jobs

# A token after which a row's logits are not finite, and one that makes the run raise.
POISON, FAIL = 50, 51
FAULTS: dict[str, Any] = {"poison": POISON, "fail": FAIL}
NUM_SLOTS = 6

Guest = tuple[GenerationJob, int | None, int]
"""A job, the bad token in its prompt if there is one, and the steps before it comes."""


def companies(of: st.SearchStrategy[GenerationJob] | None = None) -> st.SearchStrategy[list[Guest]]:
    """Up to nine jobs, of any kind unless said."""
    one = jobs() if of is None else of
    bad = st.sampled_from([None, None, POISON, FAIL])
    return st.lists(st.tuples(one, bad, st.integers(0, 3)), min_size=1, max_size=9)


def alone(wanted: GenerationJob, **options: Any) -> Bench:
    """What comes of a job that shares nothing."""
    lone = bench(num_slots=NUM_SLOTS, **options, **FAULTS)
    lone.submit(0, wanted)
    lone.run()
    return lone


def run_together(
    mixed: Bench, guests: Sequence[Guest], source: tuple[int, ...] = ()
) -> list[GenerationJob]:
    """Runs all to the end. Returns the jobs as they were submitted, by their ids."""
    wanted = []
    for id_, (one, bad, steps_before) in enumerate(guests):
        prompt = one.prompt if bad is None else (*one.prompt[:-1], bad, one.prompt[-1])
        wanted.append(replace(one, prompt=prompt, source=source))
        for _ in range(steps_before):
            mixed.step()
        mixed.submit(id_, wanted[-1])
    mixed.run()
    return wanted
