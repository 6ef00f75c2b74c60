"""Operators of CUDA that find the largest logits: best tokens, and reductions of samplers."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from server.engine.gpu.sampler_graph import build, build_top_tokens
from server.engine.gpu.sampler_inputs import LogitsSpec, SamplerVariant, SamplingMethod
from server.engine.gpu.sampler_nodes import Nodes
from server.runtime.contract import BEST_TOKENS
from server.runtime.cuda import rewrite as rewriting
from server.runtime.cuda.rewrite import replace_operators
from server.runtime.memory import Array
from server.runtime.rewriting.graph_inputs import LOGIT_POSITIONS
from tests.server.cuda_graphs import (
    FLOAT,
    FLOAT16,
    INT32,
    Shape,
    attributes,
    load,
    make_graph,
    node,
    rewrite,
    save,
    values,
)
from tests.server.cuda_operators import NEEDS_LIBRARY, run
from tests.server.test_sampler_operators import SPECS

pytestmark = NEEDS_LIBRARY


def logits_graph(
    type_: int = FLOAT, output: str = "logits", positions: str = LOGIT_POSITIONS
) -> onnx.ModelProto:
    """Gives rows of ``x`` as logits of 5 tokens."""
    inputs = [*values(type_, x=("tokens", 5)), *values(INT32, **{positions: ["rows"]})]
    outputs = values(type_, **{output: ("rows", 5)})
    return make_graph([node("Gather", ["x", positions], output)], inputs, outputs, {})


@pytest.mark.parametrize(
    ("suppressed", "expected"),
    [((), [3, 0, 1]), ((3,), [4, 0, 1]), ((0, 3), [4, 1, 1])],
)
def test_best_tokens_leave_out_the_suppressed_ones(
    tmp_path: Path, suppressed: tuple[int, ...], expected: list[int]
) -> None:
    """The lowest id of equal logits is the best."""
    x = np.array([[0, 0, 0, 0, 9], [0, 1, 2, 9, 3], [7, 7, 1, 7, 7], [-4, -2, -4, -3, -2]])
    inputs = {"x": x.astype(np.float32), LOGIT_POSITIONS: np.array([1, 2, 3], np.int32)}
    data = rewrite(save(logits_graph(), tmp_path), suppressed)
    assert data is not None
    rewritten = load(data, tmp_path)
    outputs = run(rewritten, inputs)
    assert list(outputs) == ["logits", BEST_TOKENS]
    np.testing.assert_array_equal(outputs["logits"], x[1:])
    assert outputs[BEST_TOKENS].tolist() == expected
    best = rewritten.graph.output[1]
    assert best == helper.make_tensor_value_info(BEST_TOKENS, TensorProto.INT64, ["rows"])


@pytest.mark.parametrize(
    "model",
    [
        logits_graph(FLOAT16),
        logits_graph(output="embedding"),
        logits_graph(positions="first_tokens"),
    ],
    ids=["in fp16", "no logits", "of a classifier"],
)
def test_other_graphs_have_no_best_tokens(tmp_path: Path, model: onnx.ModelProto) -> None:
    assert rewrite(save(model, tmp_path)) is None


def reduced(operator: str, shape: Shape, axis: int, *, keep: bool) -> onnx.ModelProto:
    nodes = Nodes()
    nodes.add("Neg", nodes.reduce(operator, "x", axis, keep=keep), output="y")
    sizes = ["rows", 1] if keep else ["rows", shape[2]]
    return nodes.model(values(FLOAT, x=shape), "y", FLOAT, sizes)


@pytest.mark.parametrize(("operator", "function"), [("ReduceMax", np.max), ("ReduceMin", np.min)])
@pytest.mark.parametrize("has_nan", [False, True])
def test_an_operator_of_ours_reduces(operator: str, function: np.ufunc, has_nan: bool) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 6)).astype(np.float32)
    if has_nan:
        x[1, 2, 3] = np.nan
    cases: list[tuple[Array, int, bool]] = [(x[:, 2], -1, True), (x, 1, False)]
    for array, axis, keep in cases:
        model = reduced(operator, ("rows", *array.shape[1:]), axis, keep=keep)
        copy = replace_operators(model)
        assert [made.op_type for made in copy.graph.node] == ["Extreme", "Neg"]
        assert [made.op_type for made in model.graph.node] == [operator, "Neg"], "it is a copy"
        expected = -function(array, axis=axis, keepdims=keep)
        np.testing.assert_array_equal(run(copy, {"x": array})["y"], expected)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_the_operator_takes_all_reductions_of_samplers(spec: LogitsSpec) -> None:
    """They are of fp32, along the last axis or along axis 1 of three, as it expects."""
    for method in SamplingMethod:
        model = build(SamplerVariant(method, has_edits=True, gathers_rows=True), spec)
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
        types = {v.name: v.type.tensor_type for v in [*inferred.value_info, *inferred.input]}
        constants = {t.name: numpy_helper.to_array(t) for t in inferred.initializer}
        copies = {made.output[0]: made for made in replace_operators(model).graph.node}
        assert {"ReduceMax", "ReduceMin"}.isdisjoint(copy.op_type for copy in copies.values())
        reductions = [n for n in inferred.node if n.op_type in ("ReduceMax", "ReduceMin")]
        assert reductions
        for reduction in reductions:
            x, axis = types[reduction.input[0]], constants[reduction.input[1]].item()
            copy = copies[reduction.output[0]]
            assert x.elem_type == FLOAT
            assert (axis, len(x.shape.dim)) in ((-1, 2), (1, 3))
            assert copy.op_type == "Extreme"
            assert attributes(copy) == {
                "is_min": int(reduction.op_type == "ReduceMin"),
                "is_last": int(axis == -1),
            }


@pytest.mark.parametrize("gathers_rows", [False, True])
@pytest.mark.parametrize("has_targets", [False, True])
@pytest.mark.parametrize("suppressed", [(), (3,)])
def test_an_operator_of_ours_finds_top_tokens(
    gathers_rows: bool, has_targets: bool, suppressed: tuple[int, ...]
) -> None:
    spec = LogitsSpec(50, suppressed=suppressed)
    model = build_top_tokens(spec, 8, gathers_rows=gathers_rows, has_targets=has_targets)
    copy = replace_operators(model)
    assert [made.op_type for made in copy.graph.node] == ["TopTokens"]
    assert len(copy.graph.initializer) == bool(suppressed)
    inputs: dict[str, Array] = {
        "logits": np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)
    }
    if gathers_rows:
        inputs["rows"] = np.array([0, 2])
    if has_targets:
        inputs["targets"] = np.array([3, 49] if gathers_rows else [3, 0, 49])
    (found,), (expected,) = (run(each, inputs).values() for each in (copy, model))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_reductions_stay_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewriting, "CUDA_LIBRARY", tmp_path / "none.so")
    model = reduced("ReduceMax", ("rows", 6), -1, keep=True)
    assert replace_operators(model) == model
