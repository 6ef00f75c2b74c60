"""Repeated runs: the device replays them, or they run when their results are waited for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from server.runtime.contract import Pending
from server.runtime.cuda.recording import HostMemoryError, Recording
from server.runtime.memory import Array, Tensor
from server.runtime.ort.input_packing import InputPacking
from server.runtime.ort.session import Session

# ONNX Runtime's CUDA provider allocates memory in the first two runs of a shape, records the third.
_RUNS_TO_ALLOCATE = 2


@dataclass(frozen=True, slots=True)
class Later:
    """Implements :class:`server.runtime.contract.Pending`: :meth:`wait` makes the run."""

    run: Callable[[], Array | None]

    def wait(self) -> Array | None:
        return self.run()

    def drop(self) -> None:
        """Does nothing: the run was not made."""


class HostRepeatedRun:
    """Implements :class:`server.runtime.contract.RepeatedRun` over host memory.

    Args:
        run: runs the graph.
        result: the output that a run returns; None for none.
    """

    feeds_back = is_asynchronous = False

    def __init__(self, run: Callable[[Mapping[str, Array]], object], result: Tensor | None) -> None:
        self._run, self._result = run, result

    def record(self, inputs: Mapping[str, Array]) -> bool:
        del inputs
        return False

    def start(self, inputs: Mapping[str, Array] | None) -> Pending:
        if inputs is None:
            raise ValueError("the graph does not make its next inputs")
        return Later(partial(self._wait, inputs))

    def _wait(self, inputs: Mapping[str, Array]) -> Array | None:
        self._run(inputs)
        if self._result is None:
            return None
        array: Any = self._result.owner
        result: Array = array
        return result


class PackedInputs:
    """Copies inputs to the device in one copy.

    Args:
        packings: two packings of the same arrays: the words of a run stay valid while those of the
            next run are packed.
        target: the ``OrtValue`` that receives the words.
    """

    def __init__(self, packings: tuple[InputPacking, InputPacking], target: Any) -> None:
        self._next, self._other = packings
        self._target = target
        self.address: int = target.data_ptr()

    def pack(self, inputs: Mapping[str, Array]) -> Array:
        """Returns the words to copy, valid until the second call after this one."""
        packing = self._next
        self._next, self._other = self._other, self._next
        return packing.pack({name: inputs[name] for name in packing.names})

    def copy(self, inputs: Mapping[str, Array]) -> None:
        """Copies the inputs to the device, and waits for the copy."""
        if self._next.names:
            self._target.update_inplace(self.pack(inputs))


class DeviceRepeatedRun:
    """Implements :class:`server.runtime.contract.RepeatedRun` over device memory.

    Args:
        session: the session of ``io_binding``.
        io_binding: an ``IOBinding`` with all inputs and outputs bound.
        inputs: the inputs in device memory.
        result: the output that a run returns; None for none.
        feeds_back: whether outputs are bound to the memory of the next run's inputs.
        keep_alive: owns the memory that ``io_binding`` points to.
    """

    def __init__(
        self,
        session: Session,
        io_binding: Any,
        inputs: PackedInputs,
        result: Tensor | None,
        *,
        feeds_back: bool,
        keep_alive: object,
    ) -> None:
        self.feeds_back, self._keep_alive = feeds_back, keep_alive
        self._session, self._io_binding, self._inputs = session, io_binding, inputs
        self._result = result
        self._recording: Recording | None = None
        self._recording_id: int | None = None  # the id of ONNX Runtime's own recording

    @property
    def is_asynchronous(self) -> bool:
        return self._recording is not None

    def record(self, inputs: Mapping[str, Array]) -> bool:
        self._inputs.copy(inputs)
        session, run = self._session, self._io_binding
        stream = session.stream
        if stream is not None:
            for _ in range(_RUNS_TO_ALLOCATE):
                session.run(run)
            try:
                launch, address = partial(session.launch, run), self._inputs.address
                recording = Recording(stream, launch, address, self._result)
                recording.launch(self._inputs.pack(inputs)).wait()
            except HostMemoryError as error:
                session.stop_recording(str(error))
            except Exception as error:  # ONNX Runtime's errors have no other base class
                session.stop_capturing(str(error))
            else:
                self._recording = recording
                return True
        self._recording_id = session.new_recording_id()
        if self._recording_id is None:
            return False
        for _ in range(_RUNS_TO_ALLOCATE + 1):
            session.run(run, self._recording_id)
        return True

    def start(self, inputs: Mapping[str, Array] | None) -> Pending:
        if self._recording is not None:
            return self._recording.launch(None if inputs is None else self._inputs.pack(inputs))
        if inputs is not None:
            self._inputs.copy(inputs)
        return Later(self._run)

    def _run(self) -> Array | None:
        self._session.run(self._io_binding, self._recording_id)
        return None if self._result is None else _read(self._result)


def _read(tensor: Tensor) -> Array:
    """Copies rows of a tensor that an ``OrtValue`` owns to host memory."""
    value: Any = tensor.owner
    whole: Array = value.numpy().ravel()
    start = (tensor.pointer - value.data_ptr()) // tensor.dtype.itemsize
    return whole[start : start + int(np.prod(tensor.shape))].reshape(tensor.shape)
