"""Codec of ModelInfer and ModelStreamInfer: protobuf messages ↔ protocol-neutral requests."""

from collections.abc import Mapping
from typing import Any

from protos.inference import open_inference_pb2 as pb
from server.errors import InvalidArgumentError
from server.frontends.oip.messages import InferRequest, InferResponse
from server.frontends.oip.options import MAX_PARAMETERS, Parameter
from server.frontends.oip.tensors import MAX_INPUTS, InputTensor
from server.printable import quoted

# The field of InferTensorContents with the elements, by datatype. FP16 and BF16 have none.
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_SHARED_MEMORY = "shared_memory_region"


def decode_infer(message: pb.ModelInferRequest) -> InferRequest:
    """Decodes a request. Elements are not copied.

    Raises:
        InvalidArgumentError: contents do not match the inputs, or a feature is not supported; the
            error names the tensor or field.
    """
    if len(message.inputs) > MAX_INPUTS:
        raise InvalidArgumentError("inputs", f"{len(message.inputs)} given, at most {MAX_INPUTS}")
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise InvalidArgumentError(
            "raw_input_contents", f"{len(raw)} given for {len(message.inputs)} inputs"
        )
    return InferRequest(
        model=message.model_name,
        version=message.model_version,
        id=message.id,
        parameters=_parameters(message.parameters),
        inputs=tuple(
            _input(tensor, raw[index] if raw else None)
            for index, tensor in enumerate(message.inputs)
        ),
        outputs=tuple(_output(tensor) for tensor in message.outputs),
    )


def encode_infer(response: InferResponse) -> pb.ModelInferResponse:
    """Encodes a response, with raw contents."""
    message = pb.ModelInferResponse(
        model_name=response.model,
        model_version=response.version,
        id=response.id,
        raw_output_contents=[tensor.raw for tensor in response.outputs],
    )
    for tensor in response.outputs:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    for name, value in response.parameters.items():
        if isinstance(value, bool):
            message.parameters[name].bool_param = value
        elif isinstance(value, int):
            message.parameters[name].int64_param = value
        else:
            message.parameters[name].string_param = str(value)
    return message


def _parameters(given: Mapping[str, pb.InferParameter]) -> dict[str, Parameter]:
    if len(given) > MAX_PARAMETERS:
        raise InvalidArgumentError("parameters", f"{len(given)} given, at most {MAX_PARAMETERS}")
    values: dict[str, Parameter] = {}
    for name, parameter in given.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise InvalidArgumentError(f"parameters.{name}", "has no value")
        values[name] = getattr(parameter, kind)
    return values


def _input(tensor: pb.ModelInferRequest.InferInputTensor, raw: bytes | None) -> InputTensor:
    name = tensor.name
    if _SHARED_MEMORY in tensor.parameters:
        raise InvalidArgumentError(name, "shared memory is not supported: send the contents")
    shape = tuple(tensor.shape)
    if raw is None:
        return InputTensor(name, tensor.datatype, shape, None, _typed(tensor))
    if tensor.HasField("contents"):
        raise InvalidArgumentError(name, "has both raw and typed contents")
    return InputTensor(name, tensor.datatype, shape, raw)


def _typed(tensor: pb.ModelInferRequest.InferInputTensor) -> Any:
    """The elements in the field of the tensor's datatype. Rejects elements in other fields."""
    own = _CONTENTS.get(tensor.datatype)
    for field, _ in tensor.contents.ListFields():
        if field.name != own:
            raise InvalidArgumentError(
                tensor.name,
                f"datatype {quoted(tensor.datatype)} has {own or 'only raw contents'}, "
                f"not {field.name}",
            )
    return () if own is None else getattr(tensor.contents, own)


def _output(tensor: pb.ModelInferRequest.InferRequestedOutputTensor) -> str:
    for name in (_SHARED_MEMORY, "classification"):
        if name in tensor.parameters:
            raise InvalidArgumentError(tensor.name, f"parameter {name} is not supported")
    return str(tensor.name)
