"""Graphs with host or device memory bound to them by ONNX Runtime's ``IOBinding``."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from server.runtime.contract import CANDIDATES, FED_BACK, RepeatedRun
from server.runtime.cuda.recording import pinned_words
from server.runtime.devices import Device
from server.runtime.memory import Array, Tensor
from server.runtime.ort.dtypes import DTYPES, element_type, to_array
from server.runtime.ort.input_packing import InputPacking, zero_words
from server.runtime.ort.repeated_run import DeviceRepeatedRun, HostRepeatedRun, PackedInputs
from server.runtime.ort.session import Session

Outputs = Mapping[str, tuple[np.dtype[Any], tuple[int | str, ...]]]
"""The type and shape of each output, by name; a string is a dynamic dimension."""


class HostBoundGraph:
    """Implements :class:`server.runtime.contract.BoundGraph` over host memory.

    It keeps the memory that its ``IOBinding`` points to alive. Inputs are bound, not copied; the
    same array or tensor is not bound again.

    Args:
        session: runs the graph.
        io_binding: an ``IOBinding`` of the session, with the states bound.
        outputs: the outputs to compute besides the states.
        keep_alive: the memory of the states.
    """

    def __init__(
        self, session: Session, io_binding: Any, outputs: Outputs, keep_alive: tuple[Tensor, ...]
    ) -> None:
        self._session = session
        self._io_binding = io_binding
        self._outputs = outputs
        self._keep_alive = keep_alive
        self._inputs: dict[str, Array | Tensor] = {}
        # Outputs with a known width, reused from run to run.
        self._fixed_outputs: dict[str, Array] = {}

    def run(self, inputs: Mapping[str, Array | Tensor]) -> dict[str, Array]:
        self._bind_inputs(inputs)
        first = inputs.get("logit_positions")
        if first is None:
            first = next(iter(inputs.values()))
        self._bind_outputs(first.shape[0] if first.shape else 1, self._width(inputs))
        self._session.run(self._io_binding)
        if len(self._fixed_outputs) == len(self._outputs):
            return dict(self._fixed_outputs)
        return {name: to_array(value) for name, value in self._output_values().items()}

    def run_on_device(
        self, inputs: Mapping[str, Array | Tensor], on_host: Collection[str] = ()
    ) -> dict[str, Tensor]:
        del on_host  # all outputs are on the host
        return {name: Tensor.of(array) for name, array in self.run(inputs).items()}

    def repeat_into(
        self,
        inputs: Mapping[str, Array | Tensor],
        outputs: Mapping[str, Tensor],
        on_host: str | None = None,
        *,
        feeds_back: bool = False,
    ) -> RepeatedRun:
        del inputs, feeds_back  # inputs are read in place, and never changed
        for name in self._outputs:
            place = binding_arguments(outputs[name]) if name in outputs else ("cpu",)
            self._io_binding.bind_output(name, *place)
        result = None if on_host is None else outputs[on_host]
        return HostRepeatedRun(self._run_bound, result)

    def _run_bound(self, inputs: Mapping[str, Array]) -> None:
        self._bind_inputs(inputs)
        self._session.run(self._io_binding)

    def _output_values(self) -> dict[str, Any]:
        """Returns the outputs that are not states, by name.

        ``IOBinding`` returns outputs in the order in which they were bound: the states first.
        """
        values = self._io_binding.get_outputs_as_ortvaluevector()
        first = len(values) - len(self._outputs)
        return {name: values[index] for index, name in enumerate(self._outputs, first)}

    def _bind_inputs(self, inputs: Mapping[str, Array | Tensor]) -> None:
        bound, declared = self._inputs, self._session.inputs
        for name, value in inputs.items():
            if bound.get(name) is value or name not in declared:
                continue
            if isinstance(value, Tensor):
                self._io_binding.bind_input(name, *binding_arguments(value))
                bound[name] = value
            else:  # an array that is not contiguous is copied and bound in every run
                array = np.asarray(value, order="C")
                self._io_binding.bind_cpu_input(name, array)
                bound[name] = array

    def _width(self, inputs: Mapping[str, Array | Tensor]) -> int:
        """Returns the width of the candidates, if the graph takes them; else 0."""
        is_declared = CANDIDATES in self._session.inputs and CANDIDATES in inputs
        return inputs[CANDIDATES].shape[1] if is_declared else 0

    def _bind_outputs(self, num_rows: int, width: int) -> None:
        """Binds the outputs. ``width``: the number of candidates; 0 if outputs have their width."""
        for name, (dtype, shape) in self._outputs.items():
            if len(shape) == 2 and isinstance(shape[1], int):
                self._bind_fixed_output(name, dtype, (num_rows, width or shape[1]))
            else:
                self._io_binding.bind_output(name, "cpu")

    def _bind_fixed_output(self, name: str, dtype: np.dtype[Any], shape: tuple[int, int]) -> None:
        """Binds an output ``[batch, width]`` to an array that is kept from run to run."""
        array = self._fixed_outputs.get(name)
        if array is None or array.shape != shape:
            array = self._fixed_outputs[name] = np.empty(shape, dtype)
            self._io_binding.bind_output(name, *binding_arguments(Tensor.of(array)))


class DeviceBoundGraph(HostBoundGraph):
    """Implements :class:`server.runtime.contract.BoundGraph` over device memory.

    One copy transfers all arrays to a device buffer, which stays bound while their shapes stay the
    same. Inputs that the host reads stay in host memory, and are bound again when their values
    change.

    Args:
        session, io_binding, outputs, keep_alive: see :class:`HostBoundGraph`.
        device: the device that runs the graph.
        host_inputs: names of inputs that the host reads, besides all scalars.
    """

    def __init__(
        self,
        session: Session,
        io_binding: Any,
        outputs: Outputs,
        keep_alive: tuple[Tensor, ...],
        device: Device,
        host_inputs: Collection[str],
    ) -> None:
        super().__init__(session, io_binding, outputs, keep_alive)
        self._device = device
        self._host_inputs = host_inputs
        self._host_values: dict[str, Array] = {}
        self._allocate: Callable[[int], Array] = zero_words
        self._packing = InputPacking({})
        self._packed: Any = None

    def run(self, inputs: Mapping[str, Array | Tensor]) -> dict[str, Array]:
        values = self._run(inputs, on_host=self._outputs)
        return {name: to_array(value) for name, value in values.items()}

    def run_on_device(
        self, inputs: Mapping[str, Array | Tensor], on_host: Collection[str] = ()
    ) -> dict[str, Tensor]:
        return {
            name: Tensor.of(to_array(value)) if name in on_host else self._tensor(value)
            for name, value in self._run(inputs, on_host).items()
        }

    def repeat_into(
        self,
        inputs: Mapping[str, Array | Tensor],
        outputs: Mapping[str, Tensor],
        on_host: str | None = None,
        *,
        feeds_back: bool = False,
    ) -> RepeatedRun:
        self._allocate = zero_words if self._session.stream is None else pinned_words
        self._bind_inputs(inputs)
        given = {name: value for name, value in inputs.items() if isinstance(value, np.ndarray)}
        arrays = {name: given[name] for name in self._packing.names}
        fed_back = {name: i for name, i in FED_BACK.items() if name in self._outputs}
        feeds_back = feeds_back and set(fed_back.values()) == set(FED_BACK.values())
        places = dict(outputs)
        for output, input_ in fed_back.items():
            array, owner = arrays[input_], self._packed
            if feeds_back:
                pointer = self._address_of(input_)
            else:  # an output that is ignored
                owner = self._session.allocate_words(array.nbytes // 8 + 1)
                pointer = owner.data_ptr()
            places[output] = self._place(pointer, array, owner)
        for name, tensor in places.items():
            self._io_binding.bind_output(name, *binding_arguments(tensor))
        self._keep_alive += tuple(places.values())
        packings = (self._packing, InputPacking(arrays, self._allocate))
        return DeviceRepeatedRun(
            self._session,
            self._io_binding,
            PackedInputs(packings, self._packed),
            None if on_host is None else outputs[on_host],
            feeds_back=feeds_back,
            keep_alive=self,
        )

    def _run(
        self, inputs: Mapping[str, Array | Tensor], on_host: Collection[str]
    ) -> dict[str, Any]:
        self._bind_inputs(inputs)
        for name in self._outputs:
            device = ("cpu",) if name in on_host else self._device
            self._io_binding.bind_output(name, *device)
        self._session.run(self._io_binding)
        return self._output_values()

    def _bind_inputs(self, inputs: Mapping[str, Array | Tensor]) -> None:
        arrays: dict[str, Array] = {}
        for name, value in inputs.items():
            if name not in self._session.inputs:
                continue
            if isinstance(value, Tensor):
                self._io_binding.bind_input(name, *binding_arguments(value))
            elif value.ndim == 0 or name in self._host_inputs:
                before = self._host_values.get(name)
                if before is None or not _are_same(before, value):
                    bound = self._host_values[name] = value.copy()
                    self._io_binding.bind_input(name, *binding_arguments(Tensor.of(bound)))
            else:
                arrays[name] = value
        if not self._packing.fits(arrays):
            self._bind_packed(arrays)
        if arrays:
            self._packed.update_inplace(self._packing.pack(arrays))

    def _bind_packed(self, arrays: Mapping[str, Array]) -> None:
        packing = InputPacking(arrays, self._allocate)
        packed = self._session.allocate_words(packing.num_words)
        # Set only now, as the allocation may fail: a packing must have a buffer of its size.
        self._packing, self._packed = packing, packed
        for name, array in arrays.items():
            tensor = self._place(self._address_of(name), array, packed)
            self._io_binding.bind_input(name, *binding_arguments(tensor))

    def _address_of(self, name: str) -> int:
        """Returns the address of an input in device memory."""
        address: int = self._packed.data_ptr() + self._packing.offset_of(name)
        return address

    def _place(self, pointer: int, like: Array, owner: object) -> Tensor:
        return Tensor(*self._device, like.dtype, like.shape, pointer, owner)

    def _tensor(self, value: Any) -> Tensor:
        """Wraps an ``OrtValue``, and keeps it alive."""
        dtype, shape = DTYPES[value.data_type()], tuple(value.shape())
        return Tensor(*self._device, dtype, shape, value.data_ptr(), value)


def _are_same(one: Array, other: Array) -> bool:
    """Whether type, shape and bytes are equal. For a few numbers, this is faster than NumPy."""
    same_kind = one.dtype == other.dtype and one.shape == other.shape
    return same_kind and one.tobytes() == other.tobytes()


def binding_arguments(tensor: Tensor) -> tuple[Any, ...]:
    """Returns the arguments of ``IOBinding.bind_input`` and ``bind_output`` after the name."""
    return (
        tensor.device_kind,
        tensor.device_number,
        element_type(tensor.dtype),
        tensor.shape,
        tensor.pointer,
    )
