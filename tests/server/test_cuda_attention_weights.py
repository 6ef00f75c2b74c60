"""Attention weights that other nodes compute, as on CUDA, against the operator's own on a CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from server.runtime.cuda.attention_weights import compute_attention_weights
from server.runtime.cuda.rewrite import declare_domains
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.rewrites import apply_rewrites
from tests.server.attention_graphs import NEEDS_KERNEL, OUTPUTS, Case, graph, run, session

pytestmark = NEEDS_KERNEL  # the library of ``session``


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"has_sinks": True},
        {"has_sinks": True, "attributes": {"local_window_size": 3, "softcap": 2.0}},
        {"bias": (True, True), "attributes": {"scale": 0.5}},
    ],
    ids=["plain", "sinks", "sinks, window and cap", "bias"],
)
@pytest.mark.parametrize(("num_tokens", "length"), [(1, 9), (4, 13)])
def test_weights_of_a_text(num_tokens: int, length: int, changes: dict[str, Any]) -> None:
    case = Case("decode", num_tokens, (length,), capacity=20, angles=16, **changes)
    inputs, attributes = case.inputs(), case.all_attributes() | {"qk_output": 2}
    model = graph(inputs, attributes, outputs=(*OUTPUTS, "weights"))
    heads, size = case.heads[0], case.size
    sizes = ("batch", num_tokens, heads * size)
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, sizes)
    model.graph.value_info.append(y)
    for name in ("cos", "sin"):  # constants, as in exports
        model.graph.initializer.append(onnx.numpy_helper.from_array(inputs.pop(name), name))
    kept = [value for value in model.graph.input if value.name in inputs]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    expected = run(session(model.SerializeToString()), inputs)
    index = GraphIndex(model.graph, Path())
    assert apply_rewrites(model.graph, compute_attention_weights(index))
    declare_domains(model)
    actual = run(session(model.SerializeToString()), inputs)
    weights = actual[-1]
    np.testing.assert_allclose(weights, expected[-1][..., :length], atol=1e-6)
    np.testing.assert_allclose(actual[0], expected[0], atol=1e-6)
    assert (weights.sum(-1).max() < 1 - 1e-3) == case.has_sinks
