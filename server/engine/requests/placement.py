"""Chooses the lane for a new job: a pure function of the load of each lane."""

from collections.abc import Sequence


def choose_lane(
    loads: Sequence[int], num_devices: int, num_sequences: int, single_lane_max_sequences: int
) -> int:
    """The lane for a job.

    It is on the least loaded device. If one lane has all work of that device, and would have at
    most ``single_lane_max_sequences`` sequences, it gets the job too, since a lane alone can use
    the whole device. Otherwise the least loaded lane gets it.

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
