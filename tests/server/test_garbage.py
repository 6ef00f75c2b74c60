"""Cyclic garbage is collected when the server becomes idle, and not while it works."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from server.models.garbage import FullCollections, freeze_loaded_objects


class Node:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def server_collector() -> Iterator[None]:
    """The collector as a server sets it."""
    before = gc.get_threshold()
    freeze_loaded_objects()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def old_cycle() -> "weakref.ref[Node]":
    """Garbage that only a full collection finds."""
    node = Node()
    gc.collect(1)  # makes it an old object
    return weakref.ref(node)


def test_young_collections_leave_old_garbage() -> None:
    garbage = old_cycle()
    for _ in range(20):
        gc.collect(1)
    assert garbage() is not None


def test_an_idle_server_collects_once() -> None:
    collections = FullCollections()
    first = old_cycle()
    collections.collect(is_idle=True)
    assert first() is None
    second = old_cycle()
    collections.collect(is_idle=True)
    assert second() is not None
    collections.collect(is_idle=False)
    assert second() is not None
    collections.collect(is_idle=True)
    assert second() is None


def test_a_busy_server_collects_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    collections = FullCollections()
    garbage = old_cycle()
    collections.collect(is_idle=False)
    assert garbage() is not None
    monkeypatch.setattr("server.models.garbage.MAX_SECONDS_BETWEEN_COLLECTIONS", -1.0)
    collections.collect(is_idle=False)
    assert garbage() is None


def test_many_allocations_start_no_full_collection() -> None:
    garbage = old_cycle()
    kept = [Node() for _ in range(300_000)]
    assert gc.get_stats()[1]["collections"] > 0
    assert garbage() is not None
    assert len(kept) == 300_000
