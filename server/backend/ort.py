"""ONNX Runtime: the one file of the server that imports it."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from model.bundle import BundleError
from server.backend.base import Array, Block, Layout, Memory
from server.backend.device_memory import DeviceMemory
from server.backend.dtypes import TYPES, element_type, to_array
from server.backend.host_memory import HostMemory
from server.backend.packing import Packing
from server.backend.row_graphs import zeros_graph
from server.errors import StartupError

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class OrtBackend:
    """Loads graphs for one device.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        num_threads: of one run.
        has_device_memory: a CPU is treated as a device whose memory the host cannot reach.

    Raises:
        StartupError: the device is unknown, or this installation cannot use it.
    """

    def __init__(self, device: str, num_threads: int, *, has_device_memory: bool = False) -> None:
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
        self._where = (kind, int(index or 0))
        self._has_device_memory = has_device_memory or kind == "cuda"
        self._num_threads = num_threads
        self._loaded: dict[bytes, OrtGraph] = {}

    @property
    def version(self) -> str:
        return str(onnxruntime.__version__)

    def load(self, path: Path, disabled_optimizers: tuple[str, ...]) -> "OrtGraph":
        try:
            session = self._session(str(path), self._options(), disabled_optimizers)
        except Exception as error:
            # ONNX Runtime raises its own types, all derived from Exception.
            raise BundleError(f"{path.parent.parent.name}/{path.parent.name}: {error}") from error
        if self._provider not in session.get_providers():
            raise StartupError(
                f"device {self._device!r} was asked for, but ONNX Runtime fell back to "
                f"{', '.join(session.get_providers())}"
            )
        return OrtGraph(session, self._where if self._has_device_memory else None)

    def load_model(self, model: onnx.ModelProto) -> "OrtGraph":
        data = model.SerializeToString()
        if data not in self._loaded:
            options = self._options()
            # Constants would be folded into what they are to become: zeros, as large as a row.
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            self._loaded[data] = OrtGraph(self._session(data, options, ()), self._where)
        return self._loaded[data]

    def memory(self, layouts: Mapping[str, Layout]) -> Memory:
        return DeviceMemory(self, layouts) if self._has_device_memory else HostMemory(layouts)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Block:
        graph = self.load_model(zeros_graph(onnx.helper.np_dtype_to_tensor_dtype(dtype)))
        return graph.bind({}).run_kept({"shape": np.array(shape, np.int64)})["y"]

    def _options(self) -> onnxruntime.SessionOptions:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._num_threads
        options.inter_op_num_threads = 1
        # Threads that spin after a run would take the cores from gRPC.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        return options

    def _session(
        self,
        model: str | bytes,
        options: onnxruntime.SessionOptions,
        disabled_optimizers: tuple[str, ...],
    ) -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(
            model,
            options,
            providers=[(self._provider, self._provider_options)],
            disabled_optimizers=list(disabled_optimizers),
        )


class OrtGraph:
    """A session. It may run in several threads at once, each with its own binding.

    Args:
        session: of the graph.
        device: where inputs go and outputs may stay; None is the host, where both simply are.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, device: tuple[str, int] | None
    ) -> None:
        self._session = session
        self._device = device
        self._outputs = {
            node.name: (TYPES[node.type], tuple(node.shape)) for node in session.get_outputs()
        }

    def bind(
        self, states: Mapping[tuple[str, str], Block], outputs: Collection[str] | None = None
    ) -> "OrtBoundGraph":
        binding = self._session.io_binding()
        for (input_name, output_name), block in states.items():
            binding.bind_input(input_name, *_where(block))
            binding.bind_output(output_name, *_where(block))
        state_outputs = {output for _, output in states}
        wanted = {
            name: spec
            for name, spec in self._outputs.items()
            if name not in state_outputs and (outputs is None or name in outputs)
        }
        keep_alive = tuple(states.values())
        if self._device is None:
            return OrtBoundGraph(self._session, binding, wanted, keep_alive)
        return OrtDeviceBoundGraph(self._session, binding, wanted, keep_alive, self._device)


class OrtBoundGraph:
    """An ``IOBinding`` that keeps the memory it points to alive. All of it is on the host.

    Inputs stay bound while their shapes are the same: a run copies new values to where they were.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        binding: Any,
        outputs: Mapping[str, tuple[np.dtype[Any], tuple[int | str, ...]]],
        keep_alive: tuple[Block, ...],
    ) -> None:
        self._session = session
        self._binding = binding
        self._outputs = outputs
        self._keep_alive = keep_alive
        self._inputs: dict[str, Array] = {}
        self._fixed: dict[str, Array] = {}

    def run(self, inputs: Mapping[str, Array | Block]) -> dict[str, Array]:
        self._bind_inputs(inputs)
        first = inputs.get("logit_positions", next(iter(inputs.values())))
        self._bind_outputs(first.shape[0] if first.shape else 1)
        self._session.run_with_iobinding(self._binding)
        if len(self._fixed) == len(self._outputs):
            return dict(self._fixed)
        return {name: to_array(value) for name, value in self._values().items()}

    def run_kept(self, inputs: Mapping[str, Array | Block]) -> dict[str, Block]:
        return {name: Block.of(array) for name, array in self.run(inputs).items()}

    def _values(self) -> dict[str, Any]:
        """Outputs come in the order they were bound: states first, then the rest."""
        values = self._binding.get_outputs()
        return dict(zip(self._outputs, values[len(values) - len(self._outputs) :], strict=True))

    def _bind_inputs(self, inputs: Mapping[str, Array | Block]) -> None:
        for name, value in inputs.items():
            if isinstance(value, Block):
                self._binding.bind_input(name, *_where(value))
                continue
            bound = self._inputs.get(name)
            if bound is not None and (bound.shape, bound.dtype) == (value.shape, value.dtype):
                bound[...] = value
                continue
            bound = self._inputs[name] = np.array(value, order="C")
            self._binding.bind_input(name, *_where(Block.of(bound)))

    def _bind_outputs(self, num_rows: int) -> None:
        for name, (dtype, shape) in self._outputs.items():
            if len(shape) == 2 and isinstance(shape[1], int):
                self._bind_fixed(name, dtype, (num_rows, shape[1]))
            else:
                self._binding.bind_output(name, "cpu")

    def _bind_fixed(self, name: str, dtype: np.dtype[Any], shape: tuple[int, int]) -> None:
        """Binds an output ``[batch, width]`` to memory that is kept from run to run."""
        array = self._fixed.get(name)
        if array is None or array.shape != shape:
            array = self._fixed[name] = np.empty(shape, dtype)
            self._binding.bind_output(name, *_where(Block.of(array)))


class OrtDeviceBoundGraph(OrtBoundGraph):
    """As :class:`OrtBoundGraph`, over memory of a device.

    Inputs of any rank go up together, into memory that stays bound while their shapes are the
    same. Scalars are what the host reads of a run, so they stay on the host.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        binding: Any,
        outputs: Mapping[str, tuple[np.dtype[Any], tuple[int | str, ...]]],
        keep_alive: tuple[Block, ...],
        device: tuple[str, int],
    ) -> None:
        super().__init__(session, binding, outputs, keep_alive)
        self._device = device
        self._packing = Packing({})
        self._packed: Any = None

    def run(self, inputs: Mapping[str, Array | Block]) -> dict[str, Array]:
        return {name: to_array(value) for name, value in self._run(inputs, "cpu").items()}

    def run_kept(self, inputs: Mapping[str, Array | Block]) -> dict[str, Block]:
        return {
            name: self._block(value) for name, value in self._run(inputs, *self._device).items()
        }

    def _run(self, inputs: Mapping[str, Array | Block], *where: Any) -> dict[str, Any]:
        self._bind_inputs(inputs)
        for name in self._outputs:
            self._binding.bind_output(name, *where)
        self._session.run_with_iobinding(self._binding)
        return self._values()

    def _bind_inputs(self, inputs: Mapping[str, Array | Block]) -> None:
        arrays: dict[str, Array] = {}
        for name, value in inputs.items():
            if isinstance(value, Block):
                self._binding.bind_input(name, *_where(value))
            elif value.ndim == 0:
                bound = self._inputs[name] = value.copy()
                self._binding.bind_input(name, *_where(Block.of(bound)))
            else:
                arrays[name] = value
        if not self._packing.fits(arrays):
            self._bind_packed(arrays)
        if arrays:
            self._packed.update_inplace(self._packing.pack(arrays))

    def _bind_packed(self, arrays: Mapping[str, Array]) -> None:
        self._packing = Packing(arrays)
        size = [self._packing.num_words]
        self._packed = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
            size, np.int64, *self._device
        )
        for name, array in arrays.items():
            pointer = self._packed.data_ptr() + self._packing.offset_of(name)
            where = (*self._device, element_type(array.dtype), array.shape, pointer)
            self._binding.bind_input(name, *where)

    def _block(self, value: Any) -> Block:
        """An ``OrtValue`` as a block, which keeps it."""
        dtype, shape = TYPES[value.data_type()], tuple(value.shape())
        return Block(*self._device, dtype, shape, value.data_ptr(), value)


def _where(block: Block) -> tuple[Any, ...]:
    """What a binding wants to know of memory."""
    return block.device, block.index, element_type(block.dtype), block.shape, block.pointer
