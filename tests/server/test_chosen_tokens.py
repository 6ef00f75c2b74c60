"""A decoder's last layer computes only the tokens whose logits are read."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from server.runtime.kernels.library import Kernels
from server.runtime.kernels.rewrite import rewrite
from server.runtime.memory import Array
from tests.server.attention_graphs import NEEDS_KERNEL, OUTPUTS, Case, graph, run, session

pytestmark = [NEEDS_KERNEL, pytest.mark.usefixtures("register_bits")]

WIDTH = 24  # of the residual stream
PROMPTS = Case("prompt", 150, (150, 83), capacity=160)


def save(file: Path, case: Case, *, is_read_twice: bool = False) -> None:
    """The end of a layer, as it is exported: attention, output product, residual, gather."""
    model = graph(case.inputs(), case.all_attributes(), outputs=OUTPUTS[1:])
    made, inner = model.graph, case.heads[0] * case.size
    rng = np.random.default_rng(5)
    arrays: dict[str, Array] = {
        "weight": rng.normal(size=(inner, WIDTH)).astype(np.float32),
        "rows": np.array([-1, WIDTH], np.int64),
        "flat": np.array([-1], np.int64),
    }
    made.initializer.extend(numpy_helper.from_array(x, name) for name, x in arrays.items())
    made.node.extend(
        [
            helper.make_node("MatMul", ["y", "weight"], ["product"]),
            helper.make_node("Add", ["residual", "product"], ["sum"]),
            helper.make_node("Reshape", ["sum", "rows"], ["view"]),
            helper.make_node("Reshape", ["logit_positions", "flat"], ["positions"]),
            helper.make_node("Cast", ["positions"], ["cast"], to=TensorProto.INT64),
            helper.make_node("Gather", ["view", "cast"], ["chosen"], axis=0),
        ]
    )
    axes = ["rows", "tokens"]
    made.value_info.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [*axes, width])
        for name, width in (("y", inner), ("product", WIDTH), ("sum", WIDTH))
    )
    made.input.extend(
        [
            helper.make_tensor_value_info("residual", TensorProto.FLOAT, [*axes, WIDTH]),
            helper.make_tensor_value_info("logit_positions", TensorProto.INT32, ["chosen"]),
        ]
    )
    for name in ("chosen", "sum") if is_read_twice else ("chosen",):
        made.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    onnx.save(model, file)


def rewritten(file: Path) -> onnx.ModelProto:
    found = rewrite(file, Kernels.ATTENTION | Kernels.MATMUL)
    assert found is not None
    packed = dict(found.packed)
    model = onnx.load_from_string(found.model)
    for tensor in model.graph.initializer:
        if tensor.name in packed:
            tensor.CopyFrom(numpy_helper.from_array(packed[tensor.name], tensor.name))
    return model


def outputs(model: onnx.ModelProto, case: Case, positions: list[int]) -> dict[str, Array]:
    rng = np.random.default_rng(6)
    shape = (len(case.lengths), case.num_tokens, WIDTH)
    inputs = case.inputs() | {
        "residual": rng.normal(size=shape).astype(np.float32),
        "logit_positions": np.array(positions, np.int32),
    }
    found = run(session(model.SerializeToString(), 2), inputs)
    return dict(zip([value.name for value in model.graph.output], found, strict=True))


@pytest.mark.parametrize(
    ("case", "positions"),
    [
        (PROMPTS, [149, 150 + 82]),
        (PROMPTS, [150 + 3]),
        (PROMPTS, []),
        (Case("chunk", 60, (140,), capacity=150), [59, 0]),
        (Case("decode", 1, (4, 90, 33), capacity=100), [0, 1, 2]),
    ],
)
def test_gives_the_bits_of_a_layer_that_computes_all(
    tmp_path: Path, case: Case, positions: list[int]
) -> None:
    file = tmp_path / "graph.onnx"
    save(file, case, is_read_twice=True)
    expected = outputs(rewritten(file), case, positions)
    save(file, case)
    actual = outputs(rewritten(file), case, positions)
    np.testing.assert_array_equal(actual["chosen"], expected["chosen"])
    np.testing.assert_array_equal(expected["chosen"], expected["sum"].reshape(-1, WIDTH)[positions])
    for row, length in enumerate(case.lengths):  # later positions are padding
        for name in OUTPUTS[1:]:
            np.testing.assert_array_equal(
                actual[name][row, :, :length], expected[name][row, :, :length]
            )


def test_only_chosen_tokens_reach_the_product(tmp_path: Path) -> None:
    file = tmp_path / "graph.onnx"
    save(file, PROMPTS)
    nodes = {node.op_type: node for node in rewritten(file).graph.node}
    assert nodes["Attention"].input[-1] == "logit_positions"
    assert nodes["PackedMatMul"].output[0] == "chosen"


@pytest.mark.parametrize("change", ["read twice", "norm between", "other rows", "other axis"])
def test_computes_all_tokens_otherwise(tmp_path: Path, change: str) -> None:
    file = tmp_path / "graph.onnx"
    save(file, PROMPTS, is_read_twice=change == "read twice")
    model = onnx.load(file)
    *_, view, _, _, gather = model.graph.node
    if change == "norm between":
        view.CopyFrom(helper.make_node("Mul", ["sum", "sum"], ["view"]))
    elif change == "other rows":
        flat = np.array([-1, WIDTH // 2], np.int64)
        model.graph.initializer.append(numpy_helper.from_array(flat, "half_rows"))
        view.input[1] = "half_rows"
    elif change == "other axis":
        gather.attribute[0].i = 1
    constant = helper.make_node("Constant", [], ["constant"], value_floats=[1.0, 2.0])
    model.graph.node.extend([constant, helper.make_node("Gather", ["constant", "cast"], ["other"])])
    model.graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, None))
    onnx.save(model, file)
    nodes = {node.op_type: node for node in rewritten(file).graph.node}
    assert "logit_positions" not in nodes["Attention"].input
    assert nodes["PackedMatMul"].output[0] == "sum"


@pytest.mark.parametrize(
    ("bundle", "product"),
    [("dates", "PackedMatMul"), ("decoder-int4", "DynamicBlockMatMul")],
)
def test_exported_decoders_choose_tokens(
    tiny_bundles: Path, compact_bundles: Path, bundle: str, product: str
) -> None:
    """So do their last attention, self- or cross-attention, and the product after it."""
    folder = compact_bundles if bundle == "decoder-int4" else tiny_bundles
    found = rewrite(
        folder / bundle / "1" / "decode.onnx",
        Kernels.ATTENTION | Kernels.MATMUL | Kernels.BLOCK_MATMUL,
    )
    assert found is not None
    nodes = onnx.load_from_string(found.model).graph.node
    attentions = [node for node in nodes if node.op_type == "Attention"]
    assert [node for node in attentions if "logit_positions" in node.input] == attentions[-1:]
    readers = [node for node in nodes if attentions[-1].output[0] in node.input]
    assert [node.op_type for node in readers] == ["Reshape"]
    (gather,) = [node for node in nodes if readers[0].output[0] in node.input]
    (last,) = [node for node in nodes if gather.output[0] in node.input]
    assert (gather.op_type, last.op_type) == ("Gather", product)
