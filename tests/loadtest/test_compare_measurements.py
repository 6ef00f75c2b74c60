"""Rates of runs, and their rooflines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.compare.candidates import COMPARED, Level
from loadtest.compare.errors import InvalidResultError
from loadtest.compare.measurements import min_cosine, rate
from loadtest.compare.roofline import roofline_rate
from loadtest.compare.workloads import Workload, WorkloadKind, workloads
from loadtest.tasks import Task


def _workload(
    kind: WorkloadKind, lengths: tuple[int, ...], new: int = 0, beams: int = 1
) -> Workload:
    task = {WorkloadKind.EMBED: Task.EMBED, WorkloadKind.TRANSLATE: Task.TRANSLATE}.get(
        kind, Task.GENERATE
    )
    return Workload(
        task=task,
        kind=kind,
        label="",
        precision="int8",
        lengths=lengths,
        num_new_tokens=new,
        beams=beams,
    )


def test_a_decode_counts_tokens_while_all_sequences_run() -> None:
    arrivals = [[1.0, 2.0, 3.0, 4.0], [2.5, 3.5, 4.5, 5.5]]
    # From 2.5 to 4: 3.0, 3.5 and 4.0.
    assert rate(_workload(WorkloadKind.DECODE, (9, 9), 4), {"arrivals": arrivals}) == pytest.approx(
        2.0
    )


def test_sequences_that_never_run_together_are_no_decode() -> None:
    with pytest.raises(InvalidResultError, match="never decoded together"):
        rate(_workload(WorkloadKind.DECODE, (9, 9), 2), {"arrivals": [[1.0, 2.0], [3.0, 4.0]]})


def test_a_prefill_counts_prompt_tokens_until_the_last_first_token() -> None:
    answer = {"arrivals": [[2.0], [4.0]]}
    assert rate(_workload(WorkloadKind.PREFILL, (9, 11), 1), answer) == 5.0


def test_a_translation_counts_its_output_and_an_embedding_its_input() -> None:
    translation = _workload(WorkloadKind.TRANSLATE, (5, 5), 2)
    assert rate(translation, {"arrivals": [[1.0, 2.0], [2.0, 4.0]]}) == 1.0
    assert rate(translation, {"seconds": 2.0, "num_tokens": 4}) == 2.0
    assert rate(_workload(WorkloadKind.EMBED, (5, 7)), {"seconds": 2.0, "num_tokens": 12}) == 6.0


@pytest.mark.parametrize(
    "answer",
    [
        {"arrivals": [[1.0, 2.0]]},
        {"arrivals": [[1.0], [1.0, 2.0, 3.0]][:1]},
        {"seconds": 1.0, "num_tokens": 3},
    ],
)
def test_missing_tokens_are_an_error(answer: dict) -> None:
    with pytest.raises(InvalidResultError, match="of 4 tokens"):
        rate(_workload(WorkloadKind.TRANSLATE, (5, 5), 2), answer)


@given(
    rows=st.integers(1, 6),
    steps=st.integers(2, 9),
    seconds=st.floats(1e-3, 1e3),
    late=st.floats(0, 9),
)
def test_common_steps_decode_at_the_rate_of_the_steps(
    rows: int, steps: int, seconds: float, late: float
) -> None:
    arrivals = [[late + seconds * index for index in range(steps)]] * rows
    found = rate(_workload(WorkloadKind.DECODE, (3,) * rows, steps), {"arrivals": arrivals})
    assert found == pytest.approx(rows / seconds, rel=1e-6)


def _ceilings(bytes_per_second: float, operations_per_second: float) -> dict:
    return {
        "bytes_per_second": bytes_per_second,
        "operations_per_second": {"int8": operations_per_second},
    }


def test_the_roofline_is_bandwidth_or_arithmetic() -> None:
    decode = _workload(WorkloadKind.DECODE, (128,), 2)
    # SmolLM2 has 134.48 million parameters without norms; the cache holds 11,520 values for each
    # of 129 tokens.
    assert roofline_rate(decode, _ceilings(1e9, 1e20)) == pytest.approx(
        1e9 / (134.48e6 + 129 * 11520 * 4), rel=1e-3
    )
    assert roofline_rate(decode, _ceilings(1e20, 1e9)) == pytest.approx(
        1e9 / (2 * 134.48e6), rel=1e-3
    )
    embed = _workload(WorkloadKind.EMBED, (16, 16))
    assert roofline_rate(embed, _ceilings(1e20, 2 * 10_616_832)) == pytest.approx(1.0)
    assert roofline_rate(embed, {"failure": "no engine"}) is None


@pytest.mark.parametrize("task", COMPARED)
def test_larger_batches_have_no_lower_roofline(task: Task) -> None:
    chosen = [
        workload
        for workload in workloads(task, "int8")
        if workload.kind in {WorkloadKind.DECODE, WorkloadKind.TRANSLATE}
    ]
    for beams in {workload.beams for workload in chosen}:
        rates = [
            roofline_rate(workload, _ceilings(1e10, 1e11)) or 0.0
            for workload in chosen
            if workload.beams == beams
        ]
        assert rates == sorted(rates)
        assert min(rates) > 0


def test_inputs_of_runs_share_no_prefix() -> None:
    for workload in workloads(Task.GENERATE, "int8"):
        rows = [tuple(row[:4]) for seed in range(20) for row in workload.message(seed)["inputs"]]
        assert len(set(rows)) == len(rows)
        assert [len(row) for row in workload.message(3)["inputs"]] == list(workload.lengths)


def test_min_cosine_is_that_of_the_worst_vector() -> None:
    assert min_cosine([[2.0, 0.0], [1.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]) == pytest.approx(0.5**0.5)


def test_source_ids_are_in_every_vocabulary() -> None:
    largest = workloads(Task.TRANSLATE, "int8")[-1]
    ids = {id_ for seed in range(20) for row in largest.message(seed)["inputs"] for id_ in row}
    assert max(ids) < 31_999


def test_mixed_sequences_have_their_own_output_lengths() -> None:
    (workload,) = workloads(Task.TRANSLATE, "int8", Level.STATIC)
    assert workload.message(0)["max_new_tokens"] == list(workload.lengths)
    arrivals = [[1.0 + index for index in range(new)] for new in workload.new_tokens]
    assert rate(workload, {"arrivals": arrivals}) == pytest.approx(
        sum(workload.new_tokens) / max(workload.new_tokens)
    )
    assert (
        roofline_rate(workload, {"operations_per_second": {"int8": 1.0}, "bytes_per_second": 1})
        is None
    )
