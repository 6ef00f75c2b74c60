"""A short soak test: with the same limits, a healthy server passes and a leaking one fails."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.soak.__main__ import soak
from tests.soak.report import MEGABYTE, Report, Sample, make_report
from tests.soak.slope import theil_sen

# The first calls allocate tens of megabytes permanently, which is no leak. The planted leak is far
# larger, and is measured per call, so that the machine's speed does not matter.
MAX_SECONDS, ENOUGH_CALLS, MAX_KILOBYTES_PER_CALL = 60, 200, 1000
LEAK_KILOBYTES = 3000


@pytest.fixture(scope="module")
def reports(tiny_bundles: Path) -> tuple[Report, Report]:
    """Reports of a healthy server and of a leaking one."""

    def run(leak_kilobytes: int) -> Report:
        return soak(
            [tiny_bundles],
            MAX_SECONDS,
            warm_up_seconds=0,
            max_kilobytes_per_call=MAX_KILOBYTES_PER_CALL,
            enough_calls=ENOUGH_CALLS,
            num_clients=1,
            leak_kilobytes=leak_kilobytes,
        )

    with ThreadPoolExecutor(2) as pool:
        healthy, leaking = pool.map(run, (0, LEAK_KILOBYTES))
    return healthy, leaking


def test_healthy_server_passes(reports: tuple[Report, Report]) -> None:
    healthy, _ = reports
    assert healthy.faults == ()
    assert healthy.open_slots_at_end == 0
    assert healthy.most_open_slots > 0
    assert sum(row.get("OK", 0) for row in healthy.requests.values()) > 0
    assert {"INVALID_ARGUMENT", "CANCELLED"} <= set(healthy.errors)
    assert healthy.killed_clients > 0


def test_planted_leak_is_detected(reports: tuple[Report, Report]) -> None:
    _, leaking = reports
    assert [fault for fault in leaking.faults if fault.startswith("memory grows")]
    assert leaking.kilobytes_per_call.low > MAX_KILOBYTES_PER_CALL


def samples(megabytes_per_hour: float, noise_mb: float, open_slots: int = 0) -> list[Sample]:
    rng = random.Random(0)
    return [
        Sample(
            float(second),
            10 * second,
            int((100 + megabytes_per_hour * second / 3600 + rng.gauss(0, noise_mb)) * MEGABYTE),
            open_slots,
        )
        for second in range(0, 1800, 5)
    ]


def verdict(samples: list[Sample], *, statuses: dict[str, int], open_slots: int = 0) -> Report:
    return make_report(
        samples,
        {"GenerateStream": statuses},
        warm_up_seconds=360,
        max_megabytes_per_hour=16,
        killed_clients=0,
        open_slots_at_end=open_slots,
        exit_status=0,
    )


def test_growth_is_distinguished_from_noise() -> None:
    assert verdict(samples(0, 5), statuses={"OK": 1}).faults == ()
    assert verdict(samples(10, 5), statuses={"OK": 1}).faults == ()
    assert verdict(samples(60, 5), statuses={"OK": 1}).faults


def test_limit_leaves_room_for_what_grpc_loses_with_cancelled_streams() -> None:
    growing = samples(25, 1)
    assert verdict(growing, statuses={"OK": 1}).faults
    assert verdict(growing, statuses={"OK": 1, "CANCELLED": 60_000}).faults == ()
    assert verdict(growing, statuses={"OK": 1, "CANCELLED": 20_000}).faults


def test_open_slots_and_unexpected_statuses_are_faults() -> None:
    good = samples(0, 1)
    assert verdict(good, statuses={"OK": 1}, open_slots=1).faults == (
        "1 slots are in use without calls",
    )
    assert verdict(good, statuses={"OK": 1, "INTERNAL": 2, "CANCELLED": 3}).faults == (
        "calls ended with {'INTERNAL': 2}",
    )
    assert verdict(good, statuses={"CANCELLED": 3}).faults == ("no call succeeded",)


def test_slope_ignores_outliers_and_is_inside_its_interval() -> None:
    times = [float(hour) for hour in range(30)]
    values = [3 * time + (1000 if time in (4, 17) else 0) for time in times]
    slope = theil_sen(times, values)
    assert slope.value == pytest.approx(3)
    assert slope.low <= 3 <= slope.high
    with pytest.raises(ValueError, match="at least 3"):
        theil_sen(times[:2], values[:2])
