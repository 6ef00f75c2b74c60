"""Graphs of decode steps: which runs which step, and the comparison with the decode graph."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from server.engine.cache.slot_tensors import Capacity, SlotTensors
from server.engine.gpu.buckets import Buckets
from server.engine.gpu.compared_logits import MAX_DIFFERENCE, check_logits
from server.engine.gpu.padded_decode import PaddedDecode
from server.runtime.contract import FEW_ROWS, StepGraphs
from server.runtime.cuda.shared_weights import Weight
from server.runtime.host_memory import HostMemory
from server.runtime.memory import Array, Tensor
from server.runtime.ort.backend import OrtBackend
from tests.server.best_decode import BestDecode, BoundBestDecode
from tests.server.fake_backend import FakeDecode, decode_spec
from tests.server.worker_harness import MAX_LENGTH

NUM_SLOTS = FEW_ROWS + 2


class ShiftedDecode(BestDecode):
    """Its steps at positions of ``at`` on give token 0 another probability."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def bind(
        self, states: Mapping[tuple[str, str], Tensor], outputs: Collection[str] | None = None
    ) -> "BoundShiftedDecode":
        del outputs
        return BoundShiftedDecode(self, {name: tensor for (name, _), tensor in states.items()})


class BoundShiftedDecode(BoundBestDecode):
    def __init__(self, graph: ShiftedDecode, states: dict[str, Tensor]) -> None:
        super().__init__(graph, states)
        self._at = graph.at

    def run(self, inputs: Mapping[str, Array | Tensor]) -> dict[str, Array]:
        outputs, cached = super().run(inputs), inputs["num_cached_tokens"]
        assert isinstance(cached, np.ndarray)
        if cached.min() >= self._at:
            outputs["logits"][..., 0] += 2 * MAX_DIFFERENCE
        return outputs


def padded(decode: FakeDecode, steps: StepGraphs) -> PaddedDecode:
    spec = decode_spec(has_source=False, is_recurrent=False)
    capacity = Capacity(NUM_SLOTS, MAX_LENGTH, MAX_LENGTH)
    buckets = Buckets.of(NUM_SLOTS, MAX_LENGTH)
    cache = SlotTensors(spec.states, NUM_SLOTS, MAX_LENGTH, MAX_LENGTH, HostMemory)
    return PaddedDecode(spec, decode, cache, capacity, buckets, HostMemory, steps, has_source=False)


def test_graphs_of_steps_that_agree() -> None:
    few, many = BestDecode(), BestDecode()
    padded(BestDecode(), StepGraphs(few, many)).record()
    for graph in (few, many):
        assert {position for _, cached in graph.steps for position in cached} >= {0, MAX_LENGTH - 1}


@pytest.mark.parametrize("at", [0, 2, MAX_LENGTH - 1])
@pytest.mark.parametrize("differs", ["few", "many"])
def test_graphs_of_steps_that_differ(differs: str, at: int) -> None:
    steps = StepGraphs(BestDecode(), BestDecode())._replace(**{differs: ShiftedDecode(at)})
    with pytest.raises(RuntimeError, match=f"at position {at} differs"):
        padded(BestDecode(), steps).record()


def test_logits_that_are_not_finite_differ() -> None:
    logits = np.zeros((1, 4), np.float32)
    check_logits(logits, logits, 0)
    with pytest.raises(RuntimeError, match="nan"):
        check_logits(np.full_like(logits, np.nan), logits, 0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_shared_weight_is_transposed_once(dtype: Any, tmp_path: Path) -> None:
    array: Array = np.random.default_rng(0).normal(size=(6, 10)).astype(dtype)
    path = tmp_path / "weights"
    path.write_bytes(bytes(4) + array.tobytes())
    backend = OrtBackend("cpu", 1)
    type_ = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    weight = Weight(path, 4, 6, 10, type_)
    value = backend.transposed(weight)
    np.testing.assert_array_equal(value.numpy(), array.T)
    assert backend.transposed(weight) is value


def test_a_cpu_has_no_graphs_of_steps(tmp_path: Path) -> None:
    assert OrtBackend("cpu", 1).load_steps(tmp_path / "decode.onnx", ()) is None
