"""Attention of encoders on CUDA uses a kernel that a check finds accurate on the device."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from server.runtime.cuda import attention_checks
from server.runtime.cuda.attention_checks import AttentionKernel, is_accurate
from server.runtime.memory import Array
from server.runtime.ort.backend import OrtBackend
from tests.server.cuda_graphs import FLOAT16, attention, rewrite, save, type_of
from tests.server.cuda_operators import NEEDS_LIBRARY

pytestmark = NEEDS_LIBRARY


class Emulated:
    """Loads graphs with the operators of CUDA in the emulator."""

    def __init__(self, library: Path) -> None:
        self._library = library

    def __call__(self, model: onnx.ModelProto) -> Any:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.register_custom_ops_library(str(self._library))
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return self

    def bind(self, _: dict[str, Any]) -> "Emulated":
        return self

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        return {"y": self._session.run(["y"], inputs)[0]}


@pytest.mark.parametrize("type_", [FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("head_size", [32, 64, 96, 128])
def test_native_attention_is_accurate(emulated: Path, type_: int, head_size: int) -> None:
    assert is_accurate(AttentionKernel.NATIVE, type_, head_size, Emulated(emulated))


@pytest.mark.parametrize("kind", AttentionKernel)
def test_the_check_finds_attention_that_cannot_run(
    kind: AttentionKernel, caplog: pytest.LogCaptureFixture
) -> None:
    load_model = OrtBackend("cpu", 1).load_model
    assert not is_accurate(kind, TensorProto.BFLOAT16, 64, load_model)
    assert f"{kind.value} cannot run" in caplog.text


@pytest.mark.parametrize("row", [0, 1, 2])
def test_the_check_finds_what_is_not_finite(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, emulated: Path, row: int
) -> None:
    rows = iter(range(3))

    def attended(parts: list[Array], num_keys: int) -> Array:
        found = attend(parts, num_keys)
        return np.full_like(found, np.nan) if next(rows) == row else found

    attend = attention_checks._reference_attention
    monkeypatch.setattr(attention_checks, "_reference_attention", attended)
    assert not is_accurate(AttentionKernel.NATIVE, FLOAT16, 64, Emulated(emulated))
    assert "native attention is wrong by nan" in caplog.text


def test_the_check_accepts_accurate_attention_over_ranges() -> None:
    """The CPU's reads the lengths at the beginning of the ranges, which is right for it."""
    load_model = OrtBackend("cpu", 1).load_model
    assert is_accurate(AttentionKernel.MEMORY_EFFICIENT, TensorProto.FLOAT, 64, load_model)


def test_the_check_finds_other_lengths(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def longer(lengths: Array, max_length: int) -> Array:
        found: Array = np.minimum(lengths + 1, max_length).astype(np.int32)
        return found

    monkeypatch.setattr(attention_checks, "key_ranges", longer)
    load_model = OrtBackend("cpu", 1).load_model
    assert not is_accurate(AttentionKernel.MEMORY_EFFICIENT, TensorProto.FLOAT, 64, load_model)
    assert "is wrong by" in caplog.text


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
    data = rewrite(path, is_accurate=lambda *_: are_taken)
    assert data is not None
    made = {node.op_type: node for node in onnx.ModelProto.FromString(data).graph.node}
    assert made["MultiHeadAttention"].input[-1] == mask
    assert ("KeyRangesFp16" in made) == (mask != "lengths")
