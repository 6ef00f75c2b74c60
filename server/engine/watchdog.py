"""Detects a lane whose run does not return.

A lane reports its progress: each run that it begins, and the number of tokens of the run. The
watchdog's thread compares the time without progress with the usual time of such a run.
"""

import faulthandler
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from server.engine.clock import Clock

# A run may take this many times its usual time; a first run, this many times the floor.
MAX_TIMES_USUAL = 20.0
MAX_TIMES_FLOOR_AT_FIRST = 10.0
_SMOOTHING = 0.1  # weight of a new run in the exponential moving average
_TICK_SECONDS = 1.0
_TICKS_PER_FLOOR = 4


class StuckLaneError(RuntimeError):
    """A lane has made no progress for too long."""


def stacks_of_threads() -> str:
    """Returns the Python stacks of all threads."""
    file = os.memfd_create("stacks")  # the disk may be read-only
    try:
        faulthandler.dump_traceback(file, all_threads=True)
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace").rstrip()
    finally:
        os.close(file)


class Progress:
    """Tracks one worker's current run, and how long such a run usually takes.

    The lane's thread writes it; the watchdog reads ``num_begun`` and :meth:`max_seconds`.

    Args:
        model: the model's name, for messages.
        clock: returns seconds.
    """

    def __init__(self, model: str, clock: Clock = time.perf_counter) -> None:
        self.model = model
        self.num_begun = 0
        self._clock = clock
        self._num_tokens = 0
        self._started = 0.0
        self._seconds_per_token: float | None = None

    def begin(self, num_tokens: int = 0) -> None:
        """Starts a run over ``num_tokens``, or other work (0). Ends the run before it."""
        self.end()
        self._num_tokens, self._started = num_tokens, self._clock()
        self.num_begun += 1

    def end(self) -> None:
        """Ends the run, and adds its seconds per token to the average."""
        if not self._num_tokens:
            return
        value = (self._clock() - self._started) / self._num_tokens
        before = self._seconds_per_token
        if before is None:
            self._seconds_per_token = value
        else:  # the process may have been stopped during the run
            value = min(value, MAX_TIMES_USUAL * before)
            self._seconds_per_token = before + _SMOOTHING * (value - before)
        self._num_tokens = 0

    def max_seconds(self, floor_seconds: float) -> float:
        """Returns how long the current run may take: at least ``floor_seconds``."""
        if self._seconds_per_token is None:
            return MAX_TIMES_FLOOR_AT_FIRST * floor_seconds
        usual = self._seconds_per_token * max(self._num_tokens, 1)
        return max(floor_seconds, MAX_TIMES_USUAL * usual)


class WatchedLane(Protocol):
    """A lane to watch. ``progress``: that of the worker that runs now; None if no worker runs."""

    @property
    def progress(self) -> Progress | None: ...


@dataclass(slots=True)
class _Watched:
    """A lane's progress at the last tick, and the seconds without further progress since."""

    progress: Progress | None = None
    num_begun: int = 0
    seconds: float = 0.0


class Watchdog(threading.Thread):
    """Checks all lanes about once per second.

    A tick counts as at most two intervals, so that time in which the whole process was stopped, or
    got no CPU, does not count against a lane.

    Args:
        lanes: the lanes to watch.
        floor_seconds: no run counts as stuck before this.
        on_stuck: called once, on this thread, with the index of the lane and the error.
        clock: returns seconds.
    """

    def __init__(
        self,
        lanes: Sequence[WatchedLane],
        floor_seconds: float,
        on_stuck: Callable[[int, StuckLaneError], None],
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(name="watchdog", daemon=True)
        self.interval_seconds = min(_TICK_SECONDS, floor_seconds / _TICKS_PER_FLOOR)
        self._lanes = lanes
        self._floor_seconds = floor_seconds
        self._on_stuck = on_stuck
        self._clock = clock
        self._last_tick = clock()
        self._watched = [_Watched() for _ in lanes]
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.wait(self.interval_seconds) and not self.tick():
            pass

    def stop(self) -> None:
        """Ends the thread."""
        self._stopping.set()

    def tick(self) -> bool:
        """Checks all lanes. Returns whether one is stuck."""
        now = self._clock()
        elapsed = min(now - self._last_tick, 2 * self.interval_seconds)
        self._last_tick = now
        for index, (lane, watched) in enumerate(zip(self._lanes, self._watched, strict=True)):
            progress = lane.progress
            if progress is None:
                watched.progress = None
                continue
            num_begun = progress.num_begun
            if progress is not watched.progress or num_begun != watched.num_begun:
                watched.progress, watched.num_begun, watched.seconds = progress, num_begun, 0.0
                continue
            watched.seconds += elapsed
            if watched.seconds > progress.max_seconds(self._floor_seconds):
                message = (
                    f"lane {index} is stuck: a run of {progress.model} has not returned for "
                    f"{watched.seconds:.1f} s"
                )
                self._on_stuck(index, StuckLaneError(message))
                return True
        return False
