"""Replaces the sum of token, position and segment embeddings: native/embedding_operator.h.

The embeddings of tokens are 8-bit rows (export/quantized_matmul.py). The export multiplies them by
a constant and adds the others; a model may lack each of these.
"""

from collections.abc import Iterator

import onnx
from onnx import TensorProto

from server.runtime.kernels.graph import TOKENS, GraphIndex, Replacement, other_operand
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
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    settings = {"bits": 4, "gather_axis": 0, "quantize_axis": 1} | given
    table, scales = (graph.initializers.get(node.input[index]) for index in (0, 2))
    return (
        node.input[1] == TOKENS
        and _are_indices(graph, TOKENS)
        and not any(node.input[3:])  # zero points
        and table is not None
        and scales is not None
        and table.data_type == TensorProto.UINT8
        and scales.data_type == TensorProto.FLOAT
        and len(table.dims) == 2
        and list(scales.dims) == [table.dims[0], 1]
        and (settings["bits"], settings["gather_axis"], settings["quantize_axis"]) == (8, 0, 1)
    )


def _replacement(graph: GraphIndex, node: onnx.NodeProto) -> Replacement:
    table, ids, scales = node.input
    size = graph.initializers[table].dims[1]
    last, factor, tables = node, 1.0, ["", "", "", ""]
    scaled = graph.only_consumer(last, "Mul")
    if (
        scaled is not None
        and (scalar := _scalar(graph, other_operand(scaled, last.output[0]))) is not None
    ):
        last, factor = scaled, scalar
    if (positioned := graph.only_consumer(last, "Add")) is not None:
        positions = _positions(graph, other_operand(positioned, last.output[0]), size)
        if positions is not None:
            last, tables[:2] = positioned, positions
    if (summed := graph.only_consumer(last, "Add")) is not None:
        lookup = _lookup(graph, other_operand(summed, last.output[0]), size)
        if lookup is not None and _are_indices(graph, lookup[1]):
            last, tables[2:] = summed, lookup
    made = onnx.helper.make_node(
        OPERATOR,
        [table, scales, ids, *tables],
        [last.output[0]],
        name=last.output[0],
        domain=DOMAIN,
        factor=factor,
    )
    return Replacement(last, made)


def _are_indices(graph: GraphIndex, name: str) -> bool:
    """Whether a value has an int64 for each token: segments, or positions computed elsewhere."""
    tokens, shape = graph.shape(TOKENS), graph.shape(name)
    is_known = len(shape) == 2 and all(shape) and shape == tokens
    return is_known and graph.types.get(name) == TensorProto.INT64


def _positions(graph: GraphIndex, name: str, size: int) -> tuple[str, str] | None:
    """The table of the tokens' positions, and the first positions, "" for 0.

    None if ``name`` is something else.
    """
    lookup = _lookup(graph, name, size)
    if lookup is None:
        return None
    table, index = lookup
    if _counts_tokens(graph, index):
        return table, ""
    added = graph.producers.get(index)
    if added is None or added.op_type != "Add" or not _are_indices(graph, index):
        return None
    starts = graph.producer(graph.producer(added, 0, "Cast"), 0, "Unsqueeze")
    are_cached = starts is not None and starts.input[0] == _NUM_CACHED
    has_type = graph.types.get(_NUM_CACHED) == TensorProto.INT32
    is_found = are_cached and has_type and _counts_tokens(graph, added.input[1])
    return (table, _NUM_CACHED) if is_found else None


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


def _lookup(graph: GraphIndex, name: str, size: int) -> tuple[str, str] | None:
    """The constant fp32 table ``[rows, size]`` whose rows ``name`` is, and the rows' indices."""
    node = graph.producers.get(name)
    if node is None or node.op_type != "Gather":
        return None
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    table = graph.initializers.get(node.input[0])
    if table is None or table.data_type != TensorProto.FLOAT or axis != 0:
        return None
    has_shape = len(table.dims) == 2 and table.dims[1] == size
    return (node.input[0], node.input[1]) if has_shape else None


def _scalar(graph: GraphIndex, name: str) -> float | None:
    array = graph.inline_array(name)
    return float(array.item()) if array is not None and array.ndim == 0 else None
