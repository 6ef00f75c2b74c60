"""Inference requests and responses of the Open Inference Protocol, without a wire format."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from server.errors import InvalidArgumentError
from server.frontends.oip.options import MAX_PARAMETERS, Parameter, boolean, integer
from server.frontends.oip.tensors import BYTES, InputTensor, OutputTensor
from server.service.generation_options import PRIORITIES

MAX_ID_CHARACTERS = 1024
MAX_TIMEOUT_MICROSECONDS = 1 << 53
# Number of priority levels. Level 1 is served first, as in Triton. Requests without a priority have
# the middle level, which is the service's priority 0.
PRIORITY_LEVELS = int(PRIORITIES.high - PRIORITIES.low) + 1
DEFAULT_PRIORITY_LEVEL = int(PRIORITIES.high) + 1

# Why calls of Triton's extensions are refused.
NO_SHARED_MEMORY = "shared memory is not supported: send tensors in the request"
NO_TRACE_SETTINGS = "trace settings are not supported"
NO_LOG_SETTINGS = "log settings are options of the server's command line"

FINAL_RESPONSE = "triton_final_response"
_EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"
_RESERVED = frozenset({"task", "stream", "priority", "timeout", "binary_data_output"})
_RESERVED_PREFIXES = ("triton_", "sequence_")


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request. ``outputs`` names the requested outputs; empty means the task's default."""

    model: str
    version: str = ""
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    inputs: tuple[InputTensor, ...] = ()
    outputs: tuple[str, ...] = ()

    def check(self) -> None:
        """Checks the request's id and parameters.

        Raises:
            InvalidArgumentError: the id is too long, there are too many parameters, or one is not
                supported; the error names the field.
        """
        if len(self.id) > MAX_ID_CHARACTERS:
            raise InvalidArgumentError("id", f"has more than {MAX_ID_CHARACTERS} characters")
        if len(self.parameters) > MAX_PARAMETERS:
            raise InvalidArgumentError(
                "parameters", f"{len(self.parameters)} given, at most {MAX_PARAMETERS}"
            )
        if self.parameters.get("sequence_id"):
            raise InvalidArgumentError(
                "parameters.sequence_id", "models have no state between requests"
            )

    @property
    def options(self) -> dict[str, Parameter]:
        """The parameters that are not reserved by the protocol."""
        if not self.parameters:
            return {}
        return {
            name: value
            for name, value in self.parameters.items()
            if name not in _RESERVED and not name.startswith(_RESERVED_PREFIXES)
        }

    @property
    def priority(self) -> int:
        """The service's priority, of which higher values are served earlier.

        Raises:
            InvalidArgumentError: the level is not an integer in 0 … :data:`PRIORITY_LEVELS`.
        """
        level = integer(self.parameters.get("priority", 0), "parameters.priority")
        if not 0 <= level <= PRIORITY_LEVELS:
            raise InvalidArgumentError(
                "parameters.priority", f"{level} is not in 0 … {PRIORITY_LEVELS}"
            )
        return DEFAULT_PRIORITY_LEVEL - level if level else 0

    @property
    def timeout_seconds(self) -> float | None:
        """The request's timeout (in microseconds on the wire); ``None`` means no timeout.

        Raises:
            InvalidArgumentError: the timeout is not an integer, is negative or too large.
        """
        value = integer(self.parameters.get("timeout", 0), "parameters.timeout")
        if not 0 <= value <= MAX_TIMEOUT_MICROSECONDS:
            raise InvalidArgumentError(
                "parameters.timeout", f"{value} is not in 0 … {MAX_TIMEOUT_MICROSECONDS}"
            )
        return value / 1e6 if value else None

    @property
    def wants_empty_final_response(self) -> bool:
        """Whether a stream ends with an empty response. Raises ``InvalidArgumentError``."""
        value = self.parameters.get(_EMPTY_FINAL_RESPONSE, False)
        return boolean(value, f"parameters.{_EMPTY_FINAL_RESPONSE}")


@dataclass(frozen=True, slots=True)
class InferResponse:
    """One response to a request, with the request's ``id``."""

    model: str
    version: str
    id: str
    outputs: tuple[OutputTensor, ...] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)

    @property
    def num_values(self) -> int:
        """The encoding cost in values, for :meth:`server.service.service.Service.build`: a text
        counts 1, a number 1/4.
        """
        return sum(
            math.prod(tensor.shape) // (1 if tensor.datatype == BYTES else 4)
            for tensor in self.outputs
        )
