"""Builds the native library of the server: ``python -m scripts.build_kernels``.

Compiles ``native/`` once, and ``native/simd/`` once for each register width.

The compiler comes with the package ``ziglang``, so every machine builds the same library, for
Linux on x86-64 with glibc 2.28 or newer. On other systems there is no library, and the server uses
ONNX Runtime's own operators.

Imports no other module of the project: setup.py loads it, and the container image runs it.
"""

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "native"
LIBRARY = ROOT / "server" / "runtime" / "libtriune_kernels.so"
TARGET = ("-target", "x86_64-linux-gnu.2.28", "-mcpu=baseline")
WHEEL_PLATFORM = "manylinux_2_28_x86_64"
OPTIONS = (
    *("-std=c++20", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"),
    *("-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"),
)
REGISTER_BITS = (256, 512)


def main() -> None:
    """Builds the library, or prints why there is none for this system."""
    if not is_supported():
        print(f"no kernels for {platform.system()} on {platform.machine()}")
        return
    built = LIBRARY.with_suffix(".new")
    build(built)
    built.rename(LIBRARY)  # processes that run the old library keep it


def is_supported() -> bool:
    """Whether this system can run the library."""
    system = (platform.system(), platform.machine(), platform.libc_ver()[0])
    return system == ("Linux", "x86_64", "glibc")


def is_current() -> bool:
    """Whether there is a library, newer than its sources."""
    sources = [Path(__file__), *(path for path in SOURCES.rglob("*") if path.is_file())]
    newest = max(path.stat().st_mtime for path in sources)
    return LIBRARY.exists() and LIBRARY.stat().st_mtime >= newest


def build(library: Path) -> None:
    """Compiles and links the library.

    Raises:
        subprocess.CalledProcessError: the compiler failed, or ``ziglang`` is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        objects = compile_sources(Path(folder))
        run_compiler("-shared", "-s", "-nostdlib++", *map(str, objects), "-o", str(library))


def compile_sources(folder: Path) -> Iterable[Path]:
    """Compiles all sources; returns the object files, in ``folder``."""

    def compile_one(source: Path, bits: int | None) -> Path:
        define = () if bits is None else (f"-DSIMD_BITS={bits}",)
        target = folder / (f"{source.stem}.o" if bits is None else f"{source.stem}_{bits}.o")
        run_compiler(*OPTIONS, *define, "-c", str(source), "-o", str(target))
        return target

    sources = [(source, None) for source in sorted(SOURCES.glob("*.cc"))]
    simd = [
        (source, bits) for bits in REGISTER_BITS for source in sorted(SOURCES.glob("simd/*.cc"))
    ]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(compile_one, *zip(*sources, *simd, strict=True)))


def run_compiler(*arguments: str) -> None:
    """Runs the C++ compiler.

    Raises:
        subprocess.CalledProcessError
    """
    subprocess.run([sys.executable, "-m", "ziglang", "c++", *TARGET, *arguments], check=True)


if __name__ == "__main__":
    main()
