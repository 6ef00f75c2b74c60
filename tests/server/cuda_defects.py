"""Libraries of CUDA's operators with a defect, which the emulator is to find."""

import shutil
from pathlib import Path

from scripts.build_kernels import SOURCES, build_emulated_library


def library_with_defect(folder: Path, file: str, line: str, instead: str) -> Path:
    """Builds the operators for the emulator, with other code in place of one in a device file.

    Args:
        folder: an empty one.
        file: its name.
        line: what is replaced; the file has it once.
        instead: the other code.
    """
    shutil.copytree(SOURCES, folder / "native")
    path = folder / "native" / "cuda" / "device" / file
    code = path.read_text()
    assert code.count(line) == 1
    path.write_text(code.replace(line, instead))
    library = folder / "planted.so"
    build_emulated_library(library, folder / "native")
    return library
