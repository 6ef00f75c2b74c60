"""ONNX graphs: all external data is located, or the graph is rejected."""

from collections.abc import Iterator

import msgspec
import onnx
from onnx import helper

from model.bundle import BundleError, Manifest
from server.runtime.ort.external_data import check_external_data
from tests.fuzz.files import rewrite, scratch
from tests.fuzz.targets import manifest as bundle

SIZE = 1024
NAMES = ("encode.onnx", "encode.json", "encode.textproto", "encode.onnxtxt", "encode")


def run(data: bytes) -> None:
    """First byte: selects the file name."""
    if not data:
        return
    name = NAMES[data[0] % len(NAMES)]
    directory = scratch("graph")
    rewrite(directory / name, data[1:])
    try:
        check_external_data(directory, _MANIFEST, name)
    except BundleError as error:
        str(error).encode()


def seeds() -> Iterator[bytes]:
    outside = onnx.TensorProto(name="w", data_type=1, dims=[2], data_location="EXTERNAL")
    outside.external_data.add(key="location", value="encode.onnx")
    constant = helper.make_node("Constant", [], ["c"], value=outside)
    sparse = onnx.SparseTensorProto(values=outside, dims=[4])
    branch = helper.make_graph([constant], "branch", [], [], [outside])
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch),
        helper.make_node("Constant", [], ["s"], sparse_value=sparse),
    ]
    graph = helper.make_graph(nodes, "g", [], [], [outside])
    function = helper.make_function("d", "f", [], ["c"], [constant], [helper.make_opsetid("", 20)])
    model = helper.make_model(graph, functions=[function]).SerializeToString()
    for number in range(len(NAMES)):
        yield bytes([number]) + model


_MANIFEST = msgspec.json.decode(next(iter(bundle.seeds()))[1:], type=Manifest)
