"""Builds the native libraries of the server: ``python -m scripts.build_kernels``.

For CPUs, compiles ``native/`` once, and ``native/simd/`` once for each register width. For NVIDIA
GPUs, compiles ``native/cuda/device/`` to PTX, and puts it into the library of ``native/cuda/``.

The compiler comes with the package ``ziglang``, so every machine builds the same libraries, for
Linux on x86-64 or AArch64 with glibc 2.28 or newer. On other systems there are none, and the server
uses ONNX Runtime's own operators.

Imports no other module of the project: setup.py loads it, and the container image runs it.
"""

import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "native"
FOLDER = ROOT / "server" / "runtime"
LIBRARY, CUDA_LIBRARY = "libtriune_kernels.so", "libtriune_cuda.so"
LIBRARIES = (LIBRARY, CUDA_LIBRARY)
MACHINE = platform.machine()
WHEEL_PLATFORM = f"manylinux_2_28_{MACHINE}"
OPTIONS = (
    *("-std=c++20", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"),
    *("-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"),
)
# By machine, the widths of vectors that native/simd/ is compiled for.
VECTOR_BITS = {"x86_64": (256, 512), "aarch64": (256,)}
# The compute capabilities of the device code: the oldest GPUs with bfloat16, and those whose
# kernels may start before earlier ones end.
CAPABILITIES = (80, 90)
PTX_VERSION = 78  # of the oldest drivers with CUDA 12
# The compiler's front end adds options that this target lacks.
_UNUSED = ("-Wno-unused-command-line-argument", "-Wno-unsupported-target-opt")
# Calls would keep arguments in memory: everything is inlined.
_INLINE = ("-mllvm", "-inline-threshold=100000")
DEVICE_OPTIONS = ("-std=c++20", "-O3", "-g0", "-Wall", "-Wextra", "-Werror", *_UNUSED, *_INLINE)


def main() -> None:
    """Builds the libraries, or prints why there are none for this system."""
    if not is_supported():
        print(f"no kernels for {platform.system()} on {MACHINE}")
        return
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        build(Path(folder))
        for name in LIBRARIES:  # processes that run an old library keep it
            (Path(folder) / name).rename(FOLDER / name)


def is_supported() -> bool:
    """Whether this system can run the libraries."""
    system = (platform.system(), platform.libc_ver()[0])
    return system == ("Linux", "glibc") and MACHINE in VECTOR_BITS


def is_current() -> bool:
    """Whether there are libraries, newer than their sources."""
    sources = [Path(__file__), *(path for path in SOURCES.rglob("*") if path.is_file())]
    newest = max(path.stat().st_mtime for path in sources)
    built = [FOLDER / name for name in LIBRARIES]
    return all(path.exists() and path.stat().st_mtime >= newest for path in built)


def build(folder: Path, machine: str = MACHINE) -> None:
    """Compiles and links the libraries for ``machine`` into ``folder``.

    Raises:
        subprocess.CalledProcessError: the compiler failed, or ``ziglang`` is not installed.
    """
    with tempfile.TemporaryDirectory() as temporary:
        objects = compile_sources(Path(temporary), machine)
        link(*map(str, objects), "-o", str(folder / LIBRARY), target=target_of(machine))
        build_cuda_library(folder / CUDA_LIBRARY, Path(temporary), machine)


def target_of(machine: str) -> tuple[str, ...]:
    """Returns the options of the compiler for a machine."""
    return ("-target", f"{machine}-linux-gnu.2.28", "-mcpu=baseline")


def build_cuda_library(library: Path, temporary: Path, machine: str) -> None:
    """Compiles the device code and the operators that launch it."""
    kernels = SOURCES / "cuda" / "device" / "kernels.cc"

    def compile_for(capability: int) -> str:
        code = temporary / f"kernels_{capability}.ptx"
        device = f"-mcpu=sm_{capability}+ptx{PTX_VERSION}"
        target = ("-target", "nvptx64-cuda-none", device)
        run_compiler(*DEVICE_OPTIONS, "-S", str(kernels), "-o", str(code), target=target)
        code.write_text(with_launch_bounds(code.read_text()))
        return f'-DDEVICE_CODE_{capability}="{code}"'

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        defines = list(threads.map(compile_for, CAPABILITIES))
    sources = map(str, sorted(SOURCES.glob("cuda/*.cc")))
    options = (*OPTIONS, *defines, "-ldl", "-lpthread")
    link(*options, *sources, "-o", str(library), target=target_of(machine))


def with_launch_bounds(ptx: str) -> str:
    """Writes what ``expect_threads()`` left in a kernel as its directives.

    Source: PTX ISA, "Performance-Tuning Directives".
    """
    return re.sub(
        r"\n\{\n(?P<before>(?:(?!\n\}).)*?)\s// expect (\d+) threads, (\d+) blocks",
        r"\n.maxntid \2\n.minnctapersm \3\n{\n\g<before>",
        ptx,
        flags=re.DOTALL,
    )


def build_emulated_library(library: Path, sources: Path = SOURCES) -> None:
    """Builds the operators of CUDA for tests: an emulator runs their device code on the CPU."""
    cuda = sources / "cuda"
    operators = (path for path in sorted(cuda.glob("*.cc")) if path.name != "driver.cc")
    files = map(str, (*operators, *sorted(cuda.glob("emulator/*.cc"))))
    provider = '-DPROVIDER="CPUExecutionProvider"'
    # -O1 compiles twice as fast, and each test of a defect compiles once.
    link(*OPTIONS, "-O1", provider, *files, "-lpthread", "-o", str(library))


def link(*arguments: str, target: tuple[str, ...] | None = None) -> None:
    """Links a library; None is for this machine."""
    run_compiler("-shared", "-s", "-nostdlib++", *arguments, target=target)


def compile_sources(folder: Path, machine: str) -> Iterable[Path]:
    """Compiles all sources for ``machine``; returns the object files, in ``folder``."""

    def compile_one(source: Path, bits: int | None) -> Path:
        define = () if bits is None else (f"-DSIMD_BITS={bits}",)
        target = folder / (f"{source.stem}.o" if bits is None else f"{source.stem}_{bits}.o")
        options = (*OPTIONS, *define, "-c", str(source), "-o", str(target))
        run_compiler(*options, target=target_of(machine))
        return target

    sources = [(source, None) for source in sorted(SOURCES.glob("*.cc"))]
    simd = [
        (source, bits)
        for bits in VECTOR_BITS[machine]
        for source in sorted(SOURCES.glob("simd/*.cc"))
    ]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(compile_one, *zip(*sources, *simd, strict=True)))


def run_compiler(*arguments: str, target: tuple[str, ...] | None = None) -> None:
    """Runs the C++ compiler; a target of None is this machine.

    Raises:
        subprocess.CalledProcessError
    """
    target = target_of(MACHINE) if target is None else target
    subprocess.run([sys.executable, "-m", "ziglang", "c++", *target, *arguments], check=True)


if __name__ == "__main__":
    main()
