"""Rates of runs, and their rooflines."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.compare.candidates import COMPARED, Level
from loadtest.compare.ceilings import bandwidth, highest, measure_ceilings, peak_operations
from loadtest.compare.errors import InvalidResultError, WorkerError
from loadtest.compare.measurements import rate
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
        "bytes_per_second": {"1048576": bytes_per_second},
        "operations_per_second": {"int8": {"AVX2": operations_per_second}},
    }


def test_the_roofline_is_bandwidth_or_arithmetic() -> None:
    decode = _workload(WorkloadKind.DECODE, (128,), 2)
    # SmolLM2 has 134.48 million parameters without norms; the cache holds 11,520 values for each
    # of 129 tokens.
    assert roofline_rate(decode, _ceilings(1e9, 1e20)) == pytest.approx(
        1e9 / (134.48e6 + 129 * 11520), rel=1e-3
    )
    assert roofline_rate(decode, _ceilings(1e20, 1e9)) == pytest.approx(
        1e9 / (2 * 134.48e6), rel=1e-3
    )
    embed = _workload(WorkloadKind.EMBED, (16, 16))
    assert roofline_rate(embed, _ceilings(1e20, 2 * 10_616_832)) == pytest.approx(1.0)
    assert roofline_rate(embed, {"failure": "no engine"}) is None


def test_the_weights_of_a_gguf_need_fewer_bytes_in_fp32() -> None:
    decode = dataclasses.replace(_workload(WorkloadKind.DECODE, (128,), 2), precision="fp32")
    ceilings = {**_ceilings(1e9, 0.0), "operations_per_second": {"fp32": {"AVX2": 1e20}}}
    # 0.625 bytes for each of 106.2 million weights, 1.0625 for the 28.3 million of the head.
    read = 0.625 * 106.17e6 + 1.0625 * 28.31e6 + 2 * 129 * 11520
    assert roofline_rate(decode, ceilings) == pytest.approx(1e9 / read, rel=1e-3)


def test_beams_of_a_source_share_the_first_step() -> None:
    search = _workload(WorkloadKind.TRANSLATE, (30,), 30, beams=4)
    rate_of_4 = roofline_rate(search, _ceilings(1e20, 1e9))
    greedy = roofline_rate(dataclasses.replace(search, beams=1), _ceilings(1e20, 1e9))
    assert rate_of_4 is not None
    assert greedy is not None
    assert greedy / 4 < rate_of_4 < greedy


CEILINGS = {
    "bytes_per_second": {"1000": 90.0, "4000": 40.0, "16000": 50.0, "64000": 10.0},
    "operations_per_second": {
        "fp32": {"AVX2": 3.0, "AVX-512": 6.0},
        "bf16": {"AMX": 70.0},
        "int8": {"AVX2": 10.0, "AVX-512 VNNI": 24.0},
    },
}


@pytest.mark.parametrize(
    ("num_bytes", "rate"), [(10, 90), (1000, 90), (3999, 90), (4000, 50), (5e4, 50), (1e9, 10)]
)
def test_bandwidth_is_that_of_the_next_smaller_read(num_bytes: float, rate: float) -> None:
    assert bandwidth(CEILINGS, num_bytes) == rate


def test_the_peak_is_that_of_the_fastest_arithmetic_at_a_precision() -> None:
    assert peak_operations(CEILINGS, "fp32") == 6.0
    assert peak_operations(CEILINGS, "int8") == 70.0  # weights may be widened to bfloat16
    assert peak_operations(CEILINGS, "int4") == 70.0


def test_the_highest_of_two_measurements_counts() -> None:
    first = {"a": {"x": 1.0, "y": 5.0}, "b": {"z": {"k": 2.0}}}
    second = {"a": {"x": 3.0, "y": 4.0}, "b": {"z": {"k": 1.0}}}
    assert highest(first, second) == {"a": {"x": 3.0, "y": 5.0}, "b": {"z": {"k": 2.0}}}


def test_a_program_that_does_not_run_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "peak").write_text("#!/bin/sh\necho no AVX2 here >&2; exit 1\n")
    (tmp_path / "peak").chmod(0o755)
    with pytest.raises(WorkerError, match="no AVX2 here"):
        measure_ceilings(1, tmp_path)


@pytest.mark.slow
def test_registers_and_memory_are_measured(tmp_path: Path) -> None:
    ceilings = measure_ceilings(1, tmp_path)
    assert peak_operations(ceilings, "fp32") > 1e9
    assert peak_operations(ceilings, "int8") > peak_operations(ceilings, "fp32")
    assert bandwidth(ceilings, 1 << 20) >= bandwidth(ceilings, 1 << 30) > 1e8


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


def test_source_ids_are_in_every_vocabulary() -> None:
    largest = workloads(Task.TRANSLATE, "int8")[-1]
    ids = {id_ for seed in range(20) for row in largest.message(seed)["inputs"] for id_ in row}
    assert max(ids) < 31_999


def test_texts_are_requested_often_enough_to_be_timed() -> None:
    for workload in workloads(Task.TRANSLATE, "int8", Level.TEXT):
        requests = workload.message(1)["requests"]
        assert [len(texts) for texts in requests] == [workload.batch] * workload.num_requests
        assert workload.batch * workload.num_requests >= 64
        texts = [text for request in requests for text in request]
        reply = {"seconds": 2.0, "texts": texts}
        assert rate(workload, reply) == len(texts) / 2
        with pytest.raises(InvalidResultError, match="texts"):
            rate(workload, {"seconds": 2.0, "texts": texts[1:]})
        assert roofline_rate(workload, CEILINGS) is None


def test_mixed_sequences_have_their_own_output_lengths() -> None:
    (workload,) = workloads(Task.TRANSLATE, "int8", Level.STATIC)
    assert workload.message(0)["max_new_tokens"] == list(workload.lengths)
    arrivals = [[1.0 + index for index in range(new)] for new in workload.new_tokens]
    assert rate(workload, {"arrivals": arrivals}) == pytest.approx(
        sum(workload.new_tokens) / max(workload.new_tokens)
    )
    assert roofline_rate(workload, CEILINGS) is None
