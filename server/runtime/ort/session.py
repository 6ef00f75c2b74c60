"""The interface of a loaded session that bound graphs use."""

from collections.abc import Collection
from typing import Any, Protocol

from server.runtime.cuda.recording import Stream


class Session(Protocol):
    """The parts of a session that a bound graph uses."""

    @property
    def inputs(self) -> Collection[str]:
        """The names of the graph's inputs."""
        ...

    @property
    def stream(self) -> Stream | None:
        """The stream of all runs, if runs may be captured; else None."""
        ...

    def run(self, io_binding: Any, recording_id: int | None = None) -> None:
        """Runs the graph.

        Args:
            io_binding: an ``IOBinding`` of the session.
            recording_id: records the run under this number, or replays it; None does neither.
        """
        ...

    def launch(self, io_binding: Any) -> None:
        """Runs the graph as :meth:`run` does, but does not wait until the device is done."""
        ...

    def new_recording_id(self) -> int | None:
        """Returns a new number for the recorded run of one binding; None if nothing is recorded."""
        ...

    def stop_capturing(self, reason: str) -> None:
        """Makes :attr:`stream` None. ONNX Runtime may still record runs."""
        ...

    def stop_recording(self, reason: str) -> None:
        """Makes :attr:`stream` None, and stops ONNX Runtime's recording too."""
        ...

    def allocate_words(self, count: int) -> Any:
        """Allocates an ``OrtValue`` of ``count`` int64 words in device memory."""
        ...
