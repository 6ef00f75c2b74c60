"""A fake decode graph whose logits depend on every cached token.

It stores token ids in its state and computes the next token from everything a row
has stored, so a lost, swapped or stale row changes the output.
"""

import ctypes
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache, partial

import numpy as np

from model.bundle import Dtype, GraphSpec, StateRole, StateSpec, TensorSpec
from server.runtime.contract import IS_LIVE, KernelNodes, Pending, RepeatedRun
from server.runtime.memory import Array, Tensor

VOCABULARY = 97
EOS = 0


def host_view(tensor: Tensor) -> Array:
    """Views a host tensor as a NumPy array."""
    data = (ctypes.c_uint8 * tensor.num_bytes).from_address(tensor.pointer)
    array: Array = np.ctypeslib.as_array(data).view(tensor.dtype).reshape(tensor.shape)
    return array


@cache
def noise() -> Array:
    """Random logits rows; a hash of the tokens selects one."""
    return np.random.default_rng(0).normal(size=(1009, VOCABULARY)).astype(np.float32)


def next_logits(tokens: Iterable[float], source: Iterable[float] = (), period: int = 0) -> Array:
    """Reference logits ``[vocabulary]`` after ``tokens``.

    With a ``period``, most tokens are those of so many tokens before: drafts are often right.
    """
    seen, value = [int(token) for token in tokens], 7
    for token in (*source, *seen):
        value = (value * 31 + int(token) + 1) % 65_521
    logits: Array = noise()[value % len(noise())].copy()
    repeats = 0 < period <= len(seen) and value % 8
    best = seen[-period] if repeats else value % VOCABULARY
    logits[best] = logits.max() + 0.5
    return logits


def next_token(tokens: Iterable[float], source: Iterable[float] = (), period: int = 0) -> int:
    """The greedy token after ``tokens``."""
    return int(next_logits(tokens, source, period).argmax())


def reference(
    prompt: Sequence[int],
    max_new_tokens: int,
    source: Sequence[int] = (),
    eos: int = EOS,
    period: int = 0,
) -> list[int]:
    tokens = list(prompt)
    for _ in range(max_new_tokens):
        tokens.append(next_token(tokens, source, period))
        if tokens[-1] == eos:
            break
    return tokens[len(prompt) :]


def decode_spec(*, has_source: bool, is_recurrent: bool = True) -> GraphSpec:
    kv = StateSpec(
        name="key.0",
        role=StateRole.KV,
        dtype=Dtype.FLOAT32,
        shape=(1, "length", 1),
        input="past.key.0",
        output="present.key.0",
    )
    cross = StateSpec(
        name="cross_key.0",
        role=StateRole.CROSS,
        dtype=Dtype.FLOAT32,
        shape=(1, "source_length", 1),
        input="past.cross_key.0",
        output="present.cross_key.0",
        source="cross_key.0",
    )
    recurrent = StateSpec(
        name="recurrent.0",
        role=StateRole.RECURRENT,
        dtype=Dtype.FLOAT32,
        shape=(1,),
        input="past.recurrent.0",
        output="present.recurrent.0",
    )
    ids = TensorSpec(name="token_ids", dtype=Dtype.INT64, shape=("batch", "length"))
    logits = TensorSpec(name="logits", dtype=Dtype.FLOAT32, shape=("batch", VOCABULARY))
    states = (kv, *((cross,) if has_source else ()), *((recurrent,) if is_recurrent else ()))
    return GraphSpec(file="decode.onnx", inputs=(ids,), outputs=(logits,), states=states)


def host_inputs(inputs: Mapping[str, Array | Tensor]) -> dict[str, Array]:
    """Drops inputs that are device tensors."""
    return {name: value for name, value in inputs.items() if not isinstance(value, Tensor)}


class HostBoundGraph:
    """A bound graph that implements only :meth:`run`, on host arrays."""

    def run(self, inputs: Mapping[str, Array | Tensor]) -> dict[str, Array]:
        raise NotImplementedError

    def run_on_device(
        self, inputs: Mapping[str, Array | Tensor], on_host: Collection[str] = ()
    ) -> dict[str, Tensor]:
        del on_host  # all outputs are
        return {name: Tensor.of(array) for name, array in self.run(inputs).items()}

    def repeat_into(
        self,
        inputs: Mapping[str, Array | Tensor],
        outputs: Mapping[str, Tensor],
        on_host: str | None = None,
        *,
        feeds_back: bool = False,
    ) -> RepeatedRun:
        del inputs, outputs, on_host, feeds_back
        raise NotImplementedError


class Late:
    """A run that waits until it is waited for."""

    def __init__(self, run: Callable[[], Array | None]) -> None:
        self._run = run

    def wait(self) -> Array | None:
        return self._run()

    def drop(self) -> None:
        """It never runs."""


class Early:
    """A run that is done at once."""

    def __init__(self, run: Callable[[], Array | None]) -> None:
        self._future: Future[Array | None] = Future()
        try:
            self._future.set_result(run())
        except Exception as error:
            self._future.set_exception(error)

    def wait(self) -> Array | None:
        return self._future.result()

    def drop(self) -> None:
        self._future.exception()


Start = Callable[[Callable[[], Array | None]], Pending]
"""Starts a run."""


class FakeDecode:
    """A decode graph. ``poison``: token id that makes a row's logits and cached values NaN.

    ``fail``: token id that makes the run raise after it has changed all states.
    ``period``: see :func:`next_logits`.
    ``is_padded``: runs may contain padding rows, whose token id is 0.
    ``on_run``: called by each run.
    """

    kernel_nodes = KernelNodes()
    outputs: Collection[str] = ()

    def __init__(
        self, poison: int = -1, fail: int = -1, period: int = 0, *, is_padded: bool = False
    ) -> None:
        self.is_padded = is_padded
        self.num_padded_runs = 0
        self.is_recorded = False  # returned by ``record``
        self.feeds_back = False
        self.start: Start = Late  # how repeated runs start
        self.poison = poison
        self.fail = fail
        self.period = period
        self.num_runs = 0
        self.max_tokens_in_run = 0
        self.on_run: Callable[[], None] = lambda: None

    def bind(
        self, states: Mapping[tuple[str, str], Tensor], outputs: Collection[str] | None = None
    ) -> "BoundFakeDecode":
        assert outputs is None or set(outputs) == {"logits"}
        return BoundFakeDecode(self, {name: tensor for (name, _), tensor in states.items()})


class BoundFakeDecode(HostBoundGraph):
    def __init__(self, graph: FakeDecode, states: dict[str, Tensor]) -> None:
        self._graph = graph
        self._keep_alive = states
        self._states = {name: host_view(tensor) for name, tensor in states.items()}

    def repeat_into(
        self,
        inputs: Mapping[str, Array | Tensor],
        outputs: Mapping[str, Tensor],
        on_host: str | None = None,
        *,
        feeds_back: bool = False,
    ) -> RepeatedRun:
        del inputs  # each run is given its own
        return FakeRepeatedRun(
            self, outputs, on_host, self._graph, feeds_back=feeds_back and self._graph.feeds_back
        )

    def on_step(self, inputs: Mapping[str, Array]) -> None:
        """Called after a repeated run."""

    def run(self, inputs: Mapping[str, Array | Tensor]) -> dict[str, Array]:
        inputs = host_inputs(inputs)
        ids = inputs["token_ids"]
        cached, new = inputs["num_cached_tokens"], inputs["num_new_tokens"]
        keys, count = self._states["past.key.0"], self._states.get("past.recurrent.0")
        self._graph.num_runs += 1
        self._graph.on_run()
        self._graph.max_tokens_in_run = max(self._graph.max_tokens_in_run, ids.size)
        if ids.shape[1] > 1 and cached.any():
            assert len(ids) == 1, "a chunk over a cache runs alone"
        longest = int((cached + new).max())
        assert int(inputs["max_total_length"]) >= longest
        assert self._graph.is_padded or int(inputs["max_total_length"]) == longest
        is_padding = (ids == 0).all(axis=1)
        self._graph.num_padded_runs += self._graph.is_padded and bool(is_padding.any())
        logits = np.zeros((*ids.shape, VOCABULARY), np.float32)
        for row, tokens in enumerate(ids):
            end = cached[row] + new[row]
            keys[row, 0, cached[row] : end, 0] = tokens[: new[row]]
            if count is not None:
                count[row] += new[row]
                assert (self._graph.is_padded and is_padding[row]) or count[row] == end, (
                    "the recurrent state is of another sequence"
                )
            source: Iterable[float] = ()
            if "source_lengths" in inputs:
                length = inputs["source_lengths"][row]
                source = self._states["past.cross_key.0"][row, 0, :length, 0]
            for index in range(new[row]):
                seen = keys[row, 0, : cached[row] + index + 1, 0]
                logits[row, index] = next_logits(seen, source, self._graph.period)
            if self._graph.poison in tokens[: new[row]]:
                logits[row] = keys[row, 0, cached[row] : end, 0] = np.nan
        if (ids == self._graph.fail).any():
            raise RuntimeError("the run fails")
        return {"logits": logits.reshape(-1, VOCABULARY)[inputs["logit_positions"]]}


class FakeRepeatedRun:
    """A device's repeated run. What it copies in and out is in the order of its runs."""

    def __init__(
        self,
        bound: BoundFakeDecode,
        outputs: Mapping[str, Tensor],
        on_host: str | None,
        graph: FakeDecode,
        *,
        feeds_back: bool,
    ) -> None:
        self.feeds_back = feeds_back
        self._bound, self._outputs, self._on_host, self._graph = bound, outputs, on_host, graph
        self._inputs: dict[str, Array] = {}  # on the device

    @property
    def is_asynchronous(self) -> bool:
        return self._graph.start is not Late

    def record(self, inputs: Mapping[str, Array]) -> bool:
        self._run(inputs)
        return self._graph.is_recorded

    def start(self, inputs: Mapping[str, Array] | None) -> Pending:
        if inputs is None:
            assert self.feeds_back
            return self._graph.start(partial(self._run, None))
        given = {name: array.copy() for name, array in inputs.items()}
        return self._graph.start(partial(self._run, given))

    def _run(self, given: Mapping[str, Array] | None) -> Array | None:
        if given is not None:
            self._inputs = {name: array.copy() for name, array in given.items()}
        for name, array in self._bound.run(self._inputs).items():
            host_view(self._outputs[name])[...] = array
        self._bound.on_step(self._inputs)
        if self._on_host is None:
            return None
        result = host_view(self._outputs[self._on_host]).copy()
        if self.feeds_back:
            advance(self._inputs, result)
        return result


def advance(inputs: dict[str, Array], best: Array) -> None:
    """Changes ``inputs`` to those of the next step, as a GPU does."""
    is_live = inputs[IS_LIVE]
    inputs["token_ids"][:, 0] = np.where(is_live == 1, np.maximum(best, 0), 0)
    inputs["num_cached_tokens"] += is_live


class FakeEncode(HostBoundGraph):
    """An encoder whose output is the source token ids."""

    kernel_nodes = KernelNodes()
    outputs = ()

    def bind(
        self, states: Mapping[tuple[str, str], Tensor], outputs: Collection[str] | None = None
    ) -> "FakeEncode":
        assert not states
        assert outputs is None
        return self

    def run(self, inputs: Mapping[str, Array | Tensor]) -> dict[str, Array]:
        inputs = host_inputs(inputs)
        return {"cross_key.0": inputs["token_ids"].astype(np.float32)[:, None, :, None]}
