"""The ONNX Runtime backend: the only file of the server that imports onnxruntime."""

import itertools
import logging
import os
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

# Read when the library is loaded: it would write a device id and events below the home directory.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# cuDNN's attention prepares each new shape of a batch for 50 ms: docs/gpu.md.
os.environ.setdefault("ORT_ENABLE_CUDNN_FLASH_ATTENTION", "0")
import onnxruntime

from model.bundle import BundleError
from server.errors import StartupError
from server.runtime import devices
from server.runtime.contract import (
    FEW_ROWS,
    Array,
    KernelNodes,
    Layout,
    Memory,
    StepGraphs,
    Tensor,
)
from server.runtime.cuda import copies, cudart, key_ranges, memory_ops
from server.runtime.cuda.cudart import CudaError
from server.runtime.cuda.device_memory import DeviceMemory
from server.runtime.cuda.recording import Stream
from server.runtime.cuda.rewrite import replace_reductions, rewrite_model
from server.runtime.cuda.shared_weights import Weight, share_weights
from server.runtime.cuda.steps import is_decoder, rewrite_steps
from server.runtime.devices import Device, NodePlacement
from server.runtime.host_memory import HostMemory
from server.runtime.kernels.library import CUDA_LIBRARY, LIBRARY
from server.runtime.kernels.rewrite import RewrittenGraph, kernel_nodes, load_rewritten
from server.runtime.ort.dtypes import DTYPES
from server.runtime.ort.io_binding import DeviceBoundGraph, HostBoundGraph, binding_arguments

log = logging.getLogger(__name__)


# More rows than any step has.
_MANY_ROWS = 1 << 30
# Changes a graph whose weights are in a folder. Returns whether it did.
_Change = Callable[[onnx.ModelProto, Path], bool]


class OrtBackend:
    """Implements :class:`server.runtime.contract.Backend` for one device.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        num_threads: intra-op threads of one run.
        has_device_memory: treats a CPU as a device whose memory the host cannot access (for
            tests of the GPU code path).
        records: records repeated runs as CUDA graphs, and replays them.

    Raises:
        StartupError: the device is unknown, or this installation cannot use it.
    """

    def __init__(
        self,
        device: str,
        num_threads: int,
        *,
        has_device_memory: bool = False,
        records: bool = False,
    ) -> None:
        self._name, self._device = device, devices.parse_device(device)
        if self._device.provider not in onnxruntime.get_available_providers():
            raise StartupError(
                f"device {device!r} was asked for, but this ONNX Runtime has only "
                f"{', '.join(onnxruntime.get_available_providers())}"
            )
        if self._device.kind == "cuda":
            onnxruntime.preload_dlls()
        self._has_device_memory = has_device_memory or self._device.kind == "cuda"
        self._records = records and self._device.kind == "cuda"
        self._num_threads = num_threads
        self._loaded: dict[bytes, OrtGraph] = {}
        self._shared: weakref.WeakValueDictionary[Weight, onnxruntime.OrtValue] = (
            weakref.WeakValueDictionary()
        )
        self._are_ranges_taken: bool | None = None  # None: not known yet
        self._check_device()

    @property
    def version(self) -> str:
        return str(onnxruntime.__version__)

    @property
    def free_bytes(self) -> int | None:
        """As :attr:`server.runtime.contract.Memory.free_bytes`."""
        return cudart.free_bytes(self._device.number) if self._device.kind == "cuda" else None

    def load(
        self,
        path: Path,
        disabled_optimizers: tuple[str, ...],
        *,
        repeats: bool = False,
        takes_candidates: bool = False,
        suppressed: tuple[int, ...] = (),
    ) -> "OrtGraph":
        try:
            if self._device.kind == "cuda":
                change = partial(
                    rewrite_model, suppressed=suppressed, takes_ranges=self._takes_ranges
                )
                records = self._records and repeats
                return self._load_cuda(path, disabled_optimizers, change, records=records)
            with_kernels = self._rewritten(path, takes_candidates)
            options, weights = self._load_options(), []
            model: str | bytes = str(path)
            if with_kernels is not None:
                model = with_kernels.model
                _use_library(options, LIBRARY, path.parent)
                weights = _use_packed(options, with_kernels)
            loaded = self._session(model, options, disabled_optimizers)
            loaded.session.weights = weights  # which it reads where they are
            nodes = kernel_nodes(path, with_kernels)
            return self._checked(loaded, path, nodes, with_kernels=with_kernels)
        except (BundleError, StartupError):
            raise
        except Exception as error:
            # ONNX Runtime raises types of its own, which share no base class but Exception.
            raise BundleError(f"{_label(path)}: {error}") from error

    def load_steps(
        self, path: Path, disabled_optimizers: tuple[str, ...], suppressed: tuple[int, ...] = ()
    ) -> StepGraphs | None:
        if not self._shares_weights:
            return None
        exported = onnx.load(str(path), load_external_data=False)
        try:
            few, many = (
                self._load_changed(
                    exported,
                    path,
                    disabled_optimizers,
                    partial(rewrite_steps, suppressed=suppressed, max_rows=max_rows),
                    shares=True,
                    records=True,
                )
                for max_rows in (FEW_ROWS, _MANY_ROWS)
            )
        except Exception as error:
            log.warning("%s has no graphs for decode steps: %s", _label(path), error)
            return None
        return StepGraphs(few, many)

    def _load_cuda(
        self, path: Path, disabled_optimizers: tuple[str, ...], change: _Change, *, records: bool
    ) -> "OrtGraph":
        """Loads a changed graph. A decoder's shares weights with those of steps, if it can."""
        exported = onnx.load(str(path), load_external_data=False)
        load = partial(
            self._load_changed, exported, path, disabled_optimizers, change, records=records
        )
        if self._shares_weights and is_decoder(exported):
            try:
                return load(shares=True)
            except Exception as error:
                log.warning("%s shares no weights: %s", _label(path), error)
        return load(shares=False)

    @property
    def _shares_weights(self) -> bool:
        return self._records and CUDA_LIBRARY.exists()

    def _takes_ranges(self) -> bool:
        if self._are_ranges_taken is None:
            self._are_ranges_taken = key_ranges.are_taken(self.load_model, onnx.TensorProto.FLOAT16)
        return self._are_ranges_taken

    def _load_changed(
        self,
        exported: onnx.ModelProto,
        path: Path,
        disabled_optimizers: tuple[str, ...],
        change: _Change,
        *,
        shares: bool,
        records: bool,
    ) -> "OrtGraph":
        """Loads a changed copy of the graph in ``path``, which may share weights with others."""
        model = onnx.ModelProto.FromString(exported.SerializeToString())
        shared = share_weights(model, path.parent) if shares else {}
        is_changed = change(model, path.parent) or bool(shared)
        options = self._load_options()
        _use_library(options, CUDA_LIBRARY, path.parent)
        values = {name: self.transposed(weight) for name, weight in shared.items()}
        for name, value in values.items():
            options.add_initializer(name, value)
        content = model.SerializeToString() if is_changed else str(path)
        loaded = self._session(content, options, disabled_optimizers, records=records)
        loaded.session.weights = list(values.values())
        return self._checked(loaded, path, KernelNodes())

    def _load_options(self) -> onnxruntime.SessionOptions:
        options = self._options()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        return options

    def transposed(self, weight: Weight) -> onnxruntime.OrtValue:
        """A weight in the device's memory, transposed; one for all sessions that hold it."""
        value = self._shared.get(weight)
        if value is None:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(weight.type_)
            array = np.memmap(weight.file, dtype, "r", weight.offset, (weight.rows, weight.columns))
            transpose = self.load_model(memory_ops.transpose_graph(weight.type_)).bind({})
            value = transpose.run_on_device({"x": np.asarray(array)})["y"].owner
            self._shared[weight] = value
        return value

    def _checked(
        self,
        loaded: "_Loaded",
        path: Path,
        nodes: KernelNodes,
        *,
        with_kernels: RewrittenGraph | None = None,
    ) -> "OrtGraph":
        """The graph of a session, if all of its nodes run where they should."""
        self._check_provider(loaded.session)
        placements = [
            NodePlacement(part.ep_name, node.op_type)
            for part in loaded.session.get_provider_graph_assignment_info()
            for node in part.get_nodes()
        ]
        misplaced = devices.misplaced_operators(self._device, placements)
        if misplaced:
            raise BundleError(
                f"{_label(path)}: {path.name}: {', '.join(misplaced)} would run on the CPU, not on "
                f"{self._name}: export it with --device {self._device.kind}"
            )
        device = self._device if self._has_device_memory else None
        return OrtGraph(
            *(loaded.session, device, nodes),
            records=loaded.records,
            stream=loaded.stream,
            with_kernels=with_kernels,
        )

    def unshared_bytes(self, path: Path, *, takes_candidates: bool = False) -> int:
        with_kernels = self._rewritten(path, takes_candidates)
        if with_kernels is not None:
            return with_kernels.unpacked_bytes
        return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))

    def weight_bytes(self, path: Path, *, takes_candidates: bool = False) -> int | None:
        with_kernels = self._rewritten(path, takes_candidates)
        return None if with_kernels is None else with_kernels.weight_bytes

    def _rewritten(self, path: Path, takes_candidates: bool) -> RewrittenGraph | None:
        if self._device.kind != "cpu":
            return None
        return load_rewritten(path, takes_candidates=takes_candidates)

    def load_model(self, model: onnx.ModelProto) -> "OrtGraph":
        data = model.SerializeToString()
        if data not in self._loaded:
            options = self._options()
            # Constant folding would store the zeros of zeros_graph, as large as a row.
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            loaded = data
            if self._device.kind == "cuda":
                loaded = replace_reductions(model).SerializeToString()
                _use_library(options, CUDA_LIBRARY)
            session = self._session(loaded, options, ()).session
            self._loaded[data] = OrtGraph(session, self._device, KernelNodes())
        return self._loaded[data]

    def memory(self, layouts: Mapping[str, Layout]) -> Memory:
        return DeviceMemory(self, layouts) if self._has_device_memory else HostMemory(layouts)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        """Implements :class:`server.runtime.cuda.device_memory.DeviceBackend`."""
        type_ = onnx.helper.np_dtype_to_tensor_dtype(dtype)
        bound = self.load_model(memory_ops.zeros_graph(type_)).bind({})
        return bound.run_on_device({"shape": np.array(shape, np.int64)})["y"]

    def copy(self, groups: Sequence[Array]) -> bool:
        """Implements :class:`server.runtime.cuda.device_memory.DeviceBackend`."""
        if self._device.kind != "cuda" or not cudart.is_loaded():
            return False
        copies.copy(self._device.number, groups)
        return True

    def clear(self, parts: Sequence[tuple[int, int]]) -> bool:
        """Implements :class:`server.runtime.cuda.device_memory.DeviceBackend`."""
        if self._device.kind != "cuda" or not cudart.is_loaded():
            return False
        cudart.zero(self._device.number, parts)
        return True

    def to_host(self, tensor: Tensor) -> Array:
        """Implements :class:`server.runtime.cuda.device_memory.DeviceBackend`."""
        value: Any = tensor.owner
        array: Array = value.numpy()
        return array

    def _check_device(self) -> None:
        """Allocates a tensor on the device. Raises ``StartupError`` if that fails."""
        try:
            graph = self.load_model(memory_ops.zeros_graph(onnx.TensorProto.FLOAT))
            self._check_provider(graph.session)
            self.zeros((1,), np.dtype(np.float32))
        except StartupError:
            raise
        except Exception as error:
            raise StartupError(f"device {self._name!r} cannot be used: {error}") from error

    def _check_provider(self, session: onnxruntime.InferenceSession) -> None:
        """ONNX Runtime drops a provider silently if it cannot load the provider's libraries."""
        if session.get_providers()[0] != self._device.provider:
            raise StartupError(
                f"device {self._name!r} was asked for, but ONNX Runtime fell back to "
                f"{', '.join(session.get_providers())}"
            )

    def _options(self) -> onnxruntime.SessionOptions:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._num_threads
        options.inter_op_num_threads = 1
        # Threads that spin after a run would take CPU time from the front end.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        return options

    def _session(
        self,
        model: str | bytes,
        options: onnxruntime.SessionOptions,
        disabled_optimizers: tuple[str, ...],
        *,
        records: bool = False,
    ) -> "_Loaded":

        def load(*, records: bool, stream: Stream | None = None) -> onnxruntime.InferenceSession:
            settings = devices.provider_options(
                self._device, records=records, stream=None if stream is None else stream.handle
            )
            providers = [(self._device.provider, settings)]
            return onnxruntime.InferenceSession(
                model, options, providers=providers, disabled_optimizers=list(disabled_optimizers)
            )

        if not records:
            return _Loaded(load(records=False))
        try:
            stream = Stream(self._device.number)
        except CudaError as error:
            log.warning("steps do not run ahead of the host: %s", error)
            stream = None
        try:
            session = load(records=True, stream=stream)
            # Bindings keep what runs on the stream alive, longer than ``session``.
            weakref.finalize(session._sess, _forget, stream).atexit = False
            return _Loaded(session, records=True, stream=stream)
        except Exception as error:
            log.warning("CUDA graphs are off for this session: %s", error)
            return _Loaded(load(records=False))


class _Loaded(NamedTuple):
    """A session, whether it can record runs, and the stream of its runs if it is ours."""

    session: onnxruntime.InferenceSession
    records: bool = False
    stream: Stream | None = None


def _forget(_: object) -> None:
    """Keeps its argument until it is called."""


class OrtGraph:
    """Implements :class:`server.runtime.contract.Graph`.

    Several threads may run it at once, each with its own binding.

    Args:
        session: runs the graph.
        device: whose memory holds inputs and outputs; None for host memory.
        nodes: of the graph, by kernel.
        records: whether repeated runs are recorded.
        stream: of all runs, if repeated ones may be captured; the session's own if None.
        with_kernels: the rewritten graph that the session runs; sessions of one file share it.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        device: Device | None,
        nodes: KernelNodes,
        *,
        records: bool = False,
        stream: Stream | None = None,
        with_kernels: RewrittenGraph | None = None,
    ) -> None:
        self.session, self.kernel_nodes, self.stream = session, nodes, stream
        self._with_kernels = with_kernels
        self._device = device
        self._records = records
        self._host_inputs = devices.host_inputs(session, device)
        self.inputs = frozenset(node.name for node in session.get_inputs())
        self.outputs = frozenset(node.name for node in session.get_outputs())
        # By recording, and whether the run waits for the device.
        self._options_of: dict[tuple[int | None, bool], onnxruntime.RunOptions] = {}
        self._next_recording_id = itertools.count(1)
        shapes = {} if with_kernels is None else with_kernels.declared_shapes
        self._outputs = {
            node.name: (DTYPES[node.type], shapes.get(node.name, tuple(node.shape)))
            for node in session.get_outputs()
        }

    def bind(
        self, states: Mapping[tuple[str, str], Tensor], outputs: Collection[str] | None = None
    ) -> HostBoundGraph:
        io_binding = self.session.io_binding()
        for (input_name, output_name), tensor in states.items():
            io_binding.bind_input(input_name, *binding_arguments(tensor))
            io_binding.bind_output(output_name, *binding_arguments(tensor))
        state_outputs = {output for _, output in states}
        wanted = {
            name: spec
            for name, spec in self._outputs.items()
            if name not in state_outputs and (outputs is None or name in outputs)
        }
        keep_alive = tuple(states.values())
        if self._device is None:
            return HostBoundGraph(self, io_binding, wanted, keep_alive)
        return DeviceBoundGraph(
            self, io_binding, wanted, keep_alive, self._device, self._host_inputs
        )

    def run(self, io_binding: Any, recording_id: int | None = None) -> None:
        """Implements :class:`server.runtime.ort.session.Session`."""
        if not self._records:
            self.session.run_with_iobinding(io_binding)
            return
        self.session.run_with_iobinding(io_binding, self._run_options(recording_id, waits=True))

    def launch(self, io_binding: Any) -> None:
        """Implements :class:`server.runtime.ort.session.Session`."""
        self.session.run_with_iobinding(io_binding, self._run_options(None, waits=False))

    def _run_options(self, recording_id: int | None, *, waits: bool) -> onnxruntime.RunOptions:
        options = self._options_of.get((recording_id, waits))
        if options is None:
            options = self._options_of[recording_id, waits] = onnxruntime.RunOptions()
            # -1: neither record nor replay this run.
            graph_id = -1 if recording_id is None else recording_id
            options.add_run_config_entry("gpu_graph_id", str(graph_id))
            if not waits:
                options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        return options

    def new_recording_id(self) -> int | None:
        """Implements :class:`server.runtime.ort.session.Session`."""
        return next(self._next_recording_id) if self._records else None

    def stop_capturing(self, reason: str) -> None:
        """Implements :class:`server.runtime.ort.session.Session`."""
        log.warning("steps do not run ahead of the host, as one cannot be captured: %s", reason)
        self.stream = None

    def allocate_words(self, count: int) -> Any:
        """Implements :class:`server.runtime.ort.session.Session`."""
        if self._device is None:
            raise ValueError("a graph in host memory has no device memory")
        return onnxruntime.OrtValue.ortvalue_from_shape_and_type([count], np.int64, *self._device)


def _label(path: Path) -> str:
    return f"{path.parent.parent.name}/{path.parent.name}"


def _use_library(
    options: onnxruntime.SessionOptions, library: Path, directory: Path | None = None
) -> None:
    """Registers a library's operators, and the folder of a rewritten graph's weights.

    Does nothing if the library was not built.
    """
    if not library.exists():
        return
    options.register_custom_ops_library(str(library))
    if directory is not None:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(directory)
        )


def _use_packed(
    options: onnxruntime.SessionOptions, graph: RewrittenGraph
) -> list[onnxruntime.OrtValue]:
    """Registers the packed weights, for sessions that live no longer than what it returns.

    Of external initializers alone, each session makes a copy; shared ones are read in place, but do
    not replace what the graph declares.
    """
    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            array, onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        )
        for name, array in graph.packed.items()
    }
    options.add_external_initializers(list(values), list(values.values()))
    for name, value in values.items():
        options.add_initializer(name, value)
    return list(values.values())
