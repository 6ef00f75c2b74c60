"""Sampling after a padded decode step, recorded like the step itself (CUDA graphs).

A sampling graph has up to eighty small kernels. A replay launches them all at once.
"""

import logging
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from server.engine.gpu.sampler_graph import build
from server.engine.gpu.sampler_inputs import (
    LOGITS,
    NO_TOP_P,
    PARAMETERS,
    TOKENS,
    LogitsSpec,
    SamplerVariant,
    SamplingMethod,
)
from server.runtime.contract import Graph, LoadModel, RepeatedRun
from server.runtime.memory import Array, Layout, MakeMemory, Tensor

log = logging.getLogger(__name__)

# Parameters of a padding row, whose token is ignored: temperature, top_k, top_p, min_p, uniform.
_PADDING = (1.0, 1.0, NO_TOP_P, 0.0, 0.0)


class _Key(NamedTuple):
    """Identifies a recording. ``logits``: the address of the logits."""

    method: SamplingMethod
    num_rows: int
    logits: int


class RecordedSampler:
    """Samples every row of logits that stay at one address. For one thread.

    Args:
        load: loads a graph whose runs repeat.
        spec: the shape and type of the logits.
        rows: the numbers of rows to record, ascending; each is recorded on first use.
        memory: allocates tensors on the device.
    """

    def __init__(
        self, load: LoadModel, spec: LogitsSpec, rows: Sequence[int], memory: MakeMemory
    ) -> None:
        self._load, self._spec, self._rows = load, spec, rows
        layout = Layout(rows[-1], (), np.dtype(np.int64), has_tokens=False)
        self._tokens = memory({TOKENS: layout})
        self._graphs: dict[SamplingMethod, Graph] = {}
        self._runs: dict[_Key, RepeatedRun | None] = {}

    def sample(
        self, method: SamplingMethod, logits: Tensor, parameters: Sequence[Sequence[float]]
    ) -> list[int] | None:
        """Samples with a graph of :func:`server.engine.gpu.sampler_graph.build`.

        Args:
            method: the method for all rows; not greedy.
            logits: ``[rows, vocabulary]``, with rows of padding after those to sample.
            parameters: the parameters of each row to sample.

        Returns:
            A token for each item of ``parameters``; None if the run cannot be recorded.

        Raises:
            Exception: the run failed.
        """
        num_rows = logits.shape[0]
        place = bisect_left(self._rows, num_rows)
        if place == len(self._rows) or self._rows[place] != num_rows:
            return None
        padding = [_PADDING] * (num_rows - len(parameters))
        inputs = {PARAMETERS: np.array([*parameters, *padding], np.float64)}
        key = _Key(method, num_rows, logits.pointer)
        if key not in self._runs:
            self._runs[key] = self._record(key, logits, inputs)
        run = self._runs[key]
        tokens = None if run is None else run.start(inputs).wait()
        return None if tokens is None else tokens[: len(parameters)].tolist()

    def _record(self, key: _Key, logits: Tensor, inputs: dict[str, Array]) -> RepeatedRun | None:
        try:
            graph = self._graphs.get(key.method)
            if graph is None:
                graph = self._load(build(SamplerVariant(key.method), self._spec))
                self._graphs[key.method] = graph
            tokens = self._tokens.rows(TOKENS, 0, key.num_rows)
            given: dict[str, Array | Tensor] = {LOGITS: logits, **inputs}
            run = graph.bind({}).repeat_into(given, {TOKENS: tokens}, TOKENS)
            # Records with other parameters, so that it does not leave the tokens compared below.
            if not run.record({PARAMETERS: np.array([_PADDING] * key.num_rows)}):
                return None
            found, expected = run.start(inputs).wait(), graph.bind({}).run(given)[TOKENS]
            if not np.array_equal(np.asarray(found), expected):
                raise RuntimeError("a recorded run samples other tokens than a plain one")
            return run
        except Exception:  # the runtime's own types
            log.exception("sampling of %d rows is not recorded", key.num_rows)
            return None
