"""Multi-step scheduling: one plan for several runs of the decoder, if outputs are delivered whole.

With a small model, planning, counting and publishing take much of the time of a step.
"""

import math
from collections.abc import Callable, Sequence
from operator import contains
from typing import NamedTuple

from server.engine.clock import Clock
from server.engine.model_runner import ModelRunner
from server.engine.run_inputs import Chunk


class ManyRuns(NamedTuple):
    """The results of several runs over the same sequences.

    ``tokens``: for each run, the next token of each sequence; None if its logits are not finite.
    ``times``: when the first run began, then when each run ended, in seconds.
    """

    tokens: list[list[int | None]]
    times: list[float]


def decode_runs(
    runner: ModelRunner,
    chunks: Sequence[Chunk],
    first_slot: int,
    max_runs: int,
    clock: Clock,
    may_continue: Callable[[], bool],
) -> ManyRuns:
    """Decodes the likeliest tokens until a sequence ends, or a limit below is reached.

    Args:
        runner: runs the model.
        chunks: one token of each sequence; the sequences have adjacent slots.
        first_slot: the slot of the first sequence.
        max_runs: the most runs, at least one.
        clock: returns seconds. No further run begins after a sequence's deadline.
        may_continue: returns False to stop after the current run.

    Raises:
        Exception: a run failed. All runs can be repeated.
    """
    sequences = [chunk.sequence for chunk in chunks]
    ends = [sequence.job.eos for sequence in sequences]
    deadlines = [sequence.deadline for sequence in sequences if sequence.deadline is not None]
    deadline = min(deadlines, default=math.inf)
    runs = ManyRuns([], [clock()])
    for tokens in runner.decode_greedily(chunks, first_slot):
        now = clock()
        runs.tokens.append(tokens)
        runs.times.append(now)
        if len(runs.tokens) == max_runs or now >= deadline or not may_continue():
            break
        if any(map(contains, ends, tokens)):
            break
    return runs
