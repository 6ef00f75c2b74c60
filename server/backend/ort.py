"""ONNX Runtime: the one file of the server that imports it."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from model.bundle import BundleError
from server.backend.base import Array
from server.backend.dtypes import TYPES, element_type, to_array
from server.errors import StartupError

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class OrtBackend:
    """Loads graphs for one device.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        num_threads: of one run.

    Raises:
        StartupError: the device is unknown, or this installation cannot use it.
    """

    def __init__(self, device: str, num_threads: int) -> None:
        kind, _, index = device.partition(":")
        if kind not in PROVIDERS or (index and not index.isdigit()):
            raise StartupError(f"unknown device {device!r}: use cpu, cuda or cuda:N")
        if PROVIDERS[kind] not in onnxruntime.get_available_providers():
            raise StartupError(
                f"device {device!r} was asked for, but this ONNX Runtime has only "
                f"{', '.join(onnxruntime.get_available_providers())}"
            )
        if kind == "cuda":
            onnxruntime.preload_dlls()
        self._provider = PROVIDERS[kind]
        self._provider_options: dict[str, str] = (
            {"device_id": index or "0"} if kind == "cuda" else {}
        )
        self._device = device
        self._num_threads = num_threads

    @property
    def version(self) -> str:
        return str(onnxruntime.__version__)

    def load(self, path: Path, disabled_optimizers: tuple[str, ...]) -> "OrtGraph":
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._num_threads
        options.inter_op_num_threads = 1
        # Threads that spin after a run would take the cores from gRPC.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        try:
            session = onnxruntime.InferenceSession(
                str(path),
                options,
                providers=[(self._provider, self._provider_options)],
                disabled_optimizers=list(disabled_optimizers),
            )
        except Exception as error:
            # ONNX Runtime raises its own types, all derived from Exception.
            raise BundleError(f"{path.parent.parent.name}/{path.parent.name}: {error}") from error
        if self._provider not in session.get_providers():
            raise StartupError(
                f"device {self._device!r} was asked for, but ONNX Runtime fell back to "
                f"{', '.join(session.get_providers())}"
            )
        return OrtGraph(session)


class OrtGraph:
    """A session. It may run in several threads at once, each with its own binding."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session
        self._outputs = {
            node.name: (TYPES[node.type], tuple(node.shape)) for node in session.get_outputs()
        }

    def bind(
        self, states: Mapping[tuple[str, str], Array], outputs: Collection[str] | None = None
    ) -> "OrtBoundGraph":
        binding = self._session.io_binding()
        for (input_name, output_name), array in states.items():
            if not array.flags.c_contiguous:
                raise ValueError(f"state {input_name!r} is not contiguous")
            where = ("cpu", 0, element_type(array.dtype), array.shape, array.ctypes.data)
            binding.bind_input(input_name, *where)
            binding.bind_output(output_name, *where)
        state_outputs = {output for _, output in states}
        wanted = {
            name: spec
            for name, spec in self._outputs.items()
            if name not in state_outputs and (outputs is None or name in outputs)
        }
        return OrtBoundGraph(self._session, binding, wanted, tuple(states.values()))


class OrtBoundGraph:
    """An ``IOBinding`` that keeps the memory it points to alive."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        binding: Any,
        outputs: Mapping[str, tuple[np.dtype[Any], tuple[int | str, ...]]],
        keep_alive: tuple[Array, ...],
    ) -> None:
        self._session = session
        self._binding = binding
        self._outputs = outputs
        self._keep_alive = keep_alive
        self._fixed: dict[str, Array] = {}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        for name, array in inputs.items():
            self._binding.bind_input(
                name, "cpu", 0, element_type(array.dtype), array.shape, array.ctypes.data
            )
        batch = inputs.get("logit_positions", next(iter(inputs.values()))).shape[0]
        for name, (dtype, shape) in self._outputs.items():
            if len(shape) == 2 and isinstance(shape[1], int):
                self._bind_fixed(name, dtype, (batch, shape[1]))
            else:
                self._binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(self._binding)
        if len(self._fixed) == len(self._outputs):
            return dict(self._fixed)
        # Outputs come in the order they were bound: states first, then the rest.
        values = self._binding.get_outputs()[-len(self._outputs) :]
        return {name: to_array(value) for name, value in zip(self._outputs, values, strict=True)}

    def _bind_fixed(self, name: str, dtype: np.dtype[Any], shape: tuple[int, int]) -> None:
        """Binds an output ``[batch, width]`` to memory that is kept from run to run."""
        array = self._fixed.get(name)
        if array is None or array.shape != shape:
            array = self._fixed[name] = np.empty(shape, dtype)
        self._binding.bind_output(name, "cpu", 0, element_type(dtype), shape, array.ctypes.data)
