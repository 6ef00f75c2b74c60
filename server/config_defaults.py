"""Option defaults that depend on the machine or on other options, and checks of values."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server import control_groups

# Token budget of one step, by kind of device: docs/decisions/0083-cuda-graphs.md.
BATCHED_TOKENS = {"cpu": 256, "cuda": 2048}
# Tokens of one encoder batch, padding included: docs/decisions/0097-encoder-batches.md.
PADDED_TOKENS = {"cpu": 256, "cuda": 4096}
# More lanes would make the batch of each too small.
_MAX_LANES = 4

Options = Mapping[str, Any]
"""Values of the :class:`server.config.ServerConfig` fields that precede the one to compute."""


def num_cores(_: Options) -> int:
    """Number of cores that this process may use, within a container's limit of CPU time."""
    return control_groups.num_cores(len(os.sched_getaffinity(0)))


def default_num_lanes(options: Options) -> int:
    """One lane per thread of a CPU, within a limit; one lane on other devices."""
    return min(options["num_threads"], _MAX_LANES) if options["devices"] == ("cpu",) else 1


def default_num_prefix_slots(options: Options) -> int:
    """As many as the slots on a CPU, whose pages are allocated on first use; 0 on other devices."""
    return int(options["num_slots"]) if options["devices"] == ("cpu",) else 0


def default_batched_tokens(options: Options) -> int:
    """The token budget of one step, in tokens."""
    return BATCHED_TOKENS[_kind(options)]


def default_padded_tokens(options: Options) -> int:
    """The size of one encoder batch, in tokens."""
    return PADDED_TOKENS[_kind(options)]


def is_folder(path: Path) -> None:
    """Raises ``ValueError`` if ``path`` is not a folder."""
    if not path.is_dir():
        raise ValueError("not a folder")


def _kind(options: Options) -> str:
    devices: tuple[str, ...] = options["devices"]
    return devices[0].partition(":")[0]
