"""The operator that looks up rows of packed blocks checks its matrix; other look-ups stay."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from server.runtime.kernels.library import Kernels, supported_kernels
from server.runtime.kernels.rewrite import RewrittenGraph, rewrite
from tests.server import attention_graphs
from tests.server.embedding_graphs import (
    CACHED,
    NUM_TOKENS,
    TABLES,
    Form,
    graph,
    inputs,
    lookup_of,
)
from tests.server.matmul_graphs import standard_session

pytestmark = pytest.mark.skipif(
    Kernels.EMBEDDING not in supported_kernels(), reason="this CPU cannot run the kernel"
)


@pytest.mark.parametrize(
    ("changes", "is_at_load"),
    [
        ({"weight_format": 2}, True),
        ({"weight_format": 7}, True),
        ({"size": 80}, True),
        ({"size": 0}, True),
        ({"size": -96}, True),
        ({"num_tokens": 0}, True),
        ({"num_tokens": 288230376151711748 * 16}, True),  # whose bytes are as many as there are
        ({"num_tokens": -NUM_TOKENS}, True),
        ({"num_tokens": 65}, False),  # one panel more
        ({"num_tokens": 48}, False),
        ({"size": 64}, False),  # one pair of blocks less
        ({"size": 160}, False),
        ({"weight_format": 3}, False),
        ({"weight_format": 4}, False),
        ({"weight_format": 6}, False),
    ],
)
def test_a_packed_matrix_of_another_size_is_an_error(
    tmp_path: Path, changes: dict[str, int], is_at_load: bool
) -> None:
    file = graph(tmp_path / "graph.onnx", Form(), TABLES["4 bits, odd"])
    rewritten = rewrite(file, Kernels.EMBEDDING)
    assert rewritten is not None
    given = inputs(Form())
    (expected,) = standard_session(file).run(None, given)
    unchanged = attention_graphs.session(with_attributes(rewritten, {}))
    np.testing.assert_array_equal(unchanged.run(None, given)[0], expected)
    model = with_attributes(rewritten, changes)
    if is_at_load:
        with pytest.raises(Exception, match=r"weight_format|size must be|num_tokens"):
            attention_graphs.session(model)
    else:
        session = attention_graphs.session(model)
        with pytest.raises(Exception, match="as long as its attributes say"):
            session.run(None, given)


def with_attributes(rewritten: RewrittenGraph, attributes: dict[str, int]) -> bytes:
    """A model with its packed constants, whose ``BlockEmbedding`` has these attributes."""
    model = onnx.ModelProto.FromString(rewritten.model)
    for tensor in model.graph.initializer:
        if tensor.name in rewritten.packed:
            array = rewritten.packed[tensor.name]
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "BlockEmbedding" and attribute.name in attributes:
                attribute.i = attributes[attribute.name]
    return model.SerializeToString()


@pytest.mark.parametrize("table_name", ["8 bits", "4 bits"])
def test_positions_of_another_size_are_an_error(tmp_path: Path, table_name: str) -> None:
    file = graph(tmp_path / "graph.onnx", CACHED, TABLES[table_name])
    rewritten = rewrite(file, Kernels.EMBEDDING)
    assert rewritten is not None
    model = onnx.ModelProto.FromString(with_attributes(rewritten, {}))
    (positions,) = [t for t in model.graph.initializer if t.name == "positions"]
    narrow = numpy_helper.to_array(positions)[:, :32]
    positions.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(narrow), "positions"))
    session = attention_graphs.session(model.SerializeToString())
    with pytest.raises(Exception, match="all tables must have rows of one size"):
        session.run(None, inputs(CACHED))


def add_zeros(graph: onnx.GraphProto) -> None:
    zeros = np.full((NUM_TOKENS, 2, 1), 100, np.uint8)
    graph.initializer.append(numpy_helper.from_array(zeros, "zeros"))
    lookup_of(graph).input.append("zeros")


def drop_zeros(graph: onnx.GraphProto) -> None:
    del lookup_of(graph).input[3:]


def read_fine_scales(graph: onnx.GraphProto) -> None:
    """Scales that are no float16 numbers."""
    fine = np.full((NUM_TOKENS, 2), 0.1, np.float32)
    graph.initializer.append(numpy_helper.from_array(fine, "fine"))
    producer_of(graph, lookup_of(graph).input[2]).input[0] = "fine"


def compute_scales(graph: onnx.GraphProto) -> None:
    reshape = producer_of(graph, lookup_of(graph).input[2])
    graph.node.insert(1, helper.make_node("Abs", [reshape.input[0]], ["magnitudes"]))
    reshape.input[0] = "magnitudes"


def split_rows(graph: onnx.GraphProto) -> None:
    """Gives two embeddings of 32 for each token of 64."""
    (shape,) = [tensor for tensor in graph.initializer if tensor.name == "table.row"]
    shape.CopyFrom(numpy_helper.from_array(np.array([0, -1, 32]), "table.row"))


def producer_of(graph: onnx.GraphProto, name: str) -> onnx.NodeProto:
    (node,) = [node for node in graph.node if name in node.output]
    return node


@pytest.mark.parametrize(
    ("table_name", "change"),
    [
        ("8 bits", add_zeros),
        ("4 bits", drop_zeros),
        ("4 bits", read_fine_scales),
        ("8 bits", compute_scales),
        ("4 bits", split_rows),
    ],
)
def test_other_lookups_in_blocks_stay(
    tmp_path: Path,
    table_name: str,
    change: Callable[[onnx.GraphProto], None],
) -> None:
    """The standard operators compute what they did."""
    file = graph(tmp_path / "graph.onnx", Form(), TABLES[table_name])
    model = onnx.load(file)
    change(model.graph)
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    onnx.save(model, file)
    assert rewrite(file, Kernels.EMBEDDING) is None
    (y,) = standard_session(file).run(None, inputs(Form()))
    assert np.isfinite(y).all()
