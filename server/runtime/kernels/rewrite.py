"""Graphs with operators of our own, where they are faster than ONNX Runtime's.

Bundles hold standard operators. When a graph is loaded, some become ours: each pattern that
is worthwhile here says what it would replace. Without the library graphs run as they are.
"""

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from server.runtime.contract import Array
from server.runtime.kernels import attention, int8, matmul, norms
from server.runtime.kernels.graph import Graph, Replacement
from server.runtime.kernels.library import DOMAIN, Kernels, worthwhile

Pattern = Callable[[Graph], Iterable[Replacement]]
PATTERNS: dict[Kernels, Pattern] = {
    Kernels.ROW_INT8: int8.products,
    Kernels.MATMUL: matmul.products,
    Kernels.ATTENTION: attention.attentions,
    Kernels.NORM: norms.norms,
}


@dataclass(frozen=True, eq=False)
class Rewritten:
    """A graph without the weights that are in ``packed``, by the names it knows them by.

    ``rest_bytes``: of the weights that are not.
    """

    model: bytes
    rest_bytes: int
    packed: dict[str, Array] = field(repr=False)


shared: "weakref.WeakValueDictionary[tuple[Path, int, int], Rewritten]" = (
    weakref.WeakValueDictionary()
)
"""The graphs in use, by file, time and size."""
_lock = threading.Lock()


def rewritten(path: Path) -> Rewritten | None:
    """The graph in ``path`` with our operators; sessions of the same file share it.

    None where there is nothing to gain. The file was verified: it holds what it says.
    """
    with _lock:
        found = path.stat()
        key = (path, found.st_mtime_ns, found.st_size)
        graph = shared.get(key) or rewrite(path, worthwhile())
        if graph is not None:
            shared[key] = graph
        return graph


def rewrite(path: Path, kernels: Kernels) -> Rewritten | None:
    """The graph in ``path`` with those of our operators; None if it has no use for them.

    Raises:
        OSError: a file of weights cannot be read.
    """
    if not kernels:
        return None
    model = onnx.load(str(path), load_external_data=False)
    graph = Graph(model.graph, path.parent)
    found = [
        replacement
        for kernel, pattern in PATTERNS.items()
        if kernel in kernels
        for replacement in pattern(graph)
    ]
    if not found:
        return None
    placed = {id(replacement.last): replacement.node for replacement in found}
    nodes = [placed.get(id(node), node) for node in model.graph.node]
    packed = {name: array for r in found for name, array in r.packed.items()}
    model.graph.input.extend({value.name: value for r in found for value in r.inputs}.values())
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    _keep_used(model.graph, packed)
    model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    rest_bytes = sum(
        math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        for tensor in model.graph.initializer
        if tensor.name not in packed
    )
    return Rewritten(model.SerializeToString(), rest_bytes, packed)


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
