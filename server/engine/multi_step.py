"""Multi-step scheduling: several runs of the decoder by one plan, for whole outputs.

With a small model, much of the time of a step is spent on planning, counting and publishing.
"""

import math
from collections.abc import Callable, Sequence
from operator import contains
from typing import NamedTuple

from server.engine.model_runner import ModelRunner
from server.engine.run_inputs import Chunk


class Runs(NamedTuple):
    """Runs over the same sequences.

    ``tokens``: of each run, the next token of each sequence; None if its logits are not finite.
    ``times``: when the first run began, then when each ended, in seconds.
    """

    tokens: list[list[int | None]]
    times: list[float]


def decode_runs(
    runner: ModelRunner,
    chunks: Sequence[Chunk],
    first_slot: int,
    max_runs: int,
    clock: Callable[[], float],
    may_continue: Callable[[], bool],
) -> Runs:
    """Decodes the likeliest tokens until one is the last of its sequence.

    Args:
        runner: runs the model.
        chunks: of one token each, of sequences in adjacent slots.
        first_slot: of the first.
        max_runs: at least one.
        clock: returns seconds. No run begins after the deadline of a sequence.
        may_continue: no run but the first begins while it returns False.

    Raises:
        Exception: a run failed. All can be repeated.
    """
    sequences = [chunk.sequence for chunk in chunks]
    ends = [sequence.job.eos for sequence in sequences]
    deadlines = [sequence.deadline for sequence in sequences if sequence.deadline is not None]
    deadline = min(deadlines, default=math.inf)
    runs = Runs([], [clock()])
    for tokens in runner.decode_greedily(chunks, first_slot):
        now = clock()
        runs.tokens.append(tokens)
        runs.times.append(now)
        if len(runs.tokens) == max_runs or now >= deadline or not may_continue():
            break
        if any(map(contains, ends, tokens)):
            break
    return runs
