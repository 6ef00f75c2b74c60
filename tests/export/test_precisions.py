"""Every precision on every device: graph contents, and cosine similarity to fp32."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from export.apply_scheme import apply_scheme, cpu_runnable
from export.errors import ParityError, UnsupportedError
from export.graph_files import data_file
from export.half_precision import convert_floats
from export.parity import min_cosine
from export.precision_schemes import AUTO, SCHEMES, choose_precision, scheme_for
from export.quantized_matmul import Int8Rows
from model.bundle import Device, Dtype, Precision
from server.runtime.kernels import blocks, int8
from server.runtime.kernels.library import Kernels
from server.runtime.kernels.rewrite import rewrite
from tests.architectures import ARCHITECTURES
from tests.export.exported import Exported

pytestmark = pytest.mark.slow  # exports, or starts servers

TYPES = {
    Dtype.FLOAT32: TensorProto.FLOAT,
    Dtype.FLOAT16: TensorProto.FLOAT16,
    Dtype.BFLOAT16: TensorProto.BFLOAT16,
}
# Lowest cosine to fp32 over rows of logits or embeddings, with random weights.
COSINES = {
    Precision.FP32: 0.999999,
    Precision.FP16: 0.99999,
    Precision.BF16: 0.995,
    Precision.INT8: 0.99,
    Precision.INT4: 0.9,
}
LOOKUP = "GatherBlockQuantized"


@pytest.mark.parametrize(("precision", "device"), SCHEMES)
def test_recipe_sets_types_and_stays_close_to_fp32(
    exported: Exported, tmp_path: Path, precision: Precision, device: Device
) -> None:
    directory = tmp_path / "graphs"
    shutil.copytree(exported.directory, directory)
    scheme = scheme_for(precision, device, ARCHITECTURES[exported.name].kind)
    graphs = apply_scheme(ARCHITECTURES[exported.name], scheme, exported.graphs, directory)
    with cpu_runnable(scheme, graphs, directory) as folder:
        cosine = min_cosine(exported.reference, folder, graphs, COSINES[precision])
    assert (1 - cosine > 1e-10) == (precision != Precision.FP32)
    for name, graph in graphs.items():
        proto = onnx.load(str(directory / graph.file), load_external_data=False).graph
        types = {v.name: v.type.tensor_type.elem_type for v in [*proto.input, *proto.output]}
        for state in graph.states:
            assert types[state.input] == types[state.output] == TYPES[state.dtype]
            assert state.dtype == scheme.computed
        for output in graph.outputs:
            assert types[output.name] == TYPES[output.dtype]
            fills_state = exported.name == "ssru" and name == "encode"
            assert output.dtype == (scheme.computed if fills_state else Dtype.FLOAT32)


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_16_bit_precisions_halve_the_file(
    exported: Exported, tmp_path: Path, precision: Precision
) -> None:
    for device in Device:
        directory = tmp_path / device
        shutil.copytree(exported.directory, directory)
        config = ARCHITECTURES[exported.name]
        graphs = apply_scheme(
            config,
            scheme_for(precision, device, ARCHITECTURES[exported.name].kind),
            exported.graphs,
            directory,
        )
        for graph in graphs.values():
            before, after = (
                data_file(folder / graph.file).stat().st_size
                for folder in (exported.directory, directory)
            )
            assert 0.49 < after / before < 0.56  # position tables stay fp32 on a CPU


def operator_counts(exported: Exported, tmp_path: Path, precision: Precision) -> Counter[str]:
    directory = tmp_path / "graphs"
    shutil.copytree(exported.directory, directory)
    scheme = scheme_for(precision, Device.CPU, ARCHITECTURES[exported.name].kind)
    graphs = apply_scheme(ARCHITECTURES[exported.name], scheme, exported.graphs, directory)
    return Counter(
        node.op_type
        for graph in graphs.values()
        for node in onnx.load(str(directory / graph.file), load_external_data=False).graph.node
    )


@pytest.mark.parametrize("exported", ["llama"], indirect=True)
def test_tied_embedding_is_stored_once_as_uint8(exported: Exported, tmp_path: Path) -> None:
    counts = operator_counts(exported, tmp_path, Precision.INT8)
    assert (counts["Gather"], counts["Gemm"], counts["MatMul"]) == (1, 0, 0)  # logit_positions
    assert (counts["GatherBlockQuantized"], counts["Transpose"]) == (1, 0)
    proto = onnx.load(str(tmp_path / "graphs" / "decode.onnx"), load_external_data=False)
    tables = [t for t in proto.graph.initializer if list(t.dims) == [61, 2, 32]]
    assert [tensor.data_type for tensor in tables] == [TensorProto.UINT8]


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT4])
def test_server_fuses_every_quantized_matmul(
    exported: Exported, tmp_path: Path, precision: Precision
) -> None:
    """The rewrite replaces each product and its quantization by one operator."""
    counts = operator_counts(exported, tmp_path, precision)
    after: Counter[str] = Counter()
    for file in (tmp_path / "graphs").glob("*.onnx"):
        rewritten = rewrite(file, Kernels.INT8_MATMUL | Kernels.BLOCK_MATMUL)
        assert rewritten is not None
        graph = onnx.ModelProto.FromString(rewritten.model).graph
        after.update(node.op_type for node in graph.node)
    assert after[int8.OPERATOR] == counts["MatMulInteger"]
    assert after[blocks.OPERATOR] == counts["MatMulNBits"]
    assert after[int8.OPERATOR] + after[blocks.OPERATOR] > 0
    assert not {"MatMulInteger", "MatMulNBits", "QuantizeLinear", "Round"} & set(after)


def test_int4_keeps_only_output_matrices_in_int8(exported: Exported, tmp_path: Path) -> None:
    """A tied embedding is the output matrix, also in the graph that only looks it up."""
    operator_counts(exported, tmp_path, Precision.INT4)
    bits = Counter(
        (node.op_type, attribute.i)
        for file in (tmp_path / "graphs").glob("*.onnx")
        for node in onnx.load(str(file), load_external_data=False).graph.node
        for attribute in node.attribute
        if attribute.name == "bits"
    )
    # A layer has 4 matrices: queries, keys and values in one, what attention gives, and the two of
    # the feed-forward network. SSRU has as many as self-attention; cross-attention has 3 more.
    expected = {
        "llama": {("MatMulNBits", 4): 2 * 4, ("MatMulNBits", 8): 1, (LOOKUP, 8): 1},
        "ssru": {("MatMulNBits", 4): 2 * 4 + 2 * 7, ("MatMulNBits", 8): 1, (LOOKUP, 8): 2},
        "bert": {("MatMulNBits", 4): 2 * 4, (LOOKUP, 4): 1},
    }
    assert bits == expected[exported.name]


def test_cosine_below_the_limit_fails(exported: Exported) -> None:
    with pytest.raises(ParityError, match=r"below 1\.1"):
        min_cosine(exported.reference, exported.directory, exported.graphs, 1.1)


def test_int8_rows_are_within_half_a_step() -> None:
    matrix = np.random.default_rng(0).normal(size=(7, 33)).astype(np.float32)
    matrix[3] = 0
    rows = Int8Rows.of("x", matrix)
    back = rows.integers * rows.scales[:, None]
    assert (np.abs(back - matrix) <= rows.scales[:, None] * 0.5001).all()
    assert rows.around_128.min() >= 1


def test_auto_precision_depends_on_the_device() -> None:
    assert choose_precision(AUTO, Device.CPU).precision == Precision.INT8
    assert choose_precision(AUTO, Device.CUDA).precision == Precision.FP16
    assert choose_precision("bf16", Device.CPU).precision == Precision.BF16
    with pytest.raises(UnsupportedError, match="'int3' is not supported; supported: fp32, fp16"):
        choose_precision("int3", Device.CPU)


def test_every_precision_has_a_recipe_on_every_device() -> None:
    assert set(SCHEMES) == {(p, d) for p in Precision for d in Device}


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceL2"])
def test_sums_keep_fp32(operator: str) -> None:
    """Also where the sum is too large for fp16, as of many tokens."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    axis, count = np.array([1]), np.array(100, np.float32)
    constants = [numpy_helper.from_array(axis, "axis"), numpy_helper.from_array(count, "count")]
    nodes = [
        helper.make_node("Neg", ["x"], ["negative"]),
        helper.make_node(operator, ["negative", "axis"], ["sum"], keepdims=0),
        helper.make_node("Div", ["sum", "count"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    opset = helper.make_opsetid("", 18)
    proto = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    model = ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(proto))
    convert_floats(model, Dtype.FLOAT16, frozenset({"y"}))
    converted = ir.serde.serialize_model(model)
    given = np.full((2, 100, 4), 10000, np.float32)
    runs: Any = [
        ReferenceEvaluator(proto).run(None, {"x": given}),
        ReferenceEvaluator(converted).run(None, {"x": given.astype(np.float16)}),
    ]
    (expected,), (actual,) = runs
    assert np.abs(expected * count).min() > np.finfo(np.float16).max
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(actual, expected)
