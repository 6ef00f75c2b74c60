"""Resources of a running export: a temporary folder, PyTorch's threads, and its end by a signal."""

import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from export.errors import ExportError
from export.offload import LARGE_BYTES, num_bytes


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

    Raises:
        ExportError: a file could not be written there, for example because the disk is full.
    """
    directory = None
    try:
        root.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix=".export-", dir=root))
        directory.chmod(0o755)
        yield directory
    except OSError as error:
        raise ExportError(f"cannot write to {root}: {error.strerror or error}") from error
    finally:
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)


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
