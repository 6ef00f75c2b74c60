"""Graphs compute what their modules compute, whether their programs are decomposed or not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from export.decomposition import to_onnx


class Module(nn.Module):
    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x)


def add_in_place(x: Tensor) -> Tensor:
    y = x * 2
    view = y[:, 1:]
    view.add_(1)
    return y


def near_the_mean(x: Tensor) -> Tensor:
    high, low = x > x.mean(), x < x.mean() + 1
    return torch.where(high & low | (x == 0), x.to(torch.int32).to(torch.float32), x.to(x.dtype))


def normalized(x: Tensor) -> Tensor:
    return nn.functional.rms_norm(x, x.shape[-1:], eps=1e-5).softmax(-1)


def copied(x: Tensor) -> Tensor:
    return (x > 0).to(torch.float32, copy=True)


# How often each is decomposed. The last three have to be, the last one after a failure.
CASES = {near_the_mean: 0, normalized: 0, add_in_place: 1, torch.std: 1, copied: 1}


@pytest.mark.parametrize(("compute", "count"), CASES.items())
def test_graphs_compute_what_modules_compute(
    compute: Callable[[Tensor], Tensor],
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decomposed, decompose = [], ExportedProgram.run_decompositions

    def run(program: ExportedProgram, table: dict[Any, Any] | None = None) -> Any:
        decomposed.append(program)
        return decompose(program, table)

    monkeypatch.setattr(ExportedProgram, "run_decompositions", run)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 6, generator=generator)
    x[0, 0] = 0
    with torch.no_grad():
        program = to_onnx(
            Module(compute).eval(), (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
        )
    path = tmp_path / "graph.onnx"
    program.save(path)
    (found,) = onnxruntime.InferenceSession(path).run(None, {"x": x.numpy()})
    np.testing.assert_allclose(found, compute(x), rtol=1e-5, atol=1e-6)
    assert len(decomposed) == count
