"""Prioritizes the event loop when a machine has more busy threads than cores.

A request passes the event loop several times, and waits each time until that thread gets a core.
Compute threads therefore have a higher niceness than the event loop's thread (setpriority(2); on
Linux, each thread has its own). On a machine with idle cores this changes nothing.
"""

import os
import sys
import threading
from enum import IntEnum

_HIGHEST = 19


class Niceness(IntEnum):
    """Niceness values, relative to that of the process."""

    LANE = 5
    TOKENIZER = 10


def add_niceness(niceness: Niceness) -> None:
    """Raises the current thread's niceness. Does nothing except on Linux."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        own = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(own + niceness, _HIGHEST))
