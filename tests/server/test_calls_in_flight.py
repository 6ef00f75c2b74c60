"""Bundles are unloaded only after their calls have ended."""

import asyncio

import pytest

from server.models.calls_in_flight import CallsInFlight


@pytest.mark.parametrize("model", ["bundle", "bundle:adapter", "bundle:latest"])
async def test_calls_of_adapters_are_calls_of_their_bundle(model: str) -> None:
    """Each item of EmbedStream is a call, and may name an adapter."""
    calls = CallsInFlight()
    with calls.of(model):
        ended = asyncio.create_task(calls.ended("bundle"))
        await asyncio.create_task(calls.ended("other"))
        assert not ended.done()
    await ended
