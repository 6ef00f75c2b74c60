"""Which graphs are rewritten to use the attention kernel."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from server.runtime.kernels import rewrite as rewriting
from server.runtime.kernels.library import Kernels
from server.runtime.kernels.rewrite import rewrite
from server.runtime.ort.backend import OrtBackend
from tests.server.attention_graphs import (
    NEEDS_KERNEL,
    OUTPUTS,
    Case,
    graph,
    native_session,
    run,
    session,
)

pytestmark = [NEEDS_KERNEL, pytest.mark.usefixtures("register_bits")]


def test_drops_unused_outputs(tmp_path: Path) -> None:
    case = Case("encoder", 9, (9, 4))
    file = tmp_path / "graph.onnx"
    onnx.save(graph(case.inputs(), case.all_attributes(), outputs=("y",)), file)
    rewritten = rewrite(file, Kernels.ATTENTION)
    assert rewritten is not None
    (node,) = onnx.load_from_string(rewritten.model).graph.node
    assert (node.op_type, list(node.output)) == ("Attention", ["y"])
    expected = run(session(str(file)), case.inputs())[0]
    np.testing.assert_allclose(
        run(native_session(file), case.inputs())[0][0], expected[0], atol=1e-5
    )


def test_rewrites_a_graph_without_matmuls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a graph has no packed weights."""
    monkeypatch.setattr(rewriting, "preferred_kernels", lambda: Kernels.ATTENTION)
    case = Case("prompt", 20, (20, 3), capacity=30)
    file = tmp_path / "a" / "1" / "graph.onnx"
    file.parent.mkdir(parents=True)
    onnx.save(graph(case.inputs(), case.all_attributes()), file)
    actual = OrtBackend("cpu", 1).load(file, ()).session
    np.testing.assert_array_equal(
        run(actual, case.inputs())[0], run(native_session(file), case.inputs())[0]
    )


@pytest.mark.parametrize("feature", ["weights", "positions", "half", "window", "unknown", "output"])
def test_does_not_replace_unsupported_attention(tmp_path: Path, feature: str) -> None:
    case = Case("decode", 1, (4, 9), capacity=20, angles=16)
    names: dict[str, Any] = dict.fromkeys(case.inputs())
    attributes, dtype = case.all_attributes(), TensorProto.FLOAT
    outputs: tuple[str, ...] = OUTPUTS
    if feature == "weights":
        attributes["qk_output"], outputs = 2, (*OUTPUTS, "weights")
    elif feature == "positions":
        names["positions"] = None
    elif feature == "half":
        dtype = TensorProto.FLOAT16
    elif feature == "window":
        attributes |= {"sliding_window_cache": 1, "local_window_size": 5}
    else:
        attributes["kv_cache_bit_width"] = 8
    file = tmp_path / "graph.onnx"
    model = graph(names, attributes, dtype=dtype, outputs=outputs)
    if feature == "output":
        model.graph.node[0].output[2] = ""
        del model.graph.output[2]
    onnx.save(model, file)
    assert rewrite(file, Kernels.ATTENTION) is None
