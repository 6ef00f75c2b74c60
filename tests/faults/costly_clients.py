"""``python -m tests.faults.costly_clients TARGET``: sends every costly request, again and again.

Each request has a connection of its own, which sends it until the standard input ends; one that is
rejected, once a second. Then prints
the statuses of each request as JSON: ``{"METHOD, NAME": {"STATUS": COUNT}}``.
"""

import json
import sys
import threading
from collections import Counter
from typing import Any

import grpc

from tests.faults.costly_requests import CostlyRequest, costly_requests

OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
SECONDS = 30.0
PAUSE_SECONDS = 1.0  # after a rejected request


def send_until(
    stop: threading.Event, target: str, request: CostlyRequest, statuses: Counter[str]
) -> None:
    """Sends ``request`` until ``stop``, and counts the statuses."""
    data = request.message.SerializeToString()
    with grpc.insecure_channel(target, options=OPTIONS) as channel:
        call: Any = channel.unary_unary(f"/triune.v1.InferenceService/{request.method}")
        while not stop.is_set():
            try:
                call(data, timeout=SECONDS)
                statuses["OK"] += 1
            except grpc.RpcError as error:
                statuses[error.code().name] += 1
                stop.wait(PAUSE_SECONDS)


def main(target: str) -> None:
    """Sends all requests until the standard input ends."""
    stop = threading.Event()
    statuses = {request: Counter[str]() for request in costly_requests()}
    threads = [
        threading.Thread(target=send_until, args=(stop, target, request, counts), daemon=True)
        for request, counts in statuses.items()
    ]
    for thread in threads:
        thread.start()
    print("sending", flush=True)
    sys.stdin.read()
    stop.set()
    print(json.dumps({f"{x.method}, {x.name}": counts for x, counts in statuses.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
