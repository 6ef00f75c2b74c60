"""Kernels of each width of registers that this processor has."""

from collections.abc import Iterator

import pytest

from server.runtime.kernels.library import use_registers

WIDTHS = [bits for bits in (256, 512) if use_registers(bits)]
use_registers(0)


@pytest.fixture(scope="module", params=WIDTHS, ids=lambda bits: f"{bits} bits")
def register_bits(request: pytest.FixtureRequest) -> Iterator[int]:
    """The width that is used."""
    assert use_registers(request.param)
    yield request.param
    use_registers(0)
