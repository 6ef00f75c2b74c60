"""Shares the weights of matrix products, ``[out, in]`` in device memory, among a bundle's graphs.

A bundle stores them as ``[in, out]``. Kernels for few rows need each output's weights contiguous.
"""

from pathlib import Path
from typing import NamedTuple

import onnx
from onnx import TensorProto

from server.runtime.cuda.rewrite import declare_domains
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.nodes import MICROSOFT

_MIN_BYTES = 1 << 14
_ITEM_BYTES: dict[int, int] = {
    TensorProto.FLOAT16: 2,
    TensorProto.BFLOAT16: 2,
    TensorProto.FLOAT: 4,
}
# An offset beyond the end of any file: a runtime that reads a shared weight from the file fails.
_NOWHERE = 1 << 50


class Weight(NamedTuple):
    """A matrix in a file: ``[rows, columns]`` elements of ``item_bytes`` from ``offset`` on.

    ``type_``: an ``onnx.TensorProto`` type.
    """

    file: Path
    offset: int
    rows: int
    columns: int
    type_: int

    @property
    def item_bytes(self) -> int:
        """The bytes of an element."""
        return _ITEM_BYTES[self.type_]


def share_weights(model: onnx.ModelProto, folder: Path) -> dict[str, Weight]:
    """Declares large weights that only ``MatMul`` reads as ``[out, in]``; the caller supplies them.

    ``MatMul`` becomes ``FusedMatMul`` (com.microsoft) with ``transB``.

    Args:
        model: a model without its external weights, which are in ``folder``.
        folder: the bundle's folder.

    Returns:
        The weights to supply, by name, as the file stores them: the caller transposes them. The
        model no longer has their valid offsets.
    """
    index = GraphIndex(model.graph, folder)
    found: dict[str, Weight] = {}
    for tensor in model.graph.initializer:
        weight = _weight(tensor, folder)
        readers = index.consumers(tensor.name)
        if weight is None or not readers or not all(_is_product(n, tensor.name) for n in readers):
            continue
        found[tensor.name] = weight
        tensor.dims[:] = (weight.columns, weight.rows)
        for entry in tensor.external_data:
            if entry.key == "offset":
                entry.value = str(_NOWHERE)
        for node in readers:
            node.op_type, node.domain = "FusedMatMul", MICROSOFT
            node.attribute.append(onnx.helper.make_attribute("transB", 1))
    if found:
        declare_domains(model)
    return found


def _weight(tensor: onnx.TensorProto, folder: Path) -> Weight | None:
    if tensor.data_location != TensorProto.EXTERNAL or len(tensor.dims) != 2:
        return None
    item_bytes = _ITEM_BYTES.get(tensor.data_type)
    where = {entry.key: entry.value for entry in tensor.external_data}
    rows, columns = tensor.dims
    if item_bytes is None or rows * columns * item_bytes < _MIN_BYTES or "offset" not in where:
        return None
    return Weight(folder / where["location"], int(where["offset"]), rows, columns, tensor.data_type)


def _is_product(node: onnx.NodeProto, weight: str) -> bool:
    is_matmul = not node.domain and node.op_type == "MatMul"
    return is_matmul and node.input[1] == weight and node.input[0] != weight
