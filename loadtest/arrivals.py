"""Arrival times of requests in an open loop."""

from collections.abc import Iterator

import numpy as np


def poisson(rate: float, duration_seconds: float, seed: int) -> Iterator[float]:
    """Times in [0, ``duration_seconds``) of a Poisson process with ``rate`` arrivals per second.

    The gaps are exponential with mean 1 / rate, as those of many independent users.
    """
    random = np.random.default_rng(seed)
    at = random.exponential(1.0 / rate)
    while at < duration_seconds:
        yield float(at)
        at += random.exponential(1.0 / rate)
