"""The ONNX Runtime backend of one device: loads graphs, and allocates memory."""

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from model.bundle import BundleError
from server.errors import StartupError
from server.runtime import devices
from server.runtime.contract import FEW_ROWS, KernelNodes, StepGraphs
from server.runtime.cuda import copies, cudart, memory_ops
from server.runtime.cuda.attention_checks import AttentionKernel, is_accurate
from server.runtime.cuda.device_memory import DeviceMemory
from server.runtime.cuda.rewrite import replace_operators, rewrite_model
from server.runtime.cuda.shared_weights import Weight, share_weights
from server.runtime.cuda.steps import is_decoder, rewrite_steps
from server.runtime.host_memory import HostMemory
from server.runtime.kernels.library import CUDA_LIBRARY, LIBRARY
from server.runtime.kernels.rewrite import RewrittenGraph, kernel_nodes, load_rewritten
from server.runtime.memory import Array, Layout, Memory, Tensor
from server.runtime.ort.graph import OrtGraph
from server.runtime.ort.loader import (
    VERSION,
    LoadedSession,
    SessionLoader,
    Value,
    add_library,
    add_packed,
    borrowed,
    placements,
)

log = logging.getLogger(__name__)


# More rows than any step has.
_MANY_ROWS = 1 << 30
# Changes a graph whose weights are in the given folder. Returns whether it changed the graph.
_Change = Callable[[onnx.ModelProto, Path], bool]


class OrtBackend:
    """Implements :class:`server.runtime.contract.Backend` for one device.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        num_threads: intra-op threads of one run.
        has_device_memory: whether to treat a CPU as a device whose memory the host cannot access
            (for tests of the GPU code path).
        records: whether to record repeated runs as CUDA graphs, and replay them.

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
        self._sessions = SessionLoader(device, self._device, num_threads)
        self._has_device_memory = has_device_memory or self._device.kind == "cuda"
        self._records = records and self._device.kind == "cuda"
        self._loaded: dict[tuple[bytes, bool], OrtGraph] = {}
        self._shared: weakref.WeakValueDictionary[Weight, Value] = weakref.WeakValueDictionary()
        self._accurate: dict[tuple[AttentionKernel, int, int], bool] = {}  # results of past checks
        self._check_device()

    @property
    def version(self) -> str:
        return VERSION

    @property
    def free_bytes(self) -> int | None:
        """See :attr:`server.runtime.memory.Memory.free_bytes`."""
        return cudart.free_bytes(self._device.number) if self._device.kind == "cuda" else None

    def load(
        self,
        path: Path,
        disabled_optimizers: tuple[str, ...],
        *,
        repeats: bool = False,
        takes_candidates: bool = False,
        suppressed: tuple[int, ...] = (),
    ) -> OrtGraph:
        try:
            if self._device.kind == "cuda":
                change = partial(
                    rewrite_model, suppressed=suppressed, is_accurate=self._is_accurate
                )
                records = self._records and repeats
                return self._load_cuda(path, disabled_optimizers, change, records=records)
            with_kernels = self._rewritten(path, takes_candidates)
            options, weights = self._sessions.options(), []
            model: str | bytes = str(path)
            if with_kernels is not None:
                model = with_kernels.model
                add_library(options, LIBRARY, path.parent)
                weights = add_packed(options, with_kernels.packed)
            loaded = self._sessions.load(model, options, disabled_optimizers)
            loaded.session.weights = weights  # keeps them alive: the session reads them in place
            nodes = kernel_nodes(path, with_kernels)
            return self._checked(loaded, path, nodes, with_kernels)
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
        exported = onnx.ModelProto.FromString(path.read_bytes())
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
    ) -> OrtGraph:
        """Loads a changed graph. A decoder shares weights with its step graphs, if possible."""
        exported = onnx.ModelProto.FromString(path.read_bytes())
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

    def _is_accurate(self, kernel: AttentionKernel, type_: int, head_size: int) -> bool:
        key = (kernel, type_, head_size)
        if key not in self._accurate:
            self._accurate[key] = is_accurate(*key, self.load_model)
        return self._accurate[key]

    def _load_changed(
        self,
        exported: onnx.ModelProto,
        path: Path,
        disabled_optimizers: tuple[str, ...],
        change: _Change,
        *,
        shares: bool,
        records: bool,
    ) -> OrtGraph:
        """Loads a changed copy of the graph in ``path``, which may share weights with others."""
        model = onnx.ModelProto.FromString(exported.SerializeToString())
        shared = share_weights(model, path.parent) if shares else {}
        is_changed = change(model, path.parent) or bool(shared)
        options = self._sessions.options()
        add_library(options, CUDA_LIBRARY, path.parent)
        values = {name: self.transposed(weight) for name, weight in shared.items()}
        for name, value in values.items():
            options.add_initializer(name, value)
        content = model.SerializeToString() if is_changed else str(path)
        loaded = self._sessions.load(content, options, disabled_optimizers, records=records)
        loaded.session.weights = list(values.values())
        return self._checked(loaded, path, KernelNodes())

    def transposed(self, weight: Weight) -> Value:
        """Returns a transposed weight in device memory, shared by all sessions that use it."""
        value = self._shared.get(weight)
        if value is None:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(weight.type_)
            array = np.memmap(weight.file, dtype, "r", weight.offset, (weight.rows, weight.columns))
            transpose = self.load_model(memory_ops.transpose_graph(weight.type_)).bind({})
            made: Any = transpose.run_on_device({"x": np.asarray(array)})["y"].owner
            value = borrowed(made)
            self._shared[weight] = value
        return value

    def _checked(
        self,
        loaded: LoadedSession,
        path: Path,
        nodes: KernelNodes,
        with_kernels: RewrittenGraph | None = None,
    ) -> OrtGraph:
        """Returns a session's graph. Raises ``BundleError`` if nodes run on the wrong device."""
        misplaced = devices.misplaced_operators(self._device, placements(loaded.session))
        if misplaced:
            raise BundleError(
                f"{_label(path)}: {path.name}: {', '.join(misplaced)} would run on the CPU, not on "
                f"{self._name}: export it with --device {self._device.kind}"
            )
        device = self._device if self._has_device_memory else None
        return OrtGraph(loaded, device, nodes, with_kernels)

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

    def load_model(self, model: onnx.ModelProto, *, repeats: bool = False) -> OrtGraph:
        data, records = model.SerializeToString(), self._records and repeats
        key = (data, records)
        if key not in self._loaded:
            # The graph is not optimized: see :meth:`server.runtime.contract.Backend.load_model`.
            options, content = self._sessions.options_as_written(), data
            if self._device.kind == "cuda":
                content = replace_operators(model).SerializeToString()
                add_library(options, CUDA_LIBRARY)
            loaded = self._sessions.load(content, options, records=records)
            self._loaded[key] = OrtGraph(loaded, self._device, KernelNodes())
        return self._loaded[key]

    def memory(self, layouts: Mapping[str, Layout]) -> Memory:
        return DeviceMemory(self, layouts) if self._has_device_memory else HostMemory(layouts)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        """Implements :class:`server.runtime.cuda.device_memory.DeviceBackend`."""
        type_ = onnx.helper.np_dtype_to_tensor_dtype(dtype)
        bound = self.load_model(memory_ops.zeros_graph(type_)).bind({})
        return bound.run_on_device({"shape": np.array(shape, np.int64)})["y"]

    def copy(self, groups: Sequence[Array]) -> None:
        """Implements :class:`server.runtime.cuda.device_memory.DeviceBackend`."""
        if self._device.kind == "cuda":
            copies.copy(self._device.number, groups)
        else:
            copies.copy_on_host(groups)

    def clear(self, parts: Sequence[tuple[int, int]]) -> None:
        """Implements :class:`server.runtime.cuda.device_memory.DeviceBackend`."""
        if self._device.kind == "cuda":
            cudart.zero(self._device.number, parts)
        else:
            copies.clear_on_host(parts)

    def _check_device(self) -> None:
        """Allocates and clears a tensor on the device. Raises ``StartupError`` if that fails."""
        try:
            tensor = self.zeros((1,), np.dtype(np.float32))
            self.clear([(tensor.pointer, tensor.num_bytes)])
        except StartupError:
            raise
        except Exception as error:
            raise StartupError(f"device {self._name!r} cannot be used: {error}") from error


def _label(path: Path) -> str:
    return f"{path.parent.parent.name}/{path.parent.name}"
