"""``python -m server`` with fault injection: certain tokens make the runtime fail. Tests only.

Faults are injected at the ONNX Runtime boundary: the graphs are real, and a wrapper around each
decoder run looks for the letters below in its input tokens.
"""

import logging
import os
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from server import __main__ as command
from server import app
from server.runtime.contract import (
    Backend,
    BoundGraph,
    Graph,
    KernelNodes,
    StepGraphs,
)
from server.runtime.memory import Array, Layout, Memory, Tensor
from tests.server.fake_backend import HostBoundGraph

log = logging.getLogger(__name__)

# N: NaN outputs for the row. I: infinite outputs. R: the run raises. D: the engine thread dies.
# H: the run hangs.
NAN, INFINITE, RAISES, DIES, HANGS = "N", "I", "R", "D", "H"
# The graphs of a model of this name are never loaded: the load hangs, after this message.
NEVER_LOADED, HANGING = "never-loaded", "the load hangs"
# Minimum duration of a run in seconds: simulates a slow model without using the CPU.
RUN_SECONDS = "FAULTY_RUN_SECONDS"


def token_of(letter: str) -> int:
    """The token id of ``letter`` in the tiny models' vocabulary.

    Four special tokens, then the printable characters, as in ``tests/tiny_training.py``, which the
    server cannot import because it needs torch.
    """
    return 4 + ord(letter) - ord(" ")


class EngineDeath(BaseException):
    """Not an ``Exception``, so the engine does not handle it."""


@dataclass(frozen=True, slots=True)
class FaultyBackend:
    """Implements :class:`server.runtime.contract.Backend`."""

    real: Backend
    run_seconds: float

    @property
    def version(self) -> str:
        return self.real.version

    def load(
        self,
        path: Path,
        disabled_optimizers: tuple[str, ...],
        *,
        repeats: bool = False,
        takes_candidates: bool = False,
        suppressed: tuple[int, ...] = (),
    ) -> Graph:
        if path.parent.parent.name == NEVER_LOADED:
            log.info(HANGING)
            threading.Event().wait()
        real = self.real.load(
            path,
            disabled_optimizers,
            repeats=repeats,
            takes_candidates=takes_candidates,
            suppressed=suppressed,
        )
        return _FaultyGraph(real, self.run_seconds)

    def load_steps(
        self, path: Path, disabled_optimizers: tuple[str, ...], suppressed: tuple[int, ...] = ()
    ) -> StepGraphs | None:
        return self.real.load_steps(path, disabled_optimizers, suppressed)

    def unshared_bytes(self, path: Path, *, takes_candidates: bool = False) -> int:
        return self.real.unshared_bytes(path, takes_candidates=takes_candidates)

    def weight_bytes(self, path: Path, *, takes_candidates: bool = False) -> int | None:
        return self.real.weight_bytes(path, takes_candidates=takes_candidates)

    def load_model(self, model: onnx.ModelProto, *, repeats: bool = False) -> Graph:
        return self.real.load_model(model, repeats=repeats)

    def memory(self, layouts: Mapping[str, Layout]) -> Memory:
        return self.real.memory(layouts)


@dataclass(frozen=True, slots=True)
class _FaultyGraph:
    real: Graph
    run_seconds: float

    @property
    def kernel_nodes(self) -> KernelNodes:
        return self.real.kernel_nodes

    @property
    def outputs(self) -> Collection[str]:
        return self.real.outputs

    def bind(
        self, states: Mapping[tuple[str, str], Tensor], outputs: Collection[str] | None = None
    ) -> BoundGraph:
        return _FaultyBoundGraph(self.real.bind(states, outputs), self.run_seconds)


@dataclass(frozen=True, slots=True)
class _FaultyBoundGraph(HostBoundGraph):
    real: BoundGraph
    run_seconds: float

    def run(self, inputs: Mapping[str, Array | Tensor]) -> dict[str, Array]:
        ids, num_cached = inputs["token_ids"], inputs.get("num_cached_tokens")
        assert isinstance(ids, np.ndarray)
        if ids.shape[1] == 1 and isinstance(num_cached, np.ndarray):
            # Ignore tokens that the model itself generated.
            ids = np.where(num_cached[:, None] == 0, ids, -1)
        outputs = self.real.run(inputs)
        time.sleep(self.run_seconds)
        if (ids == token_of(HANGS)).any():
            threading.Event().wait()
        if (ids == token_of(DIES)).any():
            raise EngineDeath
        if (ids == token_of(RAISES)).any():
            raise RuntimeError("planted")
        for letter, value in ((NAN, np.nan), (INFINITE, np.inf)):
            failing = (ids == token_of(letter)).any(axis=1)
            for array in outputs.values():
                if len(array) == len(failing):
                    array[failing] = value
        return outputs


def main() -> None:
    """Starts the server."""
    make_backends = app.make_backends
    seconds = float(os.environ.get(RUN_SECONDS, "0"))
    app.make_backends = lambda config, busy: tuple(
        FaultyBackend(backend, seconds) for backend in make_backends(config, busy)
    )
    command.app()


if __name__ == "__main__":
    main()
