"""Replaces the sum of token, position and segment embeddings: native/embedding_operator.h.

The embeddings of tokens are 8-bit rows with one scale (export/quantized_matmul.py), or have scales
by blocks (export/block_matmul.py): those are packed as for products, so that a tied output matrix
shares their memory. The export multiplies them by a constant and adds the others; a model may lack
each of these.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from server.runtime.kernels.block_packing import BLOCK, MAX_INPUTS, BlockMatrix, pack
from server.runtime.kernels.epilogue import Epilogue
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.graph_inputs import NUM_CACHED_TOKENS, TOKENS
from server.runtime.rewriting.nodes import attributes_of, native_node, other_operand
from server.runtime.rewriting.patterns import find_arange
from server.runtime.rewriting.rewrites import Rewrite

OPERATORS = OPERATOR, BLOCK_OPERATOR = "Embedding", "BlockEmbedding"
STANDARD_OPERATOR = "GatherBlockQuantized"


@dataclass(frozen=True, eq=False)
class _TokenRows:
    """A look-up of tokens' rows ``[..., size]``, from ``node`` to ``last``."""

    node: onnx.NodeProto
    last: onnx.NodeProto
    size: int
    has_blocks: bool


def fuse_embeddings(graph: GraphIndex) -> Iterator[Rewrite]:
    """Replaces each lookup of the tokens' rows, and what is multiplied with or added to it."""
    for node in graph.nodes:
        found = _token_rows(graph, node)
        if found is None:
            continue
        matrix = _matrix(graph, node) if found.has_blocks else None
        if matrix is not None or not found.has_blocks:
            yield _rewrite(graph, found, matrix)


def gathers_rows(graph: GraphIndex, node: onnx.NodeProto) -> bool:
    """Whether the native operators can replace a ``GatherBlockQuantized``."""
    return _token_rows(graph, node) is not None


def _token_rows(graph: GraphIndex, node: onnx.NodeProto) -> _TokenRows | None:
    settings = _settings(graph, node)
    return (_rows(graph, node, settings) or _blocks(graph, node, settings)) if settings else None


def _settings(graph: GraphIndex, node: onnx.NodeProto) -> dict[str, int]:
    """The attributes of a look-up of constant rows of the tokens, else none."""
    if node.op_type != STANDARD_OPERATOR or node.input[1] != TOKENS:
        return {}
    table = graph.initializers.get(node.input[0])
    if not _are_indices(graph, TOKENS) or table is None or table.data_type != TensorProto.UINT8:
        return {}
    defaults = {"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1}
    return defaults | attributes_of(node)


def _rows(
    graph: GraphIndex, node: onnx.NodeProto, settings: Mapping[str, int]
) -> _TokenRows | None:
    """Finds an 8-bit table with one scale per row."""
    table, scales = (graph.initializers.get(node.input[index]) for index in (0, 2))
    is_found = (
        table is not None
        and scales is not None
        and not any(node.input[3:])  # zero points
        and scales.data_type == TensorProto.FLOAT
        and len(table.dims) == 2
        and list(scales.dims) == [table.dims[0], 1]
        and (settings["bits"], settings["gather_axis"], settings["quantize_axis"]) == (8, 0, 1)
    )
    if not is_found or table is None:
        return None
    return _TokenRows(node, node, table.dims[1], has_blocks=False)


def _blocks(
    graph: GraphIndex, node: onnx.NodeProto, settings: Mapping[str, int]
) -> _TokenRows | None:
    """Finds a table ``[rows, blocks, numbers]``, as ``export.block_matmul`` writes it."""
    dims, bits = graph.initializers[node.input[0]].dims, settings["bits"]
    expected = {"block_size": BLOCK, "gather_axis": 0, "quantize_axis": 2}
    restored, scales = graph.only_consumer(node, "Reshape"), graph.producer(node, 2, "Reshape")
    if (
        len(dims) != 3
        or restored is None
        or scales is None
        or not expected.items() <= settings.items()
    ):
        return None
    size, shape = dims[1] * BLOCK, graph.inline_array(restored.input[1])
    has_zeros = len(node.input) > 3 and bool(node.input[3])
    zeros = graph.initializers.get(node.input[3]) if has_zeros else None
    is_found = (
        dims[2] == BLOCK * bits // 8
        and size <= MAX_INPUTS
        and shape is not None
        and shape.tolist() == [0, 0, size]
        and has_zeros == (bits == 4)
        and (not has_zeros or (zeros is not None and list(zeros.dims) == [*dims[:2], 1]))
        and graph.is_constant(scales.input[0])
    )
    return _TokenRows(node, restored, size, has_blocks=True) if is_found else None


def _matrix(graph: GraphIndex, node: onnx.NodeProto) -> BlockMatrix | None:
    """The table of a look-up in blocks, if its scales are float16."""
    numbers = graph.array(node.input[0])
    scales = graph.constant(graph.producers[node.input[2]].input[0]).reshape(numbers.shape[:2])
    zeros = None
    if len(node.input) > 3:  # in the lower half of each byte
        zeros = (graph.array(node.input[3])[..., 0] & 15).astype(np.float32)
    return BlockMatrix.of(numbers, scales, zeros)


def _rewrite(graph: GraphIndex, found: _TokenRows, matrix: BlockMatrix | None) -> Rewrite:
    size = found.size
    last, factor, tables = found.last, 1.0, ["", "", "", ""]
    scaled = graph.only_consumer(last, "Mul")
    scalar = None if scaled is None else graph.scalar(other_operand(scaled, last.output[0]))
    if scaled is not None and scalar is not None:
        last, factor = scaled, scalar
    if (positioned := graph.only_consumer(last, "Add")) is not None:
        positions = _positions(graph, other_operand(positioned, last.output[0]), size)
        if positions is not None:
            last, tables[:2] = positioned, positions
    if (summed := graph.only_consumer(last, "Add")) is not None:
        lookup = _lookup(graph, other_operand(summed, last.output[0]), size)
        if lookup is not None and _are_indices(graph, lookup[1]):
            last, tables[2:] = summed, lookup
    y = last.output[0]
    if matrix is None:
        table, _, scales = found.node.input[:3]
        operator, inputs = OPERATOR, [f"{y}.table", scales]
        attributes: dict[str, Any] = {}
        constants = {f"{y}.table": graph.array(table)}
    else:
        num_tokens = len(matrix.numbers)
        packed = pack(matrix, Epilogue(last, num_tokens))
        operator, inputs = BLOCK_OPERATOR, [f"{y}.packed"]
        attributes = {
            "weight_format": int(packed.weight_format),
            "num_tokens": num_tokens,
            "size": size,
        }
        constants = {f"{y}.packed": packed.panels}
    inputs += [TOKENS, *tables]
    new_node = native_node(operator, inputs, [y], factor=factor, **attributes)
    return Rewrite(last, (new_node,), constants)


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
    are_cached = starts is not None and starts.input[0] == NUM_CACHED_TOKENS
    has_type = graph.types.get(NUM_CACHED_TOKENS) == TensorProto.INT32
    is_found = are_cached and has_type and _counts_tokens(graph, added.input[1])
    return (table, NUM_CACHED_TOKENS) if is_found else None


def _counts_tokens(graph: GraphIndex, name: str) -> bool:
    """Whether a value is ``0 … length-1``, the length that of the tokens' rows."""
    length = graph.shape(TOKENS)[1:]
    constant = graph.inline_array(name)
    if constant is not None:
        return length == (1,) and constant.shape == (1,) and constant.item() == 0
    return find_arange(graph, name) is not None and graph.shape(name) == length


def _lookup(graph: GraphIndex, name: str, size: int) -> tuple[str, str] | None:
    """The constant fp32 table ``[rows, size]`` whose rows ``name`` is, and the rows' indices."""
    node = graph.producers.get(name)
    if node is None or node.op_type != "Gather":
        return None
    axis, table = attributes_of(node).get("axis", 0), graph.initializers.get(node.input[0])
    if table is None or table.data_type != TensorProto.FLOAT or axis != 0:
        return None
    has_shape = len(table.dims) == 2 and table.dims[1] == size
    return (node.input[0], node.input[1]) if has_shape else None
