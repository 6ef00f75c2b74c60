"""Attention graphs are loaded on first use: they need the files that the served model has."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from client.aio import AsyncClient
from client.errors import TriuneError
from client.types import AttentionOptions
from server.errors import LoadError
from server.file_changes import FileChanges
from tests.server.in_process_server import CLASSIFIER, serving

DATES, DATE, ISO = "dates", "3 March 2021", "2021-03-03"


def _replace(path: Path, data: bytes) -> None:
    """In a new file: the running model has the old one mapped into its memory."""
    path.unlink()
    path.write_bytes(data)


def _other_weights(bundle: Path) -> None:
    """Changes weights but not sizes, so that every graph could be loaded."""
    weights = next(bundle.glob("*.data"))
    _replace(weights, bytes(weights.stat().st_size))


def _truncated_graphs(bundle: Path) -> None:
    for graph in bundle.glob("attend*.onnx"):
        _replace(graph, graph.read_bytes()[:100])


def _no_files(bundle: Path) -> None:
    for path in bundle.iterdir():
        path.unlink()


@pytest.mark.parametrize("change", [_other_weights, _truncated_graphs, _no_files])
async def test_attention_is_not_computed_from_a_refused_reload(
    tiny_bundles: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    root = tmp_path / "bundles"
    for name in (CLASSIFIER, DATES):
        shutil.copytree(tiny_bundles / name, root / name)
    async with (
        serving(root, http=None) as running,
        AsyncClient(f"127.0.0.1:{running.port}", timeout_seconds=60) as client,
    ):

        async def attend(name: str) -> object:
            if name == CLASSIFIER:
                return await client.attend(name, "good")
            return await client.translate(name, DATE, attention=AttentionOptions())

        for name in (CLASSIFIER, DATES):
            change(root / name / "1")
            with pytest.raises(LoadError):
                await running.catalog.load_found(name, "1")
            for _ in range(2):  # a refusal is not forgotten
                with pytest.raises(TriuneError, match=f"the files of '{name}/1' have") as caught:
                    await attend(name)
                assert caught.value.code == grpc.StatusCode.FAILED_PRECONDITION
        assert (await client.translate(DATES, DATE)).outputs[0].text == ISO
        for name in (CLASSIFIER, DATES):
            await asyncio.to_thread(shutil.rmtree, root / name)
            await asyncio.to_thread(shutil.copytree, tiny_bundles / name, root / name)
            await running.catalog.load_found(name, "1")
            await attend(name)
            change(root / name / "1")
            await attend(name)  # the graph is loaded


def test_changes_are_pending_until_they_are_detected(tmp_path: Path) -> None:
    path = tmp_path / "file"
    changes = FileChanges(path)
    assert not changes.are_pending
    path.touch()
    assert changes.are_pending
    assert changes.are_pending
    assert changes.detected()
    assert not changes.are_pending


def test_the_newest_file_tells_when_all_were_written(tmp_path: Path) -> None:
    assert FileChanges(tmp_path / "none").newest_seconds == 0
    paths = [tmp_path / name for name in "ab"]
    for seconds, path in zip((2000, 1000), paths, strict=True):
        path.touch()
        os.utime(path, (seconds, seconds))
    assert FileChanges(*paths, tmp_path / "none").newest_seconds == 2000
