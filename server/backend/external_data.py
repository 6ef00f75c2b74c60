"""Where an ONNX file says its weights are: checked before a runtime opens them."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from model.bundle import BundleError, Manifest


def check_external_data(directory: Path, manifest: Manifest, file: str) -> None:
    """Checks that a graph's external data are files that the manifest lists.

    Args:
        directory: of the bundle.
        manifest: of the bundle; its files are verified already.
        file: the graph, relative to ``directory``.

    Raises:
        BundleError: the file is no ONNX model, or a tensor's location is not listed.
    """
    label = f"{manifest.name}/{manifest.version}"
    listed = {record.path for record in manifest.files}
    try:
        proto = onnx.load(str(directory / file), load_external_data=False)
    except DecodeError as error:
        raise BundleError(f"{label}: file {file!r} is not an ONNX model") from error
    for tensor in _tensors(proto.graph, *(function.node for function in proto.functions)):
        for entry in tensor.external_data:
            if entry.key == "location" and entry.value not in listed:
                raise BundleError(
                    f"{label}: file {file!r} reads {entry.value!r}, which bundle.json does not list"
                )


def _tensors(
    graph: onnx.GraphProto, *functions: Iterable[onnx.NodeProto]
) -> Iterator[onnx.TensorProto]:
    """Every tensor of a graph: initializers, sparse ones, attributes, subgraphs, functions."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _attribute_tensors(graph.node)
    for nodes in functions:
        yield from _attribute_tensors(nodes)


def _attribute_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for subgraph in (attribute.g, *attribute.graphs):
                if subgraph.ByteSize():
                    yield from _tensors(subgraph)
