"""Which lane gets a new job: a pure function of the load of each lane."""

from collections.abc import Sequence


def choose_lane(
    loads: Sequence[int], num_devices: int, num_sequences: int, single_lane_max_sequences: int
) -> int:
    """The lane for a job.

    The least loaded device gets it. While one lane of that device has all of its work, and little
    of it, that lane gets the job too, and can use the whole device; else the least loaded lane.

    Args:
        loads: sequences of each lane. Lanes of a device are neighbours, and each device has the
            same number of lanes.
        num_devices: at least one.
        num_sequences: of the job.
        single_lane_max_sequences: the most sequences that one lane takes on its own.
    """
    per_device = len(loads) // num_devices
    devices = [loads[first : first + per_device] for first in range(0, len(loads), per_device)]
    device = min(range(num_devices), key=lambda index: sum(devices[index]))
    lanes = list(devices[device])
    busiest = lanes.index(max(lanes))
    lane = lanes.index(min(lanes))
    if lanes[busiest] == sum(lanes) and lanes[busiest] + num_sequences <= single_lane_max_sequences:
        lane = busiest
    return device * per_device + lane
