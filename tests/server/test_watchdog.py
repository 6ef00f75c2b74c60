"""The watchdog on a simulated clock: which runs are stuck, and which only are slow."""

from dataclasses import dataclass

import pytest

from server.engine.watchdog import (
    MAX_TIMES_FLOOR_AT_FIRST,
    MAX_TIMES_USUAL,
    Progress,
    StuckLaneError,
    Watchdog,
    stacks_of_threads,
)
from tests.server.worker_harness import Clock

FLOOR = 10.0


@dataclass
class FakeLane:
    """A lane that runs what a test says."""

    progress: Progress | None = None


@dataclass
class Watched:
    """A lane and its watchdog, on one clock."""

    clock: Clock
    lane: FakeLane
    watchdog: Watchdog
    stuck: list[tuple[int, StuckLaneError]]

    def seconds_until_stuck(self, most: float) -> float | None:
        """Ticks until the lane is stuck; None if it is not within ``most`` seconds."""
        started = self.clock.now
        while self.clock.now - started < most:
            self.clock.now += self.watchdog.interval_seconds
            if self.watchdog.tick():
                return self.clock.now - started
        return None


@pytest.fixture
def watched() -> Watched:
    clock, lane = Clock(), FakeLane()
    stuck: list[tuple[int, StuckLaneError]] = []
    watchdog = Watchdog([lane], FLOOR, lambda *report: stuck.append(report), clock)
    return Watched(clock, lane, watchdog, stuck)


def progress_with_usual(watched: Watched, seconds_per_token: float) -> Progress:
    """The progress of a worker that has run often."""
    progress = Progress("m", watched.clock)
    for num_tokens in (4, 1, 8):
        progress.begin(num_tokens)
        watched.clock.now += num_tokens * seconds_per_token
    progress.begin()
    return progress


def test_fast_run_is_stuck_after_the_floor(watched: Watched) -> None:
    watched.lane.progress = progress = progress_with_usual(watched, 0.01)
    progress.begin(8)
    assert watched.seconds_until_stuck(100) == pytest.approx(FLOOR, abs=2)
    ((lane, error),) = watched.stuck
    assert lane == 0
    assert "lane 0 is stuck: a run of m" in str(error)


def test_slow_run_gets_a_multiple_of_its_usual_time_by_tokens(watched: Watched) -> None:
    watched.lane.progress = progress = progress_with_usual(watched, 1.0)
    progress.begin(16)
    usual = MAX_TIMES_USUAL * 16
    assert watched.seconds_until_stuck(2 * usual) == pytest.approx(usual, abs=2)


def test_first_run_gets_longer(watched: Watched) -> None:
    watched.lane.progress = progress = Progress("m", watched.clock)
    progress.begin(1)
    first = MAX_TIMES_FLOOR_AT_FIRST * FLOOR
    assert watched.seconds_until_stuck(2 * first) == pytest.approx(first, abs=2)


def test_lane_with_progress_or_without_work_is_not_stuck(watched: Watched) -> None:
    assert watched.seconds_until_stuck(1000) is None
    watched.lane.progress = progress = progress_with_usual(watched, 0.01)
    for _ in range(50):
        progress.begin(1)
        assert watched.seconds_until_stuck(0.8 * FLOOR) is None
    watched.lane.progress = None
    assert watched.seconds_until_stuck(1000) is None


def test_time_in_which_the_process_was_stopped_does_not_count(watched: Watched) -> None:
    watched.lane.progress = progress = progress_with_usual(watched, 0.01)
    progress.begin(1)
    for _ in range(3):
        watched.clock.now += 3600.0
        assert not watched.watchdog.tick()
    assert watched.seconds_until_stuck(0.3 * FLOOR) is None
    progress.end()  # an hour for one token enters the average as at most 20 times the usual
    progress.begin(1)
    assert watched.seconds_until_stuck(100) == pytest.approx(FLOOR, abs=2)


def test_stacks_name_the_running_function() -> None:
    assert "test_stacks_name_the_running_function" in stacks_of_threads()
