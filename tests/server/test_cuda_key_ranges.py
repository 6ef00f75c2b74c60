"""Attention of encoders on CUDA takes ranges of keys only where a check finds that it does so."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto

from server.runtime.cuda import key_ranges
from server.runtime.memory import Array
from server.runtime.ort.backend import OrtBackend
from tests.server.cuda_graphs import FLOAT16, attention, rewrite, save, type_of
from tests.server.cuda_operators import NEEDS_LIBRARY

pytestmark = NEEDS_LIBRARY


def test_the_check_accepts_right_attention() -> None:
    """The CPU's reads the lengths at the beginning of the ranges, which is right for it."""
    assert key_ranges.are_taken(OrtBackend("cpu", 1).load_model, TensorProto.FLOAT)


def test_the_check_finds_other_lengths(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def longer(lengths: Array, max_length: int) -> Array:
        found: Array = np.minimum(lengths + 1, max_length).astype(np.int32)
        return found

    monkeypatch.setattr(key_ranges, "ranges_of", longer)
    assert not key_ranges.are_taken(OrtBackend("cpu", 1).load_model, TensorProto.FLOAT)
    assert "is wrong by" in caplog.text


def test_the_check_finds_attention_that_cannot_run(caplog: pytest.LogCaptureFixture) -> None:
    assert not key_ranges.are_taken(OrtBackend("cpu", 1).load_model, TensorProto.BFLOAT16)
    assert "cannot run" in caplog.text


@pytest.mark.parametrize(
    ("type_", "are_taken", "mask"),
    [
        pytest.param(FLOAT16, True, "attended.ranges", id="ranges"),
        pytest.param(FLOAT16, False, "lengths", id="not taken"),
        pytest.param(type_of(ml_dtypes.bfloat16), True, "lengths", id="bf16"),
    ],
)
def test_attention_takes_lengths_otherwise(
    tmp_path: Path, type_: int, are_taken: bool, mask: str
) -> None:
    path = save(attention({}, type_=type_), tmp_path)
    data = rewrite(path, takes_ranges=lambda: are_taken)
    assert data is not None
    made = {node.op_type: node for node in onnx.ModelProto.FromString(data).graph.node}
    assert made["MultiHeadAttention"].input[-1] == mask
    assert ("KeyRangesFp16" in made) == (mask != "lengths")
