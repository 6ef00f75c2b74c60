"""A fake decode graph that finds best tokens, as those of a GPU, and executors for its runs."""

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from server.engine.decoding.logits import greedy
from server.runtime.contract import BEST_TOKENS, Array, Tensor
from tests.server.fake_backend import BoundFakeDecode, FakeDecode

TIMEOUT = 60  # seconds, for what takes milliseconds


class BestDecode(FakeDecode):
    """A decode graph with :data:`BEST_TOKENS`.

    ``steps``: tokens and cached tokens of each row, of all runs that are done, in order.
    """

    outputs = ("logits", BEST_TOKENS)

    def __init__(self, poison: int = -1, fail: int = -1) -> None:
        super().__init__(poison, fail, is_padded=True)
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
        best = [-1 if token is None else token for token in greedy(logits)]
        return {"logits": logits, BEST_TOKENS: np.array(best, np.int64)}

    def run_into(
        self,
        inputs: Mapping[str, Array | Tensor],
        outputs: Mapping[str, Tensor],
        *,
        repeats: bool = False,
    ) -> bool:
        is_recorded = super().run_into(inputs, outputs, repeats=repeats)
        ids, cached = inputs["token_ids"], inputs["num_cached_tokens"]
        assert isinstance(ids, np.ndarray)
        assert isinstance(cached, np.ndarray)
        self._best.add_step(ids[:, 0].tolist(), cached.tolist())
        return is_recorded


class LateFuture(Future[Any]):
    """Runs a function when its result is asked for."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__()
        self._function = function

    def result(self, timeout: float | None = None) -> Any:
        self.run()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.run()
        return super().exception(timeout)

    def run(self) -> None:
        if self.done():
            return
        try:
            self.set_result(self._function())
        except Exception as error:
            self.set_exception(error)


class Late:
    """An executor that runs what it must: a started step is not done until it is asked for."""

    def __init__(self, *_: Any) -> None:
        pass

    def submit(self, function: Callable[..., Any], *arguments: Any) -> LateFuture:
        return LateFuture(partial(function, *arguments))


class Early(Late):
    """An executor that runs all at once: a started step is done before it is asked for."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> LateFuture:
        future = super().submit(function, *arguments)
        future.run()
        return future
