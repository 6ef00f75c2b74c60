"""The event loop's thread goes first: threads that compute have a higher niceness."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from client.sync import Client
from server.niceness import Niceness, add_niceness
from tests.serving import server_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have none of their own")


def niceness_of_thread() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_niceness_is_added_to_one_thread_alone() -> None:
    before = niceness_of_thread()
    with ThreadPoolExecutor(1, "nice", add_niceness, (Niceness.LANE,)) as pool:
        assert pool.submit(niceness_of_thread).result() == min(before + Niceness.LANE, 19)
    assert niceness_of_thread() == before


def test_niceness_stops_at_the_highest() -> None:
    def add_often() -> int:
        for _ in range(4):
            add_niceness(Niceness.TOKENIZER)
        return niceness_of_thread()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(add_often).result() == 19


def test_lanes_and_tokenizers_of_a_server_are_nicer_than_its_event_loop(
    tiny_bundles: Path,
) -> None:
    with server_process(tiny_bundles) as server, Client(server.target) as client:
        client.tokenize("tiny-decoder", "1," * 50_000)  # a short text needs no thread
        pid = server.process.pid
        loop = os.getpriority(os.PRIO_PROCESS, pid)
        added = {
            os.getpriority(os.PRIO_PROCESS, int(task.name)) - loop
            for task in Path(f"/proc/{pid}/task").iterdir()
        }
    assert {0, min(Niceness.LANE, 19 - loop), min(Niceness.TOKENIZER, 19 - loop)} <= added
