"""Resources of a running export: a temporary folder, PyTorch's threads, and its end by a signal."""

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from export.errors import ExportError
from export.offload import LARGE_BYTES, num_bytes

PREFIX = ".export-"  # of temporary folders


@contextmanager
def few_threads(weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Limits PyTorch to one thread for small models.

    Their matrices are small. On cores shared with other work, waiting threads slowed a check down
    from 8 to 37 seconds.
    """
    num_threads = torch.get_num_threads()
    if num_bytes(weights) < LARGE_BYTES:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


@contextmanager
def scratch_folder(root: Path) -> Iterator[Path]:
    """A temporary folder inside ``root``, on the same file system; a rename may keep it.

    Removes the folders there of exports that were killed.

    Raises:
        ExportError: a file could not be written there, for example because the disk is full.
    """
    try:
        with ExitStack() as stack:
            root.mkdir(parents=True, exist_ok=True)
            with _locked(root, wait=True) as is_alone:  # no other export makes or removes one
                if is_alone:
                    _remove_unlocked(root)
                directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
                stack.enter_context(_locked(directory, wait=False))
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            directory.chmod(0o755)
            yield directory
    except OSError as error:
        raise ExportError(f"cannot write to {root}: {error.strerror or error}") from error


def _remove_unlocked(root: Path) -> None:
    """Removes the temporary folders in ``root`` whose exports have ended."""
    for folder in root.glob(f"{PREFIX}*"):
        with _locked(folder, wait=False) as has_ended:
            if has_ended:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Locks a folder, until the process ends at the latest.

    Yields whether it could: some file systems have no locks, and without ``wait`` another process
    may have this one.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # it was renamed or removed
        yield False
        return
    try:
        yield _lock(descriptor, wait=wait)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


@contextmanager
def sigterm_as_exception() -> Iterator[None]:
    """SIGTERM raises ``SystemExit``, so that temporary folders are removed as on Ctrl-C."""

    def end(number: int, frame: object) -> None:
        del frame
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
