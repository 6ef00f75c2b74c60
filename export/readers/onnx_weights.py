"""The weights of an ONNX graph from PyTorch's older exporter, by their names in the module.

Weights are fp32, or quantized by ONNX Runtime's tools: matrices of ``MatMulNBits`` in blocks of 4
or 8 bits (ONNX Runtime, docs/ContribOperators.md), matrices behind ``DequantizeLinear`` (QDQ) with
one scale or one per output, lookup tables as bytes with one scale.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import numpy_helper

from export.errors import SourceError, UnsupportedError

Array = NDArray[Any]
MAX_BYTES = 2**31 - 1  # the limit of a protocol buffer
_QUANTIZED = "_quantized"


class OnnxWeights(Mapping[str, torch.Tensor]):
    """Weights by name, each converted to fp32 on access; linear ones are ``[outputs, inputs]``.

    Raises:
        SourceError: the file is damaged.
        UnsupportedError: weights are in external files, or quantized in another way.
    """

    def __init__(self, path: Path) -> None:
        if path.stat().st_size > MAX_BYTES:
            raise SourceError(f"{path.name}: larger than {MAX_BYTES} bytes")
        try:
            graph = onnx.load(str(path), load_external_data=False).graph
        except DecodeError as error:
            raise SourceError(f"{path.name}: {error}") from error
        self._origin = path.name
        self.graph = graph
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._read: dict[str, Callable[[], Array]] = {}
        for name, tensor in self._tensors.items():
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                raise UnsupportedError(f"{path.name}: {name} is in another file")
            whole = name.removesuffix(_QUANTIZED)
            if whole != name and _is_parameter(whole):
                self._read[whole] = partial(self._table, whole)
            elif tensor.data_type == onnx.TensorProto.FLOAT and _is_parameter(name):
                self._read[name] = partial(self._array, name)
        dequantized = {
            node.output[0]: node
            for node in graph.node
            if node.op_type == "DequantizeLinear" and node.input[0] in self._tensors
        }
        for node in graph.node:
            if node.op_type == "MatMulNBits":
                self._read[f"{_module(node.name)}.weight"] = partial(self._matrix, node)
            elif node.op_type == "MatMul" and node.input[1] in dequantized:
                read = partial(self._dequantized, dequantized[node.input[1]])
                self._read[f"{_module(node.name)}.weight"] = read

    def __getitem__(self, name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(self._read[name](), np.float32))

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)

    def _array(self, name: str) -> Array:
        if name not in self._tensors:
            raise SourceError(f"{self._origin}: {name} is missing")
        try:
            array: Array = numpy_helper.to_array(self._tensors[name])
        except ValueError as error:
            raise SourceError(f"{self._origin}: {name}: {error}") from error
        return array

    def _table(self, name: str) -> Array:
        values = self._array(name + _QUANTIZED).astype(np.float32)
        scale, zero = self._array(f"{name}_scale"), self._array(f"{name}_zero_point")
        if scale.size != 1 or zero.size != 1:
            raise UnsupportedError(
                f"{self._origin}: {name} has {scale.size} scales; 1 is supported"
            )
        table: Array = (values - zero.astype(np.float32)) * scale
        return table

    def _dequantized(self, node: onnx.NodeProto) -> Array:
        """The result of ``DequantizeLinear``, a matrix ``[inputs, outputs]``."""
        name = node.input[0]
        values = self._array(name).astype(np.float32)
        parameters = [self._array(one) for one in node.input[1:] if one]
        num_outputs = values.shape[-1] if values.ndim == 2 else 0
        axis = next((one.i for one in node.attribute if one.name == "axis"), 1)
        sizes = [one.size for one in parameters]
        for_each = sizes and all(size == num_outputs for size in sizes) and axis in (1, -1)
        if not num_outputs or not (for_each or all(size == 1 for size in sizes)):
            raise UnsupportedError(
                f"{self._origin}: {name} is {values.shape} with {sizes} scales and zero points; "
                "one or one for each output is supported"
            )
        scale, *zeros = (one.astype(np.float32).reshape(-1) for one in parameters)
        matrix: Array = ((values - (zeros[0] if zeros else 0)) * scale).T
        return matrix

    def _matrix(self, node: onnx.NodeProto) -> Array:
        """The matrix of ``MatMulNBits``: ``[outputs, blocks, bytes per block]``, low bits first."""
        size = {attribute.name: attribute.i for attribute in node.attribute}
        bits = size.get("bits", 4)
        inputs = [name for name in node.input if name]
        if bits not in (4, 8) or len(inputs) not in (3, 4):
            raise UnsupportedError(
                f"{self._origin}: {node.name}: {bits} bits, {len(inputs)} inputs"
            )
        outputs, width, block = size["N"], size["K"], size["block_size"]
        blocks = -(-width // block)
        data = self._array(inputs[1])
        expected = (outputs, blocks, block * bits // 8)
        if data.shape != expected or data.dtype != np.uint8:
            raise SourceError(f"{self._origin}: {inputs[1]} is {data.shape}, not {expected}")
        values = _unpacked(data, bits).reshape(outputs, blocks, block)
        scales = self._array(inputs[2]).reshape(outputs, blocks, 1)
        zeros: Array | float = 2.0 ** (bits - 1)
        if len(inputs) == 4:
            packed = self._array(inputs[3]).reshape(outputs, -1)
            zeros = _unpacked(packed, bits)[:, :blocks, None]
        matrix: Array = ((values - zeros) * scales).reshape(outputs, -1)[:, :width]
        return matrix


def _unpacked(data: Array, bits: int) -> NDArray[np.float32]:
    """Unpacks 4- or 8-bit integers from bytes, on the last axis."""
    if bits == 8:
        return data.astype(np.float32)
    raw = data.astype(np.uint8)
    pairs = np.stack([raw & 0x0F, raw >> 4], -1)
    return pairs.reshape(*raw.shape[:-1], -1).astype(np.float32)


def _is_parameter(name: str) -> bool:
    """Whether ``name`` is a module's parameter rather than a name that the exporter generated."""
    return name.rpartition(".")[2] in ("weight", "bias")


def _module(node: str) -> str:
    """A node's module: ``encoder.layer.0.dense`` for ``/encoder/layer.0/dense/MatMul_Q4``."""
    return node.strip("/").rpartition("/")[0].replace("/", ".")
