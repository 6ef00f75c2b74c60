"""Compiles ``native/`` into the server: ``python -m scripts.build_kernels``.

With the compiler that the package ``ziglang`` brings, so that every machine makes the same
library, for any Linux on x86-64 with glibc 2.28 or newer. On others there is none to make, and the
server runs bundles by ONNX Runtime's own operators.

Imports nothing of ours: the image builds it before there is an environment.
"""

import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "native"
LIBRARY = ROOT / "server" / "backend" / "libtriune_kernels.so"
TARGET = ("-target", "x86_64-linux-gnu.2.28", "-mcpu=baseline")
OPTIONS = (
    *("-std=c++17", "-O3", "-Wall", "-Wextra", "-Werror", "-s"),
    *("-shared", "-fPIC", "-fvisibility=hidden"),
    *("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-nostdlib++"),
)


def main() -> None:
    """Writes the library, or says why not."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print(f"no kernels for {platform.system()} on {platform.machine()}")
        return
    sources = [str(path) for path in sorted(SOURCES.glob("*.cc"))]
    compiler = (sys.executable, "-m", "ziglang", "c++")
    made = LIBRARY.with_suffix(".new")
    subprocess.run([*compiler, *TARGET, *OPTIONS, *sources, "-o", str(made)], check=True)
    made.rename(LIBRARY)  # whoever runs the old one keeps it


if __name__ == "__main__":
    main()
