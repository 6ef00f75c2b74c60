"""Where a bundle is written: the folder of its name and version."""

import re
from pathlib import Path

from export.errors import BundleExistsError, ExportError
from model.bundle import NAME_PATTERN


def bundle_path(root: Path, name: str, version: str) -> Path:
    """The folder ``root/name/version``, which does not exist yet.

    Raises:
        ExportError: the name or the version has characters that it may not have, or a file is in
            place of a folder.
        BundleExistsError: a bundle of this name and version exists.
    """
    for part, value in (("the bundle's name, --out:", name), ("--version:", version)):
        if not re.fullmatch(NAME_PATTERN, value):
            raise ExportError(f"{part} {value!r} does not match {NAME_PATTERN}")
    path = root / name / version
    for folder in (root, path.parent):
        if folder.exists() and not folder.is_dir():
            raise ExportError(f"--out: {folder} is not a folder")
    if path.exists():
        raise BundleExistsError(f"{path} exists: delete it, or choose another version")
    return path
