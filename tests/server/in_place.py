"""Runs a model whose caches are updated in place, as the server binds them, on the CPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from server.runtime.memory import Array

_WIDE = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def run_in_place(
    model: onnx.ModelProto,
    inputs: Mapping[str, Array],
    library: Path | None = None,
    folder: Path | None = None,
) -> dict[str, Array]:
    """Runs a model; outputs ``present…`` are in the memory of inputs ``past…``.

    Args:
        inputs: the first has as many rows as outputs have; converted to the declared types.
        library: of operators.
        folder: of external weights.

    Returns:
        All outputs; 16-bit floats in fp32.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if library is not None:
        options.register_custom_ops_library(str(library))
    if folder is not None:
        key = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(key, str(folder))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*model.graph.input, *model.graph.output)
    }
    rows, binding = len(next(iter(inputs.values()))), session.io_binding()
    memory: dict[str, Array] = {}

    def place(name: str, array: Array, type_: int) -> Any:
        typed = array.astype(helper.tensor_dtype_to_np_dtype(type_))
        memory[name] = (typed.view(np.uint16) if type_ in _WIDE else typed).copy()
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(memory[name], type_)

    values = {name: place(name, array, types[name]) for name, array in inputs.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    places = {}
    for output in session.get_outputs():
        places[output.name] = name = output.name.replace("present", "past")
        if name not in values:
            shape = [size if isinstance(size, int) else rows for size in output.shape]
            values[name] = place(name, np.zeros(shape), types[output.name])
        binding.bind_ortvalue_output(output.name, values[name])
    session.run_with_iobinding(binding)
    return {name: _widen(memory[place_], types[name]) for name, place_ in places.items()}


def _widen(array: Array, type_: int) -> Array:
    if type_ not in _WIDE:
        return array
    return array.view(helper.tensor_dtype_to_np_dtype(type_)).astype(np.float32)
