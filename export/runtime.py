"""Runs graphs in ONNX Runtime for the parity check; only this file of ``export`` imports it."""

import ctypes
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes  # also registers the dtype name "bfloat16" in numpy
import numpy as np
import onnx
from numpy.typing import NDArray

# ONNX Runtime reads it when it is loaded; it would write a device id and events below the home.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime as ort

from model.adapters import ADAPTERS
from model.bundle import Dtype, GraphSpec
from model.graph_spec import IMAGE_POSITIONS, IMAGE_VECTORS

Array = NDArray[np.generic]
Floats = NDArray[np.float32]
PROVIDERS = ["CPUExecutionProvider"]


def onnxruntime_version() -> str:
    """The version of ONNX Runtime, for ``parity.json``."""
    return str(ort.__version__)


def _element_type(dtype: Dtype) -> type[np.generic] | int:
    """``dtype`` as IO bindings take it: bf16 by its ONNX number, all others as numpy types."""
    if dtype == Dtype.BFLOAT16:
        return int(onnx.TensorProto.BFLOAT16)
    return np.dtype(dtype.value).type


def _to_array(value: Any) -> Floats:
    """An output as an array; bf16, which the runtime cannot convert, is copied to fp32."""
    if value.data_type() != "tensor(bfloat16)":
        array: Floats = value.numpy()
        return array
    shape = tuple(value.shape())
    data = ctypes.string_at(value.data_ptr(), 2 * math.prod(shape))
    return np.frombuffer(data, ml_dtypes.bfloat16).reshape(shape).astype(np.float32)


class Session:
    """One graph of a bundle, on the CPU.

    A large graph does not prepack its weights: it reads them from the mapped file, which is
    slower but saves a copy in memory.

    ``adapter``: that of every row, counted from 1; 0 for none.
    """

    def __init__(
        self, directory: Path, graph: GraphSpec, *, is_large: bool = False, adapter: int = 0
    ) -> None:
        options = ort.SessionOptions()
        if is_large:
            options.add_session_config_entry("session.disable_prepacking", "1")
        options.log_severity_level = 3
        # PyTorch runs in this process too: spinning threads would take its cores.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = str(directory / graph.file)
        self.graph = graph
        self._adapter = adapter
        self.session = ort.InferenceSession(
            path,
            options,
            providers=PROVIDERS,
            disabled_optimizers=list(graph.disabled_optimizers),
        )

    def run(self, **inputs: Array) -> dict[str, Floats]:
        """Runs the graph; inputs are given by name, and cast to the dtypes of the signature."""
        return self.run_outputs((), **inputs)

    def run_outputs(self, more: Sequence[str], **inputs: Array) -> dict[str, Floats]:
        """As :meth:`run`; also returns the outputs ``more``, which the signature need not list."""
        specs = {spec.name: spec for spec in self.graph.inputs}
        inputs = self._with_adapters(inputs)
        feed = {name: np.asarray(x, specs[name].dtype.value) for name, x in inputs.items()}
        binding = self.session.io_binding()
        for name, array in feed.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        names = list(dict.fromkeys([*(spec.name for spec in self.graph.outputs), *more]))
        for name in names:
            binding.bind_output(name, "cpu")
        self.session.run_with_iobinding(binding)
        return dict(zip(names, map(_to_array, binding.get_outputs()), strict=True))

    def _with_adapters(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """``inputs``, with the adapter of each row if the graph takes it."""
        if all(spec.name != ADAPTERS for spec in self.graph.inputs):
            return inputs
        num_rows = len(inputs[self.graph.inputs[0].name])
        return {**inputs, ADAPTERS: np.full(num_rows, self._adapter, np.int32)}


class DecodeSession(Session):
    """A ``decode`` graph with its states for ``num_slots`` rows, updated in place."""

    def __init__(
        self,
        directory: Path,
        graph: GraphSpec,
        *,
        num_slots: int,
        capacity: int,
        source_capacity: int,
        is_large: bool = False,
        adapter: int = 0,
    ) -> None:
        super().__init__(directory, graph, is_large=is_large, adapter=adapter)
        sizes = {"length": capacity, "source_length": source_capacity}
        self.states: dict[str, Array] = {}
        for spec in graph.states:
            shape = [sizes[size] if isinstance(size, str) else size for size in spec.shape]
            self.states[spec.name] = np.zeros((num_slots, *shape), spec.dtype.value)
        self._no_images: dict[str, Array] = {}
        if graph.image_vector_size is not None:
            vectors = np.zeros((0, graph.image_vector_size), np.float32)
            self._no_images = {IMAGE_VECTORS: vectors, IMAGE_POSITIONS: np.zeros(0, np.int32)}

    def clear(self) -> None:
        """Resets all states to zero."""
        for state in self.states.values():
            state.fill(0)

    def step(self, first_slot: int = 0, **inputs: Array) -> Floats:
        """Runs rows in slots from ``first_slot`` on; past and present share memory.

        Inputs for images may be left out.

        Returns:
            logits ``[batch, vocabulary]``
        """
        return self.step_outputs(("logits",), first_slot, **inputs)["logits"]

    def step_outputs(
        self, names: Sequence[str], first_slot: int = 0, **inputs: Array
    ) -> dict[str, Floats]:
        """As :meth:`step`, but returns the outputs ``names``."""
        binding = self.session.io_binding()
        inputs = self._with_adapters(self._no_images | inputs)
        for spec in self.graph.inputs:
            array = np.ascontiguousarray(inputs[spec.name], spec.dtype.value)
            binding.bind_cpu_input(spec.name, array)
        for name in names:
            binding.bind_output(name, "cpu")
        batch = inputs["token_ids"].shape[0]
        for state in self.graph.states:
            rows = self.states[state.name][first_slot : first_slot + batch]
            where = ("cpu", 0, _element_type(state.dtype), rows.shape, rows.ctypes.data)
            binding.bind_input(state.input, *where)
            binding.bind_output(state.output, *where)
        self.session.run_with_iobinding(binding)
        outputs = binding.get_outputs()[: len(names)]  # in binding order
        return dict(zip(names, map(_to_array, outputs), strict=True))
