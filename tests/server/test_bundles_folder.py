"""Folders with odd names and without permissions: reported, and the others are served."""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from client.aio import AsyncClient
from client.types import ModelState
from server.app import running_server
from server.config import ServerConfig
from server.errors import StartupError
from server.log_format import LogFormatter
from server.models.bundles_folder import find_bundles
from server.models.watch import Watch
from tests.server.in_process_server import CLASSIFIER, serving

NOBODY = 65534
ODD_NAMES = {b"\xff\xfe": r"\udcff\udcfe", b"a\nb": r"a\nb", b"\x1b[2J": r"\x1b[2J"}
DIGITS = ("²", "1²", "٣", "9" * 255)  # some have a digit that is no decimal


@pytest.fixture
def folder(tiny_bundles: Path) -> Iterator[Path]:
    """A bundle folder that every user may read: pytest's own folders belong to one user."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        Path(path).chmod(0o755)
        shutil.copytree(tiny_bundles / CLASSIFIER, Path(path) / CLASSIFIER)
        yield Path(path)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Permissions do not apply to root, so this process becomes nobody for a while."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    path.chmod(0)
    try:
        with without_privileges():
            yield
    finally:
        path.chmod(0o755)


def test_versions_are_any_names_with_digits(folder: Path) -> None:
    for version in DIGITS:
        shutil.copytree(folder / CLASSIFIER / "1", folder / CLASSIFIER / version)
    found = find_bundles(folder)
    assert [version for _, version in found.keys] == ["²", "1", "1²", "٣", "9" * 255]


async def test_lists_folders_whose_names_are_not_printable(bundles: Path) -> None:
    for raw_name in ODD_NAMES:
        shutil.copytree(bundles / CLASSIFIER, bundles / os.fsdecode(raw_name))
    async with (
        serving(bundles) as running,
        AsyncClient(f"127.0.0.1:{running.port}", timeout_seconds=60) as client,
    ):
        models = {model.name: model for model in await client.list_models()}
        assert models.keys() == {CLASSIFIER, *ODD_NAMES.values()}
        for name in ODD_NAMES.values():
            assert models[name].state == ModelState.REFUSED
            assert models[name].failure.isprintable()
            assert (await client.get_model(name)).failure == models[name].failure
        assert (await client.classify(CLASSIFIER, "12")).outputs


@pytest.mark.parametrize("parts", [("locked",), ("locked", "1"), ("locked", "1", "more")])
async def test_watcher_passes_over_unreadable_folders(
    folder: Path, parts: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(folder / CLASSIFIER, folder / "locked")
    folder.joinpath("locked", "1", "more").mkdir()
    with unreadable(folder.joinpath(*parts)):
        async with serving(folder, watch_seconds=60) as running:
            assert running.registry.names == {CLASSIFIER}
    assert "cannot read locked" in caplog.text or "locked/1" in caplog.text
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("parts", [(CLASSIFIER,), (CLASSIFIER, "1")])
async def test_watcher_keeps_models_whose_folder_becomes_unreadable(
    folder: Path, parts: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(folder) as running:
        watch = Watch(running.catalog, folder, seconds=60)
        with unreadable(folder.joinpath(*parts)):
            for _ in range(3):
                await watch.follow()
        assert running.registry.names == {CLASSIFIER}
        assert caplog.text.count("Permission denied") == 1
        shutil.rmtree(folder / CLASSIFIER)
        await watch.follow()
        await watch.follow()
        assert not running.registry.names


@pytest.mark.parametrize("watch_seconds", [None, 60])
async def test_unreadable_bundles_folder_fails_startup(
    folder: Path, watch_seconds: float | None
) -> None:
    with unreadable(folder), pytest.raises(StartupError, match=r"cannot read .*Permission denied"):
        async with serving(folder, watch_seconds=watch_seconds):
            pass


def _without_admin(root: Path) -> ServerConfig:
    """With an admin address, the server waits for its first bundle."""
    return ServerConfig(bundles=root, listen="127.0.0.1:0", metrics="127.0.0.1:0", http=None)


@pytest.mark.parametrize("parts", [("empty",), (CLASSIFIER,), (CLASSIFIER, "1")])
async def test_a_folder_without_bundles_fails_startup(folder: Path, parts: tuple[str, ...]) -> None:
    (folder / "empty").mkdir()
    root = folder.joinpath(*parts)
    with pytest.raises(
        StartupError, match=f"no bundle in {root}: a bundle is a folder NAME/VERSION"
    ):
        async with running_server(_without_admin(root)):
            pass


def test_links_in_a_circle_are_unreadable(bundles: Path) -> None:
    (bundles / "circle").symlink_to(bundles / "circle")
    found = find_bundles(bundles)
    assert found.keys == ((CLASSIFIER, "1"),)
    assert found.unreadable == {("circle",): "Too many levels of symbolic links"}


def test_log_records_are_one_line() -> None:
    record = logging.makeLogRecord({"name": "server", "msg": "refused %s", "args": ("a\n\x1b[2J",)})
    assert LogFormatter().format(record).endswith(r"server refused a\n\x1b[2J")
    try:
        raise ValueError("x\n2026-01-01 INFO server forged\x1b")
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    first, *traceback = LogFormatter().format(record).split("\n")
    assert first.endswith(r"server refused a\n\x1b[2J")
    assert traceback
    assert all(line.startswith("    ") and line.isprintable() for line in traceback)
