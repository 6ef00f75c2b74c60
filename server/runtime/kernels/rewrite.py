"""Rewrites graphs to use the native operators that are faster than ONNX Runtime's.

Bundles hold standard operators only. When the server loads a graph, the patterns of the kernels
that are faster on this CPU replace nodes. Without the native library, graphs run as they are.
"""

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import onnx

from server.runtime.contract import CANDIDATES, KernelNodes
from server.runtime.kernels import attention, blocks, embeddings, int8, matmul, norms, pooling, ssru
from server.runtime.kernels.adapters import ADAPTER_PART
from server.runtime.kernels.candidates import make_width_dynamic
from server.runtime.kernels.chosen_tokens import choose_tokens_early
from server.runtime.kernels.constants import shared
from server.runtime.kernels.fused_norms import fuse_norms
from server.runtime.kernels.library import Kernels, preferred_kernels
from server.runtime.kernels.node_counts import count_nodes
from server.runtime.memory import Array
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.nodes import DOMAIN
from server.runtime.rewriting.rewrites import Rewrite, apply_rewrites

PATTERNS: dict[Kernels, Callable[[GraphIndex], Iterable[Rewrite]]] = {
    Kernels.INT8_MATMUL: int8.fuse_int8_matmul,
    Kernels.BLOCK_MATMUL: blocks.fuse_block_matmul,
    Kernels.MATMUL: matmul.fuse_matmul,
    Kernels.ATTENTION: attention.replace_attention,
    Kernels.NORM: norms.replace_norms,
    Kernels.TOKEN_SUM: pooling.replace_token_sums,
    Kernels.SSRU: ssru.fuse_ssru,
    Kernels.EMBEDDING: embeddings.fuse_embeddings,
}


@dataclass(frozen=True, eq=False)
class RewrittenGraph:
    """A rewritten graph: a serialized model, and its packed constants by name.

    ``unpacked_bytes``: the size of all other constants. ``weight_bytes``: the size of the packed
    weights that each token is multiplied by. ``declared_shapes``: of outputs whose last dimension
    became dynamic, the shapes in the file.
    """

    model: bytes
    unpacked_bytes: int
    weight_bytes: int
    packed: dict[str, Array] = field(repr=False)
    kernel_nodes: KernelNodes
    declared_shapes: dict[str, tuple[str | int, ...]] = field(default_factory=dict)


graphs_in_use: "weakref.WeakValueDictionary[tuple[Path, int, int, bool], RewrittenGraph]" = (
    weakref.WeakValueDictionary()
)
"""The rewritten graphs in use, by path, modification time and size of the file, and
``takes_candidates``."""
_lock = threading.Lock()


def load_rewritten(path: Path, *, takes_candidates: bool = False) -> RewrittenGraph | None:
    """Rewrites the graph in ``path``; sessions of one file share the result.

    Returns None if no pattern matches, or no kernel is faster on this CPU. The file must have been
    verified against its bundle.
    """
    with _lock:
        stat = path.stat()
        key = (path, stat.st_mtime_ns, stat.st_size, takes_candidates)
        graph = graphs_in_use.get(key) or rewrite(
            path, preferred_kernels(), takes_candidates=takes_candidates
        )
        if graph is not None:
            graphs_in_use[key] = graph
        return graph


def kernel_nodes(path: Path, rewritten: RewrittenGraph | None) -> KernelNodes:
    """The nodes by kernel of the graph that runs: ``rewritten``; if None, the one in ``path``."""
    if rewritten is not None:
        return rewritten.kernel_nodes
    model = onnx.ModelProto.FromString(path.read_bytes())
    return count_nodes(GraphIndex(model.graph, path.parent))


def rewrite(
    path: Path, kernels: Kernels, *, takes_candidates: bool = False
) -> RewrittenGraph | None:
    """Rewrites the graph in ``path`` with these kernels; None if nothing matches.

    ``takes_candidates``: adds the input ``server.runtime.contract.CANDIDATES``, if the output
    product is in int8.

    Raises:
        OSError: a file of weights cannot be read.
    """
    if not kernels:
        return None
    model = onnx.ModelProto.FromString(path.read_bytes())
    patterns = dict(PATTERNS)
    if takes_candidates:
        patterns[Kernels.INT8_MATMUL] = partial(int8.fuse_int8_matmul, takes_candidates=True)
    index = GraphIndex(model.graph, path.parent)
    by_anchor = {  # of two patterns, the later one has priority
        id(found.anchor): found
        for kernel, pattern in patterns.items()
        if kernel in kernels
        for found in pattern(index)
    }
    if not by_anchor:
        return None
    rewrites = by_anchor.values()
    apply_rewrites(model.graph, rewrites)
    declared_shapes = make_width_dynamic(model.graph)
    weight_bytes = _weight_bytes(rewrites)
    packed: dict[str, Array] = {}
    for found in rewrites:
        for name in list(found.initializers):  # one at a time is in memory twice
            packed[name] = shared(found.initializers.pop(name))
    choose_tokens_early(model.graph, GraphIndex(model.graph, path.parent))
    fuse_norms(model.graph)
    counted = count_nodes(GraphIndex(model.graph, path.parent))
    unpacked_bytes = sum(_num_bytes(tensor) for tensor in model.graph.initializer)
    _declare_packed(model.graph, packed)
    model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    return RewrittenGraph(
        model.SerializeToString(),
        unpacked_bytes,
        weight_bytes,
        packed,
        counted,
        declared_shapes,
    )


def _weight_bytes(rewrites: Iterable[Rewrite]) -> int:
    """Bytes of the weights of all products, but of the one that computes candidates only.

    Adapters do not count: few tokens are multiplied by each.
    """
    return sum(
        array.nbytes
        for found in rewrites
        for node in found.new_nodes
        if CANDIDATES not in node.input and node.op_type not in embeddings.OPERATORS
        for name, array in found.initializers.items()
        if ADAPTER_PART not in name
    )


def _declare_packed(graph: onnx.GraphProto, packed: Mapping[str, Array]) -> None:
    """Declares constants that the session gets from memory, as external data."""
    for name, array in packed.items():
        tensor = graph.initializer.add(name=name, dims=array.shape)
        tensor.data_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="packed")


def _num_bytes(tensor: onnx.TensorProto) -> int:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return math.prod(tensor.dims) * dtype.itemsize
