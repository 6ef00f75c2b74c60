"""Loads sessions of ONNX Runtime: the only file of the server that imports onnxruntime."""

import logging
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

# The library reads this when it is loaded. Telemetry would write files below the home directory.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# cuDNN's attention takes 50 ms to prepare each new batch shape: docs/gpu.md.
os.environ.setdefault("ORT_ENABLE_CUDNN_FLASH_ATTENTION", "0")
import onnxruntime
from onnxruntime import InferenceSession, OrtValue, RunOptions, SessionOptions

from server.errors import StartupError
from server.runtime import devices
from server.runtime.cuda.cudart import CudaError
from server.runtime.cuda.recording import Stream
from server.runtime.devices import Device, NodePlacement
from server.runtime.memory import Array

log = logging.getLogger(__name__)

# Optimizers to disable, by kind of device. On a GPU, this one makes runs copy the axes of slices to
# the host: each run waits for the copies, and no recording may contain them.
_DISABLED_OPTIMIZERS = {"cuda": ("GatherToSliceFusion",)}

VERSION = str(onnxruntime.__version__)
Value = OrtValue
"""A tensor in host or device memory."""


class LoadedSession(NamedTuple):
    """A session, whether it can record runs, and the stream of its runs if we created it."""

    session: InferenceSession
    records: bool = False
    stream: Stream | None = None


class SessionLoader:
    """Loads sessions on one device.

    Args:
        name: the device's name, for messages.
        device: the device whose provider runs the sessions.
        num_threads: the number of intra-op threads of one run.

    Raises:
        StartupError: this installation has no provider for the device.
    """

    def __init__(self, name: str, device: Device, num_threads: int) -> None:
        self._name, self._device, self._num_threads = name, device, num_threads
        available = onnxruntime.get_available_providers()
        if device.provider not in available:
            raise StartupError(
                f"device {name!r} was asked for, but this ONNX Runtime has only "
                f"{', '.join(available)}"
            )
        if device.kind == "cuda":
            onnxruntime.preload_dlls()

    def options(self) -> SessionOptions:
        """Returns options that record the :func:`placements` of a session's nodes."""
        options = self._options()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        return options

    def options_as_written(self) -> SessionOptions:
        """Returns options of a session that runs a graph without optimizing it."""
        options = self._options()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        return options

    def _options(self) -> SessionOptions:
        options = SessionOptions()
        options.intra_op_num_threads = self._num_threads
        options.inter_op_num_threads = 1
        # Threads that spin after a run would take CPU time from the front end.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        return options

    def load(
        self,
        model: str | bytes,
        options: SessionOptions,
        disabled_optimizers: tuple[str, ...] = (),
        *,
        records: bool = False,
    ) -> LoadedSession:
        """Loads a graph.

        Args:
            model: the file's path, or its content.
            options: the options of the session.
            disabled_optimizers: names of graph transformations to leave out.
            records: whether to record repeated runs, or capture them on our own stream, if
                possible.

        Raises:
            StartupError: ONNX Runtime fell back to another device.
            Exception: the graph cannot be loaded; the types are ONNX Runtime's.
        """

        def load(*, records: bool, stream: Stream | None = None) -> InferenceSession:
            settings = devices.provider_options(
                self._device, records=records, stream=None if stream is None else stream.handle
            )
            providers = [(self._device.provider, settings)]
            disabled = (*disabled_optimizers, *_DISABLED_OPTIMIZERS.get(self._device.kind, ()))
            session = InferenceSession(
                model, options, providers=providers, disabled_optimizers=list(disabled)
            )
            self._check_provider(session)
            return session

        if not records:
            return LoadedSession(load(records=False))
        try:
            stream = Stream(self._device.number)
        except CudaError as error:
            log.warning("runs do not start ahead of the host: %s", error)
            stream = None
        try:
            session = load(records=True, stream=stream)
        except Exception as error:
            log.warning("CUDA graphs are off for this session: %s", error)
            return LoadedSession(load(records=False))
        # Bindings keep the inner session alive longer than ``session``: it must keep the stream.
        weakref.finalize(session._sess, _forget, stream).atexit = False
        return LoadedSession(session, records=True, stream=stream)

    def _check_provider(self, session: InferenceSession) -> None:
        """Raises if ONNX Runtime dropped the provider, which it does silently without libraries."""
        if session.get_providers()[0] != self._device.provider:
            raise StartupError(
                f"device {self._name!r} was asked for, but ONNX Runtime fell back to "
                f"{', '.join(session.get_providers())}"
            )


def _forget(_: object) -> None:
    """Does nothing: as a finalizer, it keeps its argument alive until it is called."""


def placements(session: InferenceSession) -> list[NodePlacement]:
    """Returns where each node runs, for a session with :meth:`SessionLoader.options`."""
    return [
        NodePlacement(part.ep_name, node.op_type)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    ]


def run_options(recording_id: int | None, *, waits: bool) -> RunOptions:
    """Returns the options of a run.

    Args:
        recording_id: records the run under this number, or replays it; None does neither.
        waits: whether the run waits until the device is done.
    """
    options = RunOptions()
    graph_id = -1 if recording_id is None else recording_id  # -1: neither records nor replays
    options.add_run_config_entry("gpu_graph_id", str(graph_id))
    if not waits:
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options


def words_on(device: Device, count: int) -> OrtValue:
    """Allocates ``count`` int64 words in a device's memory."""
    return OrtValue.ortvalue_from_shape_and_type([count], np.int64, *device)


def borrowed(value: OrtValue) -> OrtValue:
    """Returns the same tensor as a value that keeps the memory alive but does not own it.

    ``SessionOptions.add_initializer`` takes only such values (core/framework/session_options.cc).
    """
    return OrtValue.from_dlpack(value)


def add_library(options: SessionOptions, library: Path, directory: Path | None = None) -> None:
    """Registers a library's operators, if it was built, and the folder of a graph's weights."""
    if library.exists():
        options.register_custom_ops_library(str(library))
    if directory is not None:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(directory)
        )


def add_packed(options: SessionOptions, packed: Mapping[str, Array]) -> list[OrtValue]:
    """Registers packed weights for a session. The returned values must outlive the session.

    With external initializers alone, each session makes a copy. Shared initializers are read in
    place, but do not replace those that the graph declares. So each weight is registered as both.
    """
    values = {
        name: OrtValue.ortvalue_from_numpy_with_onnx_type(
            array, onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        )
        for name, array in packed.items()
    }
    options.add_external_initializers(list(values), list(values.values()))
    for name, value in values.items():
        options.add_initializer(name, value)
    return list(values.values())
