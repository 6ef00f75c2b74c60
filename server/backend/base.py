"""What the engine needs of a runtime. ``ort.py`` is the one implementation."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

Array = npt.NDArray[Any]


class BoundGraph(Protocol):
    """A graph whose states are bound to memory. Not for two threads at once."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs the graph; the bound states are read and updated in place.

        Returns:
            The outputs that are not states. They are valid until the next run. An output
            ``[rows, n]`` has a row for each of ``logit_positions`` if the graph takes them,
            else for each row of the batch.
        """
        ...


class Graph(Protocol):
    """A loaded graph. ``bind`` may be called from any thread."""

    def bind(
        self, states: Mapping[tuple[str, str], Array], outputs: Collection[str] | None = None
    ) -> BoundGraph:
        """Binds memory to states.

        Args:
            outputs: those to compute besides the states; all if None.
            states: by (input name, output name); contiguous, batch in front. Each
                array is input and output at once: nothing is copied.
        """
        ...


class Backend(Protocol):
    @property
    def version(self) -> str: ...

    def load(self, path: Path, disabled_optimizers: tuple[str, ...]) -> Graph:
        """Loads an ONNX file, without some transformations of the runtime.

        Raises:
            BundleError: it cannot be loaded.
        """
        ...
