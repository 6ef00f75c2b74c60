"""A loaded graph: binds memory to it, and runs it."""

import itertools
import logging
from collections.abc import Collection, Mapping
from typing import Any

from server.runtime import devices
from server.runtime.contract import KernelNodes
from server.runtime.devices import Device
from server.runtime.kernels.rewrite import RewrittenGraph
from server.runtime.memory import Tensor
from server.runtime.ort.dtypes import DTYPES
from server.runtime.ort.io_binding import DeviceBoundGraph, HostBoundGraph, binding_arguments
from server.runtime.ort.loader import LoadedSession, run_options, words_on

log = logging.getLogger(__name__)


class OrtGraph:
    """Implements :class:`server.runtime.contract.Graph`.

    Several threads may run it at once, each with its own binding.

    Args:
        loaded: runs the graph.
        device: the device whose memory holds inputs and outputs; None for host memory.
        nodes: the number of the graph's nodes, by kernel.
        with_kernels: the rewritten graph that the session runs; sessions of one file share it.
    """

    def __init__(
        self,
        loaded: LoadedSession,
        device: Device | None,
        nodes: KernelNodes,
        with_kernels: RewrittenGraph | None = None,
    ) -> None:
        self.session, self._records, self.stream = loaded
        self._is_replayable = True
        self.kernel_nodes = nodes
        self._with_kernels = with_kernels  # keeps it for further sessions: graphs_in_use
        self._device = device
        self._host_inputs = devices.host_inputs(self.session, device)
        self.inputs = frozenset(node.name for node in self.session.get_inputs())
        self.outputs = frozenset(node.name for node in self.session.get_outputs())
        # By recording id, and whether the run waits for the device.
        self._options_of: dict[tuple[int | None, bool], Any] = {}
        self._next_recording_id = itertools.count(1)
        shapes = {} if with_kernels is None else with_kernels.declared_shapes
        self._outputs = {
            node.name: (DTYPES[node.type], shapes.get(node.name, tuple(node.shape)))
            for node in self.session.get_outputs()
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
        self._run_with(io_binding, recording_id, waits=True)

    def launch(self, io_binding: Any) -> None:
        """Implements :class:`server.runtime.ort.session.Session`."""
        self._run_with(io_binding, None, waits=False)

    def _run_with(self, io_binding: Any, recording_id: int | None, *, waits: bool) -> None:
        options = self._options_of.get((recording_id, waits))
        if options is None:
            options = self._options_of[recording_id, waits] = run_options(recording_id, waits=waits)
        self.session.run_with_iobinding(io_binding, options)

    def new_recording_id(self) -> int | None:
        """Implements :class:`server.runtime.ort.session.Session`."""
        if not (self._records and self._is_replayable):
            return None
        return next(self._next_recording_id)

    def stop_capturing(self, reason: str) -> None:
        """Implements :class:`server.runtime.ort.session.Session`."""
        log.warning("runs do not start ahead of the host, as one cannot be captured: %s", reason)
        self.stream = None

    def stop_recording(self, reason: str) -> None:
        """Implements :class:`server.runtime.ort.session.Session`."""
        log.warning("runs are not recorded, as one may not be replayed: %s", reason)
        self.stream, self._is_replayable = None, False

    def allocate_words(self, count: int) -> Any:
        """Implements :class:`server.runtime.ort.session.Session`."""
        if self._device is None:
            raise ValueError("a graph in host memory has no device memory")
        return words_on(self._device, count)
