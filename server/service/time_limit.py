"""Time limits of an output: ``max_seconds`` and ``stop_before_deadline``."""

from server.errors import InvalidArgumentError
from server.service.generation_options import StoppingOptions

# The share of the time left at arrival that is reserved for sending the response,
_MARGIN_SHARE = 0.1
# within these bounds, in seconds.
_MIN_MARGIN_SECONDS, _MAX_MARGIN_SECONDS = 0.02, 0.5


def finish_by(stopping: StoppingOptions, started: float, deadline: float | None) -> float | None:
    """The time at which generation stops and returns the partial output; ``None`` without a limit.

    All times are in seconds of ``time.monotonic``.

    Args:
        stopping: the stopping options of the request.
        started: the call's arrival.
        deadline: the call's deadline.

    Raises:
        InvalidArgumentError: ``stop_before_deadline`` is set, but the call has no deadline.
    """
    times = []
    if stopping.max_seconds is not None:
        times.append(started + stopping.max_seconds)
    if stopping.stop_before_deadline:
        if deadline is None:
            raise InvalidArgumentError("stop_before_deadline", "the call has no deadline")
        margin = _MARGIN_SHARE * (deadline - started)
        margin = min(max(margin, _MIN_MARGIN_SECONDS), _MAX_MARGIN_SECONDS)
        times.append(deadline - margin)
    return min(times, default=None)
