"""Virtual environments for programs of others, which are no dependencies of the project."""

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).parents[1]


def environment(*packages: str) -> Path:
    """The folder with the programs of an environment, which the first call makes.

    Args:
        packages: with their versions: ``name==version``.
    """
    key = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:8]
    folder = ROOT / "build" / "clients" / f"{packages[0].replace('==', '-')}-{key}"
    complete = folder / "complete"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not complete.exists():
            venv.create(folder, clear=True, symlinks=True)
            pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
            # Without bytecode of what nobody imports.
            subprocess.run([*pip, "install", "--quiet", "--no-compile", *packages], check=True)
            complete.touch()
    return folder / "bin"
