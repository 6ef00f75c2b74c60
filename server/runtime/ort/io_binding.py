"""Sessions of ONNX Runtime with memory bound to them, on the host and on a device."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from server.runtime.contract import Array, Block
from server.runtime.devices import Device
from server.runtime.ort.dtypes import TYPES, element_type, to_array
from server.runtime.ort.input_packing import InputPacking

Outputs = Mapping[str, tuple[np.dtype[Any], tuple[int | str, ...]]]


class Runtime(Protocol):
    """What a bound graph needs of its session."""

    @property
    def inputs(self) -> Collection[str]:
        """The names of what it takes."""
        ...

    def run(self, binding: Any, recording: int | None) -> None:
        """Runs. ``recording``: the number under which the run is recorded and played back."""
        ...

    def recording_of(self, key: object) -> int | None:
        """A number for runs of this key, always the same; None if none is recorded."""
        ...

    def words(self, count: int) -> Any:
        """An ``OrtValue`` of int64 on the device."""
        ...


class HostBoundGraph:
    """An ``IOBinding`` that keeps the memory it points to alive. All of it is on the host.

    Inputs stay bound while their shapes are the same: a run copies new values to where they were.
    """

    def __init__(
        self, runtime: Runtime, binding: Any, outputs: Outputs, keep_alive: tuple[Block, ...]
    ) -> None:
        self._runtime = runtime
        self._binding = binding
        self._outputs = outputs
        self._keep_alive = keep_alive
        self._inputs: dict[str, Array] = {}
        self._fixed: dict[str, Array] = {}

    def run(self, inputs: Mapping[str, Array | Block]) -> dict[str, Array]:
        self._bind_inputs(inputs)
        first = inputs.get("logit_positions", next(iter(inputs.values())))
        self._bind_outputs(first.shape[0] if first.shape else 1)
        self._runtime.run(self._binding, None)
        if len(self._fixed) == len(self._outputs):
            return dict(self._fixed)
        return {name: to_array(value) for name, value in self._values().items()}

    def run_kept(self, inputs: Mapping[str, Array | Block]) -> dict[str, Block]:
        return {name: Block.of(array) for name, array in self.run(inputs).items()}

    def run_into(
        self,
        inputs: Mapping[str, Array | Block],
        outputs: Mapping[str, Block],
        *,
        repeats: bool = False,
    ) -> bool:
        del repeats
        self._bind_inputs(inputs)
        for name, block in outputs.items():
            self._fixed.pop(name, None)
            self._binding.bind_output(name, *where(block))
        self._runtime.run(self._binding, None)
        return False

    def _values(self) -> dict[str, Any]:
        """Outputs come in the order they were bound: states first, then the rest."""
        values = self._binding.get_outputs()
        return dict(zip(self._outputs, values[len(values) - len(self._outputs) :], strict=True))

    def _bind_inputs(self, inputs: Mapping[str, Array | Block]) -> None:
        for name, value in self._taken(inputs):
            if isinstance(value, Block):
                self._binding.bind_input(name, *where(value))
                continue
            bound = self._inputs.get(name)
            if bound is not None and (bound.shape, bound.dtype) == (value.shape, value.dtype):
                bound[...] = value
                continue
            bound = self._inputs[name] = np.array(value, order="C")
            self._binding.bind_input(name, *where(Block.of(bound)))

    def _taken(self, inputs: Mapping[str, Array | Block]) -> Iterator[tuple[str, Array | Block]]:
        return (item for item in inputs.items() if item[0] in self._runtime.inputs)

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
            self._binding.bind_output(name, *where(Block.of(array)))


class DeviceBoundGraph(HostBoundGraph):
    """As :class:`HostBoundGraph`, over memory of a device.

    Inputs go up together, into memory that stays bound while their shapes are the same. What the
    host reads of a run stays there, and is bound anew when it changes.

    Args:
        on_host: inputs that the host reads, besides all scalars.
    """

    def __init__(
        self,
        runtime: Runtime,
        binding: Any,
        outputs: Outputs,
        keep_alive: tuple[Block, ...],
        device: Device,
        on_host: Collection[str],
    ) -> None:
        super().__init__(runtime, binding, outputs, keep_alive)
        self._device = device
        self._on_host = on_host
        self._packing = InputPacking({})
        self._packed: Any = None

    def run(self, inputs: Mapping[str, Array | Block]) -> dict[str, Array]:
        return {name: to_array(value) for name, value in self._run(inputs, "cpu").items()}

    def run_kept(self, inputs: Mapping[str, Array | Block]) -> dict[str, Block]:
        values = self._run(inputs, *self._device)
        return {name: self._block(value) for name, value in values.items()}

    def run_into(
        self,
        inputs: Mapping[str, Array | Block],
        outputs: Mapping[str, Block],
        *,
        repeats: bool = False,
    ) -> bool:
        self._bind_inputs(inputs)
        for name, block in outputs.items():
            self._binding.bind_output(name, *where(block))
        recording = None
        if repeats:
            # What is baked into a recording: addresses, shapes, and what the host reads.
            read = tuple(value.tobytes() for value in self._inputs.values())
            written = tuple(block.pointer for block in outputs.values())
            recording = self._runtime.recording_of((self._packing, read, written))
        self._runtime.run(self._binding, recording)
        return recording is not None

    def _run(self, inputs: Mapping[str, Array | Block], *device: Any) -> dict[str, Any]:
        self._bind_inputs(inputs)
        for name in self._outputs:
            self._binding.bind_output(name, *device)
        self._runtime.run(self._binding, None)
        return self._values()

    def _bind_inputs(self, inputs: Mapping[str, Array | Block]) -> None:
        arrays: dict[str, Array] = {}
        for name, value in self._taken(inputs):
            if isinstance(value, Block):
                self._binding.bind_input(name, *where(value))
            elif value.ndim == 0 or name in self._on_host:
                before = self._inputs.get(name)
                if before is None or not np.array_equal(before, value):
                    bound = self._inputs[name] = value.copy()
                    self._binding.bind_input(name, *where(Block.of(bound)))
            else:
                arrays[name] = value
        if not self._packing.fits(arrays):
            self._bind_packed(arrays)
        if arrays:
            self._packed.update_inplace(self._packing.pack(arrays))

    def _bind_packed(self, arrays: Mapping[str, Array]) -> None:
        self._packing = InputPacking(arrays)
        self._packed = self._runtime.words(self._packing.num_words)
        for name, array in arrays.items():
            pointer = self._packed.data_ptr() + self._packing.offset_of(name)
            block = Block(*self._device, array.dtype, array.shape, pointer, self._packed)
            self._binding.bind_input(name, *where(block))

    def _block(self, value: Any) -> Block:
        """An ``OrtValue`` as a block, which keeps it."""
        dtype, shape = TYPES[value.data_type()], tuple(value.shape())
        return Block(*self._device, dtype, shape, value.data_ptr(), value)


def where(block: Block) -> tuple[Any, ...]:
    """What a binding wants to know of memory."""
    return block.device, block.index, element_type(block.dtype), block.shape, block.pointer
