"""Replaces the sum of token, position and segment embeddings: native/embedding_operator.h.

The embeddings of tokens are 8-bit rows (export/quantized_matmul.py). The export writes the rest as
``Mul`` by a constant and ``Add``, some of which a model may lack.
"""

from collections.abc import Iterator

import onnx
from onnx import TensorProto

from server.runtime.kernels.graph import TOKENS, GraphIndex, Replacement
from server.runtime.kernels.library import DOMAIN

OPERATOR = "Embedding"
STANDARD_OPERATOR = "GatherBlockQuantized"
_NUM_CACHED = "num_cached_tokens"  # input of decoders: export/signatures.py


def replacements(graph: GraphIndex) -> Iterator[Replacement]:
    """Replaces each lookup of the tokens' rows, and what is multiplied with or added to it."""
    for node in graph.nodes:
        if node.op_type == STANDARD_OPERATOR and gathers_rows(graph, node):
            yield _replacement(graph, node)


def gathers_rows(graph: GraphIndex, node: onnx.NodeProto) -> bool:
    """Whether ``node`` gathers the tokens' rows of an 8-bit table with one scale a row."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    table, scales = (graph.initializers.get(node.input[index]) for index in (0, 2))
    return (
        list(node.input[1:2]) == [TOKENS]
        and len(graph.shape(TOKENS)) == 2
        and not any(node.input[3:])  # zero points
        and table is not None
        and scales is not None
        and table.data_type == TensorProto.UINT8
        and scales.data_type == TensorProto.FLOAT
        and len(table.dims) == 2
        and list(scales.dims) == [table.dims[0], 1]
        and attributes["bits"] == 8
        and (attributes["gather_axis"], attributes["quantize_axis"]) == (0, 1)
    )


def _replacement(graph: GraphIndex, node: onnx.NodeProto) -> Replacement:
    table, ids, scales = node.input
    last, factor, tables = node, 1.0, ["", "", "", ""]
    scaled = graph.only_consumer(last, "Mul")
    if scaled is not None and (scalar := _scalar(graph, _other(scaled, last))) is not None:
        last, factor = scaled, scalar
    if (positioned := graph.only_consumer(last, "Add")) is not None:
        positions = _positions(graph, _other(positioned, last))
        if positions is not None:
            last, tables[:2] = positioned, positions
    if (summed := graph.only_consumer(last, "Add")) is not None:
        segments = _segments(graph, _other(summed, last))
        if segments is not None:
            last, tables[2:] = summed, segments
    made = onnx.helper.make_node(
        OPERATOR,
        [table, scales, ids, *tables],
        [last.output[0]],
        name=last.output[0],
        domain=DOMAIN,
        factor=factor,
    )
    return Replacement(last, made)


def _positions(graph: GraphIndex, name: str) -> list[str] | None:
    """The table of embeddings of the tokens' positions, and the first positions, "" for 0.

    None if ``name`` is something else.
    """
    lookup = _lookup(graph, name)
    if lookup is None:
        return None
    table, index = lookup
    if _counts_tokens(graph, index):
        return [table, ""]
    added = graph.producers.get(index)
    if added is None or added.op_type != "Add":
        return None
    starts = graph.producer(graph.producer(added, 0, "Cast"), 0, "Unsqueeze")
    is_known = starts is not None and starts.input[0] == _NUM_CACHED
    has_shape = graph.shape(index) == graph.shape(TOKENS)
    return (
        [table, _NUM_CACHED]
        if is_known and has_shape and _counts_tokens(graph, added.input[1])
        else None
    )


def _counts_tokens(graph: GraphIndex, name: str) -> bool:
    """Whether a value is ``0 … length-1``, the length that of the tokens' rows."""
    length = graph.shape(TOKENS)[1:]
    constant = graph.inline_array(name)
    if constant is not None:
        return length == (1,) and constant.shape == (1,) and constant.item() == 0
    node = graph.producers.get(name)
    if node is None or node.op_type != "Range":
        return False
    begin, step = _scalar(graph, node.input[0]), _scalar(graph, node.input[2])
    return (begin, step) == (0, 1) and graph.shape(name) == length


def _segments(graph: GraphIndex, name: str) -> list[str] | None:
    """A table with a row for each token, and the rows' indices: segments, or computed positions.

    None if ``name`` is something else.
    """
    lookup = _lookup(graph, name)
    if lookup is None or graph.shape(lookup[1]) != graph.shape(TOKENS):
        return None
    return list(lookup)


def _lookup(graph: GraphIndex, name: str) -> tuple[str, str] | None:
    """The constant fp32 table ``[rows, size]`` whose rows ``name`` is, and the rows' indices."""
    node = graph.producers.get(name)
    if node is None or node.op_type != "Gather":
        return None
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    table = graph.initializers.get(node.input[0])
    is_table = table is not None and table.data_type == TensorProto.FLOAT and len(table.dims) == 2
    return (node.input[0], node.input[1]) if is_table and axis == 0 else None


def _scalar(graph: GraphIndex, name: str) -> float | None:
    array = graph.inline_array(name)
    return float(array.item()) if array is not None and array.size == 1 else None


def _other(node: onnx.NodeProto, operand: onnx.NodeProto) -> str:
    """The operand of ``node`` that is not the output of ``operand``."""
    return str(node.input[1] if node.input[0] == operand.output[0] else node.input[0])
