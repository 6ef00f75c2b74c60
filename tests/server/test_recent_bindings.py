"""Bound graphs hold logits: only those of the latest runs are kept."""

import random
from typing import Any

from server.engine.recent_bindings import RecentBindings
from tests.server.worker_harness import make_harness, make_job

MAX_SLOTS = 8


def test_the_latest_are_kept_up_to_the_limit() -> None:
    made: list[tuple[int, int]] = []

    def bind(first_slot: int, num_slots: int) -> Any:
        made.append((first_slot, num_slots))
        return object()

    bindings = RecentBindings(bind, MAX_SLOTS)
    first = bindings.of(0, 3)
    second = bindings.of(0, 4)
    assert bindings.of(0, 3) is first
    bindings.of(3, 1)
    assert bindings.of(0, 4) is second
    bindings.of(4, 1)  # (0, 3) ran longest ago, (3, 1) after it
    assert bindings.of(0, 4) is second
    bindings.of(3, 1)
    assert bindings.of(0, 3) is not first
    assert made == [(0, 3), (0, 4), (3, 1), (4, 1), (0, 3)]
    bindings.of(0, 20)
    assert list(bindings._bound) == [(0, 20)]


def test_a_worker_keeps_few_logits() -> None:
    rng = random.Random(0)
    harness = make_harness(num_slots=6)
    for id_ in range(30):
        harness.submit(id_, make_job([rng.randrange(1, 97)] * rng.randrange(1, 9), 5))
        for _ in range(rng.randrange(4)):
            harness.step()
    harness.run()
    bound = harness.worker._runner._runs._bindings._bound
    assert bound
    assert sum(count for _, count in bound) <= 12
