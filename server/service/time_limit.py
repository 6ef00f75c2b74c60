"""When a text ends because of the time: by the request's own budget, or before the deadline."""

from protos.triune.v1 import inference_pb2 as pb
from server.errors import InvalidArgumentError
from server.service import options as checked

# Of the time that is left when the call comes, the share that is kept to answer in ...
_SHARE = 0.1
# ... within these bounds, in seconds.
_MIN_MARGIN, _MAX_MARGIN = 0.02, 0.5


def finish_by(stopping: pb.StoppingOptions, started: float, deadline: float | None) -> float | None:
    """When what there is becomes the output, if the caller asks for that.

    Args:
        stopping: of the request.
        started: when the call came; as all times here, in seconds of ``time.monotonic``.
        deadline: of the call.

    Raises:
        InvalidArgumentError: a number out of bounds, or no deadline to stop before.
    """
    given = checked.numbers("stopping", stopping)
    times = []
    if "max_seconds" in given:
        times.append(started + given["max_seconds"])
    if stopping.stop_before_deadline:
        if deadline is None:
            raise InvalidArgumentError("stopping.stop_before_deadline", "the call has no deadline")
        margin = min(max(_SHARE * (deadline - started), _MIN_MARGIN), _MAX_MARGIN)
        times.append(deadline - margin)
    return min(times, default=None)
