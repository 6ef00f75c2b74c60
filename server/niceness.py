"""Lets the event loop go first when a machine has more busy threads than cores.

A request passes the event loop several times, and waits each time until that thread gets a core.
Threads that compute therefore have a higher niceness than the loop's (setpriority(2); Linux has one
for each thread). On a machine with cores to spare this changes nothing.
"""

import os
import sys
import threading
from enum import IntEnum

_HIGHEST = 19


class Niceness(IntEnum):
    """Added to that of the process."""

    LANE = 5
    TOKENIZER = 10


def add_niceness(niceness: Niceness) -> None:
    """Adds ``niceness`` to that of the current thread. Only Linux has one for each thread."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        own = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(own + niceness, _HIGHEST))
