"""Which lane a new job goes to: a pure function of how much each has."""

from collections.abc import Sequence


def choose_lane(
    loads: Sequence[int], num_devices: int, num_rows: int, single_lane_max_sequences: int
) -> int:
    """The lane for a job of ``num_rows``.

    The least loaded device gets it. In there, the lane that has all the work while that is
    little, so that it may use the whole device; else the least loaded.

    Args:
        loads: rows of each lane; those of a device stand together, as many for each.
        num_devices: at least one.
        num_rows: of the job.
        single_lane_max_sequences: up to so many rows, one lane of a device has them all.
    """
    per_device = len(loads) // num_devices
    devices = [loads[first : first + per_device] for first in range(0, len(loads), per_device)]
    device = min(range(num_devices), key=lambda index: sum(devices[index]))
    lanes = list(devices[device])
    busiest = lanes.index(max(lanes))
    lane = lanes.index(min(lanes))
    if lanes[busiest] == sum(lanes) and lanes[busiest] + num_rows <= single_lane_max_sequences:
        lane = busiest
    return device * per_device + lane
