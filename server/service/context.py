"""The components of a running server that calls use."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from server.bounds import check_fields
from server.config import ServerConfig
from server.engine.engine import Engine
from server.errors import ContextLengthError
from server.models.catalog import Catalog
from server.models.registry import Model, Registry
from server.service.caller import Caller
from server.service.decoded_memory import DecodedMemory
from server.service.requests import ModelRequest
from server.service.serving_state import ServingState
from server.service.threads import MAX_SLICE_COST, FairExecutor, Slice, check_deadline, slices_of
from server.service.turns import Turns
from server.telemetry.metrics import Metrics
from server.text.windows import TooLongError

T = TypeVar("T")

# Work up to this cost (see :mod:`server.service.threads`) runs on the event loop, in at most about
# 0.5 ms. On busy cores, a round trip to a thread would take longer.
MAX_INLINE_COST = 1024


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """The components. ``threads`` runs work that would block the event loop; ``turns`` interleaves
    work on it. ``decoded_memory`` bounds the decoded images and recordings of all calls.
    """

    config: ServerConfig
    catalog: Catalog
    engine: Engine
    metrics: Metrics
    threads: FairExecutor
    state: ServingState
    turns: Turns = field(default_factory=Turns)
    decoded_memory: DecodedMemory = field(default_factory=DecodedMemory)

    @property
    def registry(self) -> Registry:
        """A snapshot of the served models. Read it once per call."""
        return self.catalog.registry

    def model_of(self, request: ModelRequest) -> Model:
        """The model that a request names. Checks the sizes and bounds of all fields first.

        Raises:
            InvalidArgumentError: a field is too large or out of bounds; the error names it.
            ModelNotFoundError: no such model is served.
        """
        check_fields(request)
        return self.registry.get(request.model, request.version)

    def cache_scope(self, caller: Caller) -> str:
        """The prefix-cache scope of a caller's jobs; see :class:`GenerationJob`.

        It is the caller's identity, or "" if all callers share prefixes.
        """
        if self.config.shares_prefixes or not self.config.authenticates_callers:
            return ""
        return caller.client

    async def run_slices(
        self, slices: Sequence[Slice[T]], caller: Caller, *, is_admitted: bool = False
    ) -> list[T]:
        """Runs the slices of a call's work: inline if they are short, else in threads.

        Args:
            slices: all slices of the work.
            caller: the client and the deadline of the call.
            is_admitted: whether the engine has accepted the call; if so, no limits apply.

        Raises:
            ServeError: the caller's deadline passed, or too much work is waiting.
        """
        if sum(part.cost for part in slices) > MAX_INLINE_COST:
            return await self.threads.run(slices, caller, is_admitted=is_admitted)
        if not is_admitted:
            check_deadline(caller.deadline)
        return [part.function() for part in slices]

    async def in_thread(
        self,
        function: Callable[[], T],
        caller: Caller,
        cost: int = MAX_SLICE_COST,
        *,
        is_admitted: bool = False,
    ) -> T:
        """Runs ``function``, which cannot be divided, as one slice of ``cost``.

        Raises:
            ServeError: see :meth:`run_slices`.
        """
        parts = [Slice(cost, function)]
        (result,) = await self.run_slices(parts, caller, is_admitted=is_admitted)
        return result

    async def build(self, num_values: int, function: Callable[[], T], caller: Caller) -> T:
        """Runs ``function``, which builds a result of ``num_values`` numbers or short texts.

        A value counts as one unit of cost.
        """
        return await self.in_thread(function, caller, num_values, is_admitted=True)

    async def build_each(
        self, costs: Iterable[int], function: Callable[[int], T], caller: Caller
    ) -> list[T]:
        """Builds a result for each input of an accepted call, in slices.

        Args:
            costs: what ``function`` costs for each input: see :mod:`server.service.threads`.
            function: builds the result of the input with the given index.
            caller: the client of the call.
        """

        def build_some(start: int, stop: int) -> list[T]:
            return list(map(function, range(start, stop)))

        parts = await self.run_slices(slices_of(costs, build_some), caller, is_admitted=True)
        return [result for part in parts for result in part]

    async def tokenize(
        self,
        texts: Sequence[str],
        encode: Callable[[Sequence[str]], list[T]],
        caller: Caller,
        field: str = "inputs",
    ) -> list[T]:
        """Tokenizes texts in slices.

        Args:
            texts: the texts in the request's ``field``.
            encode: tokenizes some of the texts; raises ``TooLongError`` if one is too long.
            caller: the client and the deadline of the call.
            field: the request field, for errors.

        Raises:
            ContextLengthError: a text is too long; later ones are not tokenized.
            ServeError: see :meth:`run_slices`.
        """

        def encode_some(start: int, stop: int) -> list[T]:
            try:
                return encode(texts[start:stop])
            except TooLongError as error:
                path = f"{field}[{start + error.index}]"
                raise ContextLengthError(path, str(error)) from error

        slices = slices_of(map(len, texts), encode_some)
        parts = await self.run_slices(slices, caller)
        return [result for part in parts for result in part]
