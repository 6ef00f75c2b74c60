"""The kernel that sums a token's embeddings equals the operators that it replaces."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from server.runtime.kernels.library import Kernels, supported_kernels
from server.runtime.kernels.rewrite import rewrite
from server.runtime.memory import Array
from server.runtime.ort.backend import OrtBackend
from tests.server.embedding_graphs import (
    CACHED,
    ENCODER,
    FORMS,
    NUM_TOKENS,
    ROWS,
    SEGMENTS,
    TABLES,
    Form,
    graph,
    inputs,
    lookup_of,
    operators,
)
from tests.server.matmul_graphs import standard_session, weight_formats

pytestmark = [
    pytest.mark.skipif(
        Kernels.EMBEDDING not in supported_kernels(), reason="this CPU cannot run the kernel"
    ),
    pytest.mark.usefixtures("register_bits", "all_kernels"),
]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("table_name", TABLES)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_equals_the_operators(tmp_path: Path, name: str, table_name: str, num_threads: int) -> None:
    """The same bits, also in several tasks, as one node; norms and some scales are rounded."""
    form, table = FORMS[name], TABLES[table_name]
    file = graph(tmp_path / "graph.onnx", form, table)
    rewritten = rewrite(file, Kernels.EMBEDDING | Kernels.NORM)
    assert operators(rewritten) == [table.operator, "Neg"]
    assert weight_formats(rewritten) == [table.weight_format][: table.weight_format is not None]
    bound = OrtBackend("cpu", num_threads).load(file, ()).bind({})
    tolerance = table.rounding() * (form.factor or 1.0)
    if form.norm:
        tolerance = 8 * tolerance + 2e-6  # as large as the factors over the deviation of a row
    for length in (1, 7):
        given = inputs(form, length)
        (expected,) = standard_session(file).run(None, given)
        np.testing.assert_allclose(bound.run(given)["y"], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("form", "broken", "message"),
    [
        (Form(), {"token_ids": np.array([[0, NUM_TOKENS]])}, "a token id is not in the table"),
        (Form(), {"token_ids": np.array([[0, -1]])}, "a token id is not in the table"),
        (CACHED, {"num_cached_tokens": np.array([34], np.int32)}, "a position is not in the table"),
        (CACHED, {"num_cached_tokens": np.array([-1], np.int32)}, "a position is not in the table"),
        (ENCODER, {"token_ids": np.zeros((1, 41), np.int64)}, "a position is not in the table"),
        (SEGMENTS, {"segment_ids": np.full((1, 7), 2)}, "a segment id is not in the table"),
        (SEGMENTS, {"segment_ids": np.zeros((2, 7), np.int64)}, "segment_ids .batch, length"),
        (CACHED, {"num_cached_tokens": np.zeros(2, np.int32)}, "num_cached .batch."),
    ],
)
@pytest.mark.parametrize("table_name", ["rows", "8 bits", "4 bits, odd"])
def test_an_index_outside_its_table_is_an_error(
    tmp_path: Path, form: Form, broken: dict[str, Array], message: str, table_name: str
) -> None:
    file = graph(tmp_path / "graph.onnx", form, TABLES[table_name])
    bound = OrtBackend("cpu", 1).load(file, ()).bind({})
    given = {name: array[:1] for name, array in inputs(form).items()}
    with pytest.raises(Exception, match=message):
        bound.run(given | broken)
    bound.run(given)


@pytest.mark.parametrize(
    ("form", "num_lookups"),
    [
        (Form(positions="from 0", first=2), 1),  # of one row of positions
        (Form(positions="cached", first=2), 0),  # of one for each token, as of segments
        (Form(length=1, positions="cached", first=2), 0),
    ],
)
@pytest.mark.parametrize("table_name", ["rows", "4 bits"])
def test_positions_that_begin_elsewhere_keep_their_sums(
    tmp_path: Path, form: Form, num_lookups: int, table_name: str
) -> None:
    """As RoBERTa's, which begin after the padding token."""
    table = TABLES[table_name]
    file = graph(tmp_path / "graph.onnx", form, table)
    found = operators(rewrite(file, Kernels.EMBEDDING))
    assert (found.count(table.operator), found.count("Gather")) == (1, num_lookups)
    assert "Add" in found
    bound = OrtBackend("cpu", 1).load(file, ()).bind({})
    given = inputs(form)
    if "num_cached_tokens" in given:
        given["num_cached_tokens"] = np.maximum(given["num_cached_tokens"] - 2, 0)
    (reference,) = standard_session(file).run(None, given)
    np.testing.assert_array_equal(bound.run(given)["y"], reference)


@pytest.mark.parametrize("table_name", ["rows", "8 bits", "4 bits"])
@pytest.mark.parametrize(
    "attributes", [{"bits": 2}, {"gather_axis": 1, "quantize_axis": 0}, {"block_size": 16}]
)
def test_lookups_with_other_attributes_stay(
    tmp_path: Path, table_name: str, attributes: dict[str, int]
) -> None:
    table = TABLES[table_name]
    if table is ROWS and "block_size" in attributes:
        attributes = {"bits": 4}  # each row has one scale, whatever the size of blocks
    file = graph(tmp_path / "graph.onnx", Form(), table)
    assert operators(rewrite(file, Kernels.EMBEDDING)) == [table.operator, "Neg"]
    model = onnx.load(file)
    for attribute in lookup_of(model.graph).attribute:
        attribute.i = attributes.get(attribute.name, attribute.i)
    onnx.save(model, file)
    assert rewrite(file, Kernels.EMBEDDING) is None
