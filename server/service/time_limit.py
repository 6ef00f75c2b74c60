"""When an output ends because of time: by the request's own limit, or before its deadline."""

from server.errors import InvalidArgumentError
from server.service.generation_options import StoppingOptions

# To send the answer, this share of the time left at arrival is kept ...
_MARGIN_SHARE = 0.1
# ... within these bounds, in seconds.
_MIN_MARGIN_SECONDS, _MAX_MARGIN_SECONDS = 0.02, 0.5


def finish_by(stopping: StoppingOptions, started: float, deadline: float | None) -> float | None:
    """When generation stops and returns the partial output, if the request limits its time.

    Args:
        stopping: of the request.
        started: when the call arrived; like all times here, in seconds of ``time.monotonic``.
        deadline: the call's.

    Raises:
        InvalidArgumentError: there is no deadline to stop before.
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
