"""Compiles ``native/`` into the server: ``python -m scripts.build_kernels``.

What is in ``native/simd/`` is compiled once for each width of registers.

With the compiler that the package ``ziglang`` brings, so that every machine makes the same
library, for any Linux on x86-64 with glibc 2.28 or newer. On others there is none to make, and the
server runs bundles by ONNX Runtime's own operators.

Imports nothing of ours: the image builds it before there is an environment.
"""

import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "native"
LIBRARY = ROOT / "server" / "runtime" / "libtriune_kernels.so"
TARGET = ("-target", "x86_64-linux-gnu.2.28", "-mcpu=baseline")
OPTIONS = (
    *("-std=c++20", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"),
    *("-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"),
)
REGISTER_BITS = (256, 512)


def main() -> None:
    """Writes the library, or says why not."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print(f"no kernels for {platform.system()} on {platform.machine()}")
        return
    made = LIBRARY.with_suffix(".new")
    with tempfile.TemporaryDirectory() as folder:
        objects = compile_all(Path(folder))
        run("-shared", "-s", "-nostdlib++", *map(str, objects), "-o", str(made))
    made.rename(LIBRARY)  # whoever runs the old one keeps it


def compile_all(folder: Path) -> Iterable[Path]:
    """The object files, in ``folder``."""
    made = []
    for source in sorted(SOURCES.glob("*.cc")):
        made.append(folder / f"{source.stem}.o")
        run(*OPTIONS, "-c", str(source), "-o", str(made[-1]))
    for bits in REGISTER_BITS:
        for source in sorted(SOURCES.glob("simd/*.cc")):
            made.append(folder / f"{source.stem}_{bits}.o")
            run(*OPTIONS, f"-DSIMD_BITS={bits}", "-c", str(source), "-o", str(made[-1]))
    return made


def run(*arguments: str) -> None:
    """The compiler.

    Raises:
        subprocess.CalledProcessError
    """
    subprocess.run([sys.executable, "-m", "ziglang", "c++", *TARGET, *arguments], check=True)


if __name__ == "__main__":
    main()
