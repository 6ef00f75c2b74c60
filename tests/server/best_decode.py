"""A fake decode graph that finds best tokens, as those of a GPU."""

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from server.engine.decoding.logits import best_of
from server.runtime.contract import BEST_TOKENS, Pending
from server.runtime.memory import Array, Tensor
from tests.server.fake_backend import BoundFakeDecode, Early, FakeDecode, Start

TIMEOUT = 60  # seconds, for what takes milliseconds


class Beside:
    """A run on a thread of the device, after those before it."""

    def __init__(self, device: ThreadPoolExecutor, run: Callable[[], Array | None]) -> None:
        self._future = device.submit(run)

    def wait(self) -> Array | None:
        return self._future.result(TIMEOUT)

    def drop(self) -> None:
        self._future.exception(TIMEOUT)


def beside() -> Start:
    """Starts runs on a new thread."""
    device = ThreadPoolExecutor(1)

    def start(run: Callable[[], Array | None]) -> Pending:
        return Beside(device, run)

    return start


class BestDecode(FakeDecode):
    """A decode graph with :data:`BEST_TOKENS`, whose repeated runs are done at once.

    ``steps``: tokens and cached tokens of each row, of all runs that are done, in order.
    """

    outputs = ("logits", BEST_TOKENS)

    def __init__(self, poison: int = -1, fail: int = -1, *, feeds_back: bool = False) -> None:
        super().__init__(poison, fail, is_padded=True)
        self.start, self.feeds_back = Early, feeds_back
        self.steps: list[tuple[list[int], list[int]]] = []
        self._done = threading.Condition()

    def bind(
        self, states: Mapping[tuple[str, str], Tensor], outputs: Collection[str] | None = None
    ) -> "BoundBestDecode":
        assert outputs is None or set(outputs) == set(self.outputs)
        return BoundBestDecode(self, {name: tensor for (name, _), tensor in states.items()})

    def add_step(self, ids: list[int], cached: list[int]) -> None:
        with self._done:
            self.steps.append((ids, cached))
            self._done.notify_all()

    def wait_for_steps(self, count: int) -> None:
        with self._done:
            assert self._done.wait_for(lambda: len(self.steps) >= count, TIMEOUT)


class BoundBestDecode(BoundFakeDecode):
    def __init__(self, graph: BestDecode, states: dict[str, Tensor]) -> None:
        super().__init__(graph, states)
        self._best = graph

    def run(self, inputs: Mapping[str, Array | Tensor]) -> dict[str, Array]:
        logits = super().run(inputs)["logits"]
        best = [-1 if token is None else token for token in best_of(logits)]
        return {"logits": logits, BEST_TOKENS: np.array(best, np.int64)}

    def on_step(self, inputs: Mapping[str, Array]) -> None:
        ids, cached = inputs["token_ids"][:, 0], inputs["num_cached_tokens"]
        self._best.add_step(ids.tolist(), cached.tolist())
