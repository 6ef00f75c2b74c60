"""Kernels of our own, where they are faster than ONNX Runtime's: ``native/`` has them.

A bundle's int8 products are nine standard operators each (``export.matrices.multiply``). When a
graph is loaded, each becomes one operator that computes the very same numbers. Without the
library, or on a processor for which it has nothing better, graphs run as they are.
"""

import ctypes
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor

from server.backend.base import Array

LIBRARY = Path(__file__).with_name("libtriune_kernels.so")
DOMAIN = "triune"
OPERATOR = "RowInt8MatMul"
PANEL, GROUP = 16, 4  # outputs and inputs that lie side by side: native/row_int8.h
_MIDDLE = 128


@dataclass(frozen=True, eq=False)
class Rewritten:
    """A graph without the weights that are in ``packed``, by the names it knows them by."""

    model: bytes
    packed: dict[str, Array] = field(repr=False)


@cache
def runs_here() -> bool:
    """Whether this machine can run them at all."""
    return _answer("triune_kernels_run")


@cache
def library() -> Path | None:
    """What ONNX Runtime registers; None where there is nothing to gain."""
    return LIBRARY if _answer("triune_kernels_are_worthwhile") else None


def _answer(function: str) -> bool:
    try:
        return bool(getattr(ctypes.CDLL(str(LIBRARY)), function)())
    except OSError:  # not built, or for another kind of processor
        return False


shared: "weakref.WeakValueDictionary[tuple[Path, int, int], Rewritten]" = (
    weakref.WeakValueDictionary()
)
"""The graphs in use, by file, time and size."""
_lock = threading.Lock()


def rewritten(path: Path) -> Rewritten | None:
    """The graph in ``path`` with our operators; sessions of the same file share it.

    None where there is nothing to gain. The file was verified: it holds what it says.
    """
    if library() is None:
        return None
    with _lock:
        found = path.stat()
        key = (path, found.st_mtime_ns, found.st_size)
        graph = shared.get(key) or rewrite(path)
        if graph is not None:
            shared[key] = graph
        return graph


@dataclass(frozen=True, slots=True)
class _Product:
    """The nine operators of a product: ``nodes``, of which only ``y`` is read by others."""

    nodes: tuple[onnx.NodeProto, ...]
    x: str
    matrix: onnx.TensorProto
    zero: int
    is_transposed: bool
    scales: str
    y: str


def rewrite(path: Path) -> Rewritten | None:
    """The graph in ``path`` with our operators; None if it has no such product.

    Raises:
        OSError: a file of weights cannot be read.
    """
    model = onnx.load(str(path), load_external_data=False)
    graph = _Graph(model.graph)
    found = [product for node in model.graph.node if (product := graph.product(node))]
    packed: dict[str, Array] = {}
    replaced: dict[str, onnx.NodeProto] = {}
    gone: set[int] = set()
    for product in found:
        integers = _integers(product, path.parent)
        if not leave_room(integers):
            continue
        weights, offsets = pack(integers)
        names = {f"{product.y}.packed": weights, f"{product.y}.offsets": offsets}
        packed |= names
        inputs = [product.x, f"{product.y}.packed", product.scales, f"{product.y}.offsets"]
        replaced[product.y] = onnx.helper.make_node(
            OPERATOR, inputs, [product.y], name=product.y, domain=DOMAIN
        )
        gone |= {id(node) for node in product.nodes}
    if not replaced:
        return None
    nodes = []
    for node in model.graph.node:
        if node.output[0] in replaced:
            nodes.append(replaced[node.output[0]])
        elif id(node) not in gone:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    _keep_used(model.graph, packed)
    model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    return Rewritten(model.SerializeToString(), packed)


class _Graph:
    """Who makes and who reads each value."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._maker = {name: node for node in graph.node for name in node.output}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._outputs = {value.name for value in graph.output}

    def product(self, node: onnx.NodeProto) -> _Product | None:
        """The product whose ``MatMulInteger`` is ``node``, if it is one of ours."""
        if node.op_type != "MatMulInteger" or len(node.input) != 4:
            return None
        quantize = self._made_for(node, 0, "QuantizeLinear")
        divide = self._made_for(quantize, 0, "Div")
        clamp = self._made_for(divide, 1, "Max")
        reduce = self._made_for(clamp, 0, "ReduceMax")
        magnitude = self._made_for(reduce, 0, "Abs")
        cast = self._read_by(node, "Cast")
        scale = self._read_by(cast, "Mul")
        restore = self._read_by(scale, "Mul")
        zeros = self._zero(node.input[2]), self._zero(node.input[3])
        if not (quantize and divide and clamp and reduce and magnitude):
            return None
        if not (cast and scale and restore) or zeros[0] != _MIDDLE or zeros[1] is None:
            return None
        is_ours = (
            divide.input[0] == magnitude.input[0]
            and restore.input[1] == clamp.output[0]
            and scale.input[1] in self._initializers
        )
        transpose = self._maker.get(node.input[1])
        is_transposed = transpose is not None and transpose.op_type == "Transpose"
        matrix = self._initializers.get(
            transpose.input[0] if transpose is not None and is_transposed else node.input[1]
        )
        if not is_ours or matrix is None:
            return None
        nodes = (magnitude, reduce, clamp, divide, quantize, node, cast, scale, restore)
        return _Product(
            nodes=nodes,
            x=divide.input[0],
            matrix=matrix,
            zero=zeros[1],
            is_transposed=is_transposed,
            scales=scale.input[1],
            y=restore.output[0],
        )

    def _made_for(
        self, reader: onnx.NodeProto | None, index: int, operator: str
    ) -> onnx.NodeProto | None:
        """The node that makes ``reader``'s input ``index``."""
        node = None if reader is None else self._maker.get(reader.input[index])
        return node if node is not None and node.op_type == operator else None

    def _read_by(self, node: onnx.NodeProto | None, operator: str) -> onnx.NodeProto | None:
        """The one reader of ``node``'s output, as its first input."""
        readers = [] if node is None else self._readers.get(node.output[0], [])
        if node is None or len(readers) != 1 or node.output[0] in self._outputs:
            return None
        (reader,) = readers
        is_first = reader.op_type == operator and reader.input[0] == node.output[0]
        return reader if is_first else None

    def _zero(self, name: str) -> int | None:
        tensor = self._initializers.get(name)
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            return None
        return int(numpy_helper.to_array(tensor))


def _integers(product: _Product, directory: Path) -> Array:
    """Its weights, signed: ``[inputs, outputs]``."""
    tensor = onnx.TensorProto()
    tensor.CopyFrom(product.matrix)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        load_external_data_for_tensor(tensor, str(directory))
    integers = numpy_helper.to_array(tensor)
    if product.is_transposed:
        integers = integers.T
    if product.zero:
        integers = (integers.astype(np.int16) - product.zero).astype(np.int8)
    return integers


def leave_room(integers: Array) -> bool:
    """Whether the sums of neighbours ``[inputs, outputs]`` with unsigned bytes fit 16 bits.

    Those of bundles from before may not: such a product is left to the standard operators.
    """
    pairs = integers[: len(integers) // 2 * 2].astype(np.int32)
    sums = pairs[0::2] + pairs[1::2]
    return bool(np.abs(sums).max(initial=0) * 255 <= np.iinfo(np.int16).max)


def pack(integers: Array) -> tuple[Array, Array]:
    """``integers [inputs, outputs]`` as ``native/row_int8.h`` wants them, and the offsets."""
    num_inputs, num_outputs = integers.shape
    groups, panels = -(-num_inputs // GROUP), -(-num_outputs // PANEL)
    padded = np.zeros((groups * GROUP, panels * PANEL), np.int8)
    padded[:num_inputs, :num_outputs] = integers
    blocks = padded.reshape(groups, GROUP, panels, PANEL).transpose(2, 0, 3, 1)
    offsets = _MIDDLE * integers.sum(0, dtype=np.int32)
    return np.ascontiguousarray(blocks).reshape(-1), offsets


def _keep_used(graph: onnx.GraphProto, packed: Mapping[str, Array]) -> None:
    """Drops nodes and initializers that nothing reads, and declares those in ``packed``."""
    outputs = {value.name for value in graph.output}
    while True:
        used = outputs | {name for node in graph.node for name in node.input}
        nodes = [node for node in graph.node if any(name in used for name in node.output)]
        if len(nodes) == len(graph.node):
            break
        del graph.node[:]
        graph.node.extend(nodes)
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    for name, array in packed.items():
        tensor = graph.initializer.add(name=name, dims=array.shape)
        tensor.data_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="packed")
