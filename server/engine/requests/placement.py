"""Chooses the lane for a new job, by each lane's load and the prompts that it may have cached."""

from collections import OrderedDict
from collections.abc import Sequence

from server.engine.requests.job import GenerationJob, Job

# The lane that may have cached a job's prefix gets the job, unless it has over this many sequences
# more than the least loaded lane.
MAX_IMBALANCE = 2
# Handles for texts: a small request has this many for each lane, a large one up to 64 in all.
_HANDLES_PER_LANE, _MAX_HANDLES = 4, 64
_TEXTS_PER_HANDLE = 8
_BLOCK_TOKENS = 32
_MAX_BLOCKS = 64  # the most blocks of a prompt that are hashed
_MAX_KNOWN_BLOCKS = 1 << 14


def count_handles(num_texts: int, num_lanes: int) -> int:
    """Returns the number of handles for the texts of a request.

    A handle costs the event loop about 20 µs, so there are few; but enough of them, and a multiple
    of the lanes, to divide the texts evenly among the lanes.
    """
    count = max(_HANDLES_PER_LANE * num_lanes, min(_MAX_HANDLES, num_texts // _TEXTS_PER_HANDLE))
    return min(num_texts, count // num_lanes * num_lanes)


def divide_texts(num_texts: int, num_handles: int) -> list[int]:
    """Returns the index of each handle's first text, and the end. Larger handles come first.

    The smaller ones then even out the loads of the lanes.
    """
    size, num_larger = divmod(num_texts, num_handles)
    return [index * size + min(index, num_larger) for index in range(num_handles + 1)]


class Placement:
    """Tracks the load of each lane and the prompts that it got.

    Args:
        num_lanes: the number of lanes over all devices.
        num_devices, single_lane_max_sequences: see :func:`choose_lane`.
    """

    def __init__(self, num_lanes: int, num_devices: int, single_lane_max_sequences: int) -> None:
        self._loads = [0] * num_lanes
        self._num_devices = num_devices
        self._single_lane_max_sequences = single_lane_max_sequences
        self._prefix_lanes = PrefixLanes() if num_lanes > 1 else None

    def place(self, model_id: int, job: Job, num_sequences: int) -> int:
        """Chooses a lane for ``job`` and others like it, and adds ``num_sequences`` to its load."""
        blocks, preferred = [], None
        if self._prefix_lanes is not None and isinstance(job, GenerationJob):
            blocks = block_hashes(model_id, job.prefix_scope, job.prefix_keys)
            preferred = self._prefix_lanes.find(blocks)
        lane = choose_lane(
            self._loads,
            self._num_devices,
            num_sequences,
            self._single_lane_max_sequences,
            preferred,
        )
        if self._prefix_lanes is not None:
            self._prefix_lanes.record(blocks, lane)
        self._loads[lane] += num_sequences
        return lane

    def release(self, lane: int, num_sequences: int) -> None:
        """Subtracts ``num_sequences`` that have ended from the load of a lane."""
        self._loads[lane] -= num_sequences


class PrefixLanes:
    """Maps prompts, by hashes of their leading blocks of 32 tokens, to the lane that last got them.

    Each lane has its own prefix cache, so the next turn of a conversation should go to the lane of
    the turn before. A wrong hint costs only a prefill.
    """

    def __init__(self) -> None:
        self._lanes: OrderedDict[int, int] = OrderedDict()  # by hash, least recently used first

    def find(self, blocks: Sequence[int]) -> int | None:
        """Returns the lane that got the longest prefix of a prompt; None if no lane got any.

        ``blocks``: the prompt's :func:`block_hashes`.
        """
        lane = None
        for block in blocks:
            known = self._lanes.get(block)
            if known is None:
                break
            lane = known
        return lane

    def record(self, blocks: Sequence[int], lane: int) -> None:
        """Records that ``lane`` gets the prompt with these :func:`block_hashes`."""
        for block in blocks:
            self._lanes[block] = lane
            self._lanes.move_to_end(block)
        while len(self._lanes) > _MAX_KNOWN_BLOCKS:
            self._lanes.popitem(last=False)


def block_hashes(model_id: int, scope: str, prompt: Sequence[int]) -> list[int]:
    """Hashes each prefix of whole blocks of a prompt, for :class:`PrefixLanes`.

    ``scope``: only prompts of the same model and scope share prefixes.
    """
    hashes, value = [], hash((model_id, scope))
    for end in range(
        _BLOCK_TOKENS, min(len(prompt), _MAX_BLOCKS * _BLOCK_TOKENS) + 1, _BLOCK_TOKENS
    ):
        value = hash((value, *prompt[end - _BLOCK_TOKENS : end]))
        hashes.append(value)
    return hashes


def choose_lane(
    loads: Sequence[int],
    num_devices: int,
    num_sequences: int,
    single_lane_max_sequences: int,
    preferred: int | None = None,
) -> int:
    """Chooses the lane for a job.

    It is ``preferred``, unless that lane has over ``MAX_IMBALANCE`` sequences more than the least
    loaded one. Otherwise it is a lane of the least loaded device. If one lane has all work of that
    device, and would have at most ``single_lane_max_sequences`` sequences, it gets the job too,
    because a single busy lane can use the whole device; else the least loaded lane gets it.

    Args:
        loads: the number of sequences of each lane. The lanes of a device are adjacent, and each
            device has the same number of lanes.
        num_devices: at least one.
        num_sequences: the number of sequences of the job.
        single_lane_max_sequences: the most sequences that one lane takes while the other lanes of
            its device have none.
        preferred: the lane that may have cached the job's prefix; None for any.
    """
    if preferred is not None and loads[preferred] <= min(loads) + MAX_IMBALANCE:
        return preferred
    per_device = len(loads) // num_devices
    devices = range(0, len(loads), per_device)  # the first lane of each
    first = min(devices, key=lambda first: sum(loads[first : first + per_device]))
    lanes = loads[first : first + per_device]
    least, most = min(lanes), max(lanes)
    one_has_all = most == sum(lanes) and most + num_sequences <= single_lane_max_sequences
    return first + lanes.index(most if one_has_all else least)
