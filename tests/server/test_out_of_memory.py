"""Without memory for a run, its requests fail and are told why; the others go on.

The errors are those of ONNX Runtime on a CPU, whose arena is that of a GPU: it is asked for more
memory than there are addresses.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from server.engine.decoding.options import Beams, Sampling
from server.engine.encoder_batch import BatchLimits
from server.engine.failures import OUT_OF_MEMORY, RUN_FAILED
from server.engine.requests.job import EncodingJob
from server.engine.requests.update import Completion
from server.errors import Code, InternalError, Limit, OverloadedError
from server.out_of_memory import is_out_of_memory
from server.runtime.cuda.cudart import CudaError
from server.runtime.cuda.recording import pinned_words
from server.runtime.ort.backend import OrtBackend
from server.runtime.ort.graph import OrtGraph
from server.service.usage import error_of
from tests.cuda.libraries import StandIn
from tests.server.fake_backend import reference
from tests.server.fake_encoder import make_encoder_worker
from tests.server.worker_harness import make_harness, make_job

TOO_MANY = 1 << 44  # elements, of 4 bytes


def allocate_too_much() -> None:
    """Raises what ONNX Runtime raises if its arena cannot grow."""
    OrtBackend("cpu", 1).zeros((TOO_MANY,), np.dtype(np.float32))


def fail_at(*numbers: int) -> Any:
    """A function that does :func:`allocate_too_much` in its calls of these numbers, from 1 on."""
    calls = [0]

    def call() -> None:
        calls[0] += 1
        if calls[0] in numbers:
            allocate_too_much()

    return call


def test_errors_of_onnx_runtime_and_numpy_are_recognised() -> None:
    with pytest.raises(Exception, match="Failed to allocate memory") as of_arena:
        allocate_too_much()
    with pytest.raises(MemoryError) as of_numpy:
        np.empty(1 << 60, np.uint8)
    assert is_out_of_memory(of_arena.value)
    assert is_out_of_memory(of_numpy.value)
    caused = RuntimeError("the step failed")
    caused.__cause__ = of_arena.value
    assert is_out_of_memory(caused)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc((void**)&p, size);", True),
        ("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0", True),
        ("cuLaunchKernel: CUDA_ERROR_OUT_OF_MEMORY", True),
        ("std::bad_alloc", True),
        ("CUDA failure 700: an illegal memory access was encountered", False),
        ("the run fails", False),
    ],
)
def test_messages_of_cuda_are_recognised(message: str, *, expected: bool) -> None:
    assert is_out_of_memory(RuntimeError(message)) is expected


@pytest.mark.parametrize(("error", "expected"), [(2, True), (700, False)])
def test_errors_of_the_cuda_runtime_are_recognised(
    cuda: StandIn, error: int, *, expected: bool
) -> None:
    cuda.fail("cudaHostAlloc", error)
    with pytest.raises(CudaError, match=f"cudaHostAlloc: error {error}, ") as failure:
        pinned_words(1)
    assert is_out_of_memory(failure.value) is expected


def test_the_caller_is_told() -> None:
    error = error_of(Completion(OUT_OF_MEMORY.outcome, 0.0, 0.0, 0.0, OUT_OF_MEMORY.failure))
    assert isinstance(error, OverloadedError)
    assert (error.code, error.limit) == (Code.RESOURCE_EXHAUSTED, Limit.DEVICE_MEMORY)
    assert "memory" in str(error)
    other = error_of(Completion(RUN_FAILED.outcome, 0.0, 0.0, 0.0, RUN_FAILED.failure))
    assert isinstance(other, InternalError)


def hungry_encoder() -> OrtGraph:
    """An encoder that needs ``TOO_MANY`` elements for each token 1 of a batch, and adds zero."""
    nodes = [
        helper.make_node("Equal", ["token_ids", "one"], ["are_one"]),
        helper.make_node("Cast", ["are_one"], ["ones"], to=TensorProto.INT64),
        helper.make_node("ReduceSum", ["ones"], ["count"], keepdims=0),
        helper.make_node("Mul", ["count", "too_many"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
        helper.make_node("ReduceSum", ["zeros"], ["zero"], keepdims=0),
        helper.make_node("Cast", ["token_ids"], ["values"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["values", "last_axis"], ["sums"], keepdims=1),
        helper.make_node("Add", ["sums", "zero"], ["vectors"]),
    ]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("token_ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["batch", 1])],
        [
            helper.make_tensor("one", TensorProto.INT64, [], [1]),
            helper.make_tensor("too_many", TensorProto.INT64, [1], [TOO_MANY]),
            helper.make_tensor("last_axis", TensorProto.INT64, [1], [1]),
        ],
    )
    opsets = [helper.make_opsetid("", 21)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return OrtBackend("cpu", 1).load_model(model)


def test_texts_that_need_too_much_fail_alone() -> None:
    encoder: Any = make_encoder_worker(hungry_encoder(), BatchLimits(100))  # type: ignore[arg-type]
    texts = [(2, 4), (2, 1), (2, 6)]
    for round_number in range(2):
        for id_, text in enumerate(texts):
            encoder.submit(10 * round_number + id_, EncodingJob(text))
        updates = encoder.step()
        failed, *done = sorted(updates, key=lambda update: update.completion.outcome, reverse=True)
        assert (failed.completion.outcome, failed.completion.failure) == OUT_OF_MEMORY
        assert [update.encoded.vector[0] for update in done] == [6.0, 8.0]


@pytest.mark.parametrize("memory", ["host", "device"])
def test_a_sequence_that_finds_no_memory_fails_alone(memory: str) -> None:
    harness = make_harness(memory=memory)
    harness.graph.on_run = fail_at(1, 2)  # the batch, then its first sequence alone
    for id_ in range(3):
        harness.submit(id_, make_job([5 + id_, 6], 8))
    harness.run()
    (end,) = harness.completions_of(0).values()
    assert (end.outcome, end.failure) == OUT_OF_MEMORY
    for id_ in (1, 2):
        assert harness.tokens_of(id_) == reference([5 + id_, 6], 8)
    harness.submit(3, make_job([5, 6], 8))
    harness.run()
    assert harness.tokens_of(3) == reference([5, 6], 8), "there is memory again"


def test_a_source_that_finds_no_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = make_harness(has_source=True)
    write, fail = harness.cache.write_cross, fail_at(1)
    monkeypatch.setattr(harness.cache, "write_cross", lambda *args: (fail(), write(*args)))
    harness.submit(0, make_job([5], 4, source=(3, 4)))
    harness.run()
    (end,) = harness.completions_of(0).values()
    assert (end.outcome, end.failure) == OUT_OF_MEMORY


def test_no_memory_to_sample_fails_the_run_and_not_the_lane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness: Any = make_harness(memory="device", samples_on_device=True)
    select, fail = harness.worker._selector.select, fail_at(1)
    monkeypatch.setattr(
        harness.worker._selector, "select", lambda *args: (fail(), select(*args))[1]
    )
    harness.submit(0, replace(make_job([5, 6], 4), sampling=Sampling(1.0, seed=1)))
    harness.step()
    (end,) = harness.completions_of(0).values()
    assert (end.outcome, end.failure) == OUT_OF_MEMORY
    harness.submit(1, make_job([5, 6], 8))
    harness.run()
    assert harness.tokens_of(1) == reference([5, 6], 8)


def test_no_memory_to_fork_fails_the_search_and_not_the_lane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness: Any = make_harness(is_recurrent=False)
    copy, fail = harness.worker._slots.copy, fail_at(2)
    monkeypatch.setattr(harness.worker._slots, "copy", lambda copies: (fail(), copy(copies)))
    harness.submit(0, make_job([7, 8], 12))
    harness.submit(1, replace(make_job([5, 6], 12), beams=Beams(3)))
    harness.run()
    (end,) = harness.completions_of(1).values()
    assert (end.outcome, end.failure) == OUT_OF_MEMORY
    assert harness.tokens_of(0) == reference([7, 8], 12)
    assert harness.worker.stats.num_running == 0


def test_inputs_that_found_no_memory_are_bound_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer that could not be allocated must not be used for inputs of the next run."""
    graph = OrtBackend("cpu", 1, has_device_memory=True).load_model(
        helper.make_model(
            helper.make_graph(
                [helper.make_node("Neg", ["x"], ["y"])],
                "g",
                [helper.make_tensor_value_info("x", TensorProto.INT64, ["n"])],
                [helper.make_tensor_value_info("y", TensorProto.INT64, ["n"])],
            ),
            opset_imports=[helper.make_opsetid("", 21)],
            ir_version=10,
        )
    )
    bound = graph.bind({})
    assert bound.run({"x": np.arange(3)})["y"].tolist() == [0, -1, -2]
    allocate, fail = graph.allocate_words, fail_at(1)
    monkeypatch.setattr(graph, "allocate_words", lambda count: (fail(), allocate(count))[1])
    longer = np.arange(400)
    with pytest.raises(Exception, match="Failed to allocate memory"):
        bound.run({"x": longer})
    np.testing.assert_array_equal(bound.run({"x": longer})["y"], -longer)
    assert bound.run({"x": np.arange(3)})["y"].tolist() == [0, -1, -2]


@pytest.mark.parametrize("change", [{"beams": Beams(2)}, {"num_outputs": 2}])
def test_no_memory_for_a_new_slot_fails_the_job_and_loses_no_slot(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness: Any = make_harness()
    copy, fail = harness.cache.copy, fail_at(1)
    monkeypatch.setattr(harness.cache, "copy", lambda *args: (fail(), copy(*args)))
    harness.submit(0, make_job([7, 8], 12))
    harness.submit(1, replace(make_job([5, 6], 12), **change))
    while harness.worker.has_work:
        harness.step()
        harness.worker.check()
    assert {(end.outcome, end.failure) for end in harness.completions_of(1).values()} == {
        OUT_OF_MEMORY
    }
    assert harness.tokens_of(0) == reference([7, 8], 12)
    assert harness.worker.stats.num_running == 0
