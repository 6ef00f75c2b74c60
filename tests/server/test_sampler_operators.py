"""All operators of the sampling graphs have CUDA kernels in ONNX Runtime."""

import onnx
import pytest
from onnx import TensorProto

from server.engine.gpu.sampler_graph import build, build_row_gather, build_top_tokens
from server.engine.gpu.sampler_inputs import LogitsSpec, SamplerVariant, SamplingMethod

# Operators with a CUDA kernel in ONNX Runtime: version at opset 18, and the element types
# of the first input. Source: docs/OperatorKernels.md of microsoft/onnxruntime.
_NUMBERS = {"FLOAT", "DOUBLE", "INT64"}
_ANY = {*_NUMBERS, "BOOL", "FLOAT16", "BFLOAT16"}
CUDA_KERNELS = {
    "Add": (14, _NUMBERS),
    "And": (7, {"BOOL"}),
    "Cast": (13, _ANY),
    "Concat": (13, _ANY),
    "CumSum": (14, {"DOUBLE", "INT64"}),
    "Div": (14, _NUMBERS),
    "Equal": (13, {*_NUMBERS, "BOOL"}),
    "Exp": (13, {"FLOAT", "DOUBLE"}),
    "Gather": (13, _ANY),
    "GatherElements": (13, _ANY),
    "GatherND": (13, {"DOUBLE", "FLOAT", "INT64"}),
    "Greater": (13, _NUMBERS),
    "GreaterOrEqual": (16, _NUMBERS),
    "Identity": (16, _ANY),
    "Less": (13, _NUMBERS),
    "LessOrEqual": (16, _NUMBERS),
    "Min": (13, _NUMBERS),
    "Mul": (14, _NUMBERS),
    "Or": (7, {"BOOL"}),
    "Pad": (18, {"FLOAT", "DOUBLE"}),
    "ReduceMax": (18, _NUMBERS),
    "ReduceMin": (18, {"FLOAT", "DOUBLE"}),
    "ReduceSum": (13, _NUMBERS),
    "Reshape": (14, _ANY),
    "ScatterElements": (18, _ANY),
    "Slice": (13, _ANY),
    "Sub": (14, _NUMBERS),
    "TopK": (11, _NUMBERS),
    "Unsqueeze": (13, _ANY),
    "Where": (16, {"BOOL"}),
}

SPECS = [
    LogitsSpec(5_000, TensorProto.FLOAT, 32, (3,)),
    LogitsSpec(5_000, TensorProto.BFLOAT16, 32, (3,)),
    LogitsSpec(4_096, TensorProto.FLOAT16, 32, (3,)),
    LogitsSpec(97, TensorProto.BFLOAT16, 256, (3,)),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_all_sampler_operators_have_cuda_kernels(spec: LogitsSpec) -> None:
    flags = [(edits, gathers) for edits in (False, True) for gathers in (False, True)]
    models = [
        build(SamplerVariant(method, *flag), spec) for method in SamplingMethod for flag in flags
    ]
    for has_targets, gathers_rows in flags:
        models.append(
            build_top_tokens(spec, 12, gathers_rows=gathers_rows, has_targets=has_targets)
        )
    for model in [*models, build_row_gather(spec)]:
        onnx.checker.check_model(model, full_check=True)
        graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
        types = {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
        types |= {value.name: value.type.tensor_type.elem_type for value in graph.input}
        types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
        for node in graph.node:
            version, allowed = CUDA_KERNELS[node.op_type]
            schema = onnx.defs.get_schema(node.op_type, model.opset_import[0].version)
            assert schema.since_version == version, node.op_type
            assert TensorProto.DataType.Name(types[node.input[0]]) in allowed, node
