"""``python -m tests.soak.leaking KB``: a server that leaks KB kilobytes per call.

The soak test uses it to show that it detects leaks.
"""

import os
import sys

from server import __main__ as program
from server.telemetry.metrics import Metrics

_leaked: list[bytes] = []
_on_request = Metrics.on_request


def _leak(self: Metrics, model: str, method: str, status: str, seconds: float) -> None:
    _leaked.append(os.urandom(leaked_bytes))
    _on_request(self, model, method, status, seconds)


if __name__ == "__main__":
    leaked_bytes = int(sys.argv.pop(1)) << 10
    Metrics.on_request = _leak  # type: ignore[method-assign]
    program.app()
