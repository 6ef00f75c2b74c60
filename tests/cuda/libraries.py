"""Stand-ins of NVIDIA's libraries, and ONNX Runtime for GPUs, for tests without a GPU.

With them, ONNX Runtime loads graphs on its CUDA provider and launches kernels: node placement,
copies, launches, waits and errors of captures are as on a GPU. Kernels do nothing, or compute on
the host: ours in an emulator, those of ONNX Runtime and NVIDIA as ``stand_in`` reimplements them.
Kernels that it does not implement do nothing.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from filelock import FileLock

from scripts.build_kernels import link, run_compiler

ROOT = Path(__file__).parents[2]
RUNTIME = "libcudart.so.13"
_FOLDER = Path(__file__).with_name("stand_in")
_OPTIONS = (
    *("-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"),
    *("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"),
)
# Sources by library; all of them but the runtime call the runtime.
_SOURCES = {
    RUNTIME: ("cxx.cc", "state.cc", "device.cc", "memory.cc", "kernels.cc", "streams.cc"),
    "libstand_in_kernels.so": (
        *("cxx.cc", "names.cc", "computations.cc", "element_kernels.cc", "unary_kernels.cc"),
        *("shape_kernels.cc", "join_kernels.cc", "selection_kernels.cc", "softmax_kernels.cc"),
        "norm_kernels.cc",
        *("attention_kernels.cc", "rotary_kernels.cc", "quantized_kernels.cc"),
        *("routing_kernels.cc", "expert_kernels.cc"),
        *("attention_cache.cc", "flash_attention.cc", "unfused_attention.cc"),
    ),
    "libcuda.so.1": ("driver.cc", "../../../native/cuda/emulator/emulator.cc"),
    "libcublas.so.13": ("cublas.cc", "cxx.cc"),
    "libcublasLt.so.13": ("cublas_lt.cc",),
    "libcudnn.so.9": ("cudnn.cc", "cudnn_recurrent.cc", "cxx.cc"),
    "libcurand.so.10": ("curand.cc",),
}
_CALLBACK = ctypes.CFUNCTYPE(None)


def build_runtime(folder: Path) -> Path:
    """Builds the CUDA runtime alone."""
    return _build(RUNTIME, folder)


def build_all(folder: Path) -> None:
    """Builds all libraries."""
    link_to = (str(build_runtime(folder)), "-Wl,-rpath,$ORIGIN")
    for name in _SOURCES:
        if name != RUNTIME:
            _build(name, folder, *link_to)


def _build(name: str, folder: Path, *link_to: str) -> Path:
    def compile_one(source: str) -> str:
        compiled = str(folder / f"{Path(source).name}.o")
        run_compiler(*_OPTIONS, "-c", str(_FOLDER / source), "-o", compiled)
        return compiled

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        objects = list(threads.map(compile_one, _SOURCES[name]))
    # ONNX Runtime requires versioned symbols; the version is named like the library.
    versions = folder / f"{name}.versions"
    versions.write_text(f"{name} {{ global: cu*; __cuda*; StandIn*; local: *; }};\n")
    names = (f"-Wl,-soname,{name}", f"-Wl,--version-script={versions}")
    link(*objects, *link_to, *names, "-o", str(folder / name))
    return folder / name


def onnxruntime_for_gpus() -> Path:
    """The folder of ONNX Runtime for GPUs."""
    return package_for_gpus("onnxruntime-gpu")


def package_for_gpus(name: str) -> Path:
    """The folder of a package that ``requirements/gpu.txt`` pins; downloads it once."""
    lines = (ROOT / "requirements" / "gpu.txt").read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(f"{name}=="))
    last = next(i for i in range(first, len(lines)) if not lines[i].endswith("\\"))
    version = lines[first].removeprefix(f"{name}==").split()[0]
    folder = ROOT / "build" / f"{name}-{version}"
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            partial = Path(f"{folder}.partial")
            wanted = Path(f"{folder}.txt")
            wanted.write_text("\n".join(lines[first : last + 1]) + "\n")
            install = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")
            pinned = ("--require-hashes", "--target", str(partial), "-r", str(wanted))
            subprocess.run([*install, *pinned], check=True)
            partial.rename(folder)
    return folder


def environment(libraries: Path, onnxruntime: Path, *, computes: bool) -> dict[str, str]:
    """The environment variables that a process needs to use the libraries.

    Args:
        libraries: folder of :func:`build_all`.
        onnxruntime: folder of :func:`onnxruntime_for_gpus`.
        computes: whether kernels compute. Work on streams is then done as late as possible, so that
            reading or overwriting data too early is noticed.
    """
    found = {"LD_LIBRARY_PATH": str(libraries), "PYTHONPATH": f"{onnxruntime}:{ROOT}"}
    return {**found, "STAND_IN_COMPUTES": "1", "STAND_IN_LATE": "1"} if computes else found


class StandIn:
    """The CUDA runtime of this process, if it is the stand-in.

    ``path`` is the library's; None: it is already loaded.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._library = ctypes.CDLL(RUNTIME if path is None else str(path))
        self._library.StandInCalls.restype = ctypes.c_char_p
        self._library.StandInNumAlive.restype = ctypes.c_int64
        self._library.StandInLimitMemory.argtypes = [ctypes.c_size_t]
        self._library.StandInWork.argtypes = [
            *(ctypes.c_void_p, _CALLBACK, ctypes.c_int, ctypes.c_int64)
        ]
        self._kept: list[Any] = []

    def work(self, stream: int, run: Callable[[], object], type_: int = 0, kind: int = 0) -> None:
        """Puts a function on a stream, as a graph node of ``type_``; ``kind`` is that of a copy."""
        callback = _CALLBACK(lambda: void(run()))
        self._kept.append(callback)
        self._library.StandInWork(stream, callback, type_, kind)

    def forget_work(self) -> None:
        """Releases the functions; call it after the last graph that has one."""
        self._kept.clear()

    def fail(self, function: str, error: int) -> None:
        """Makes all calls of a function fail. One that copies ends with ``:in`` or ``:out``."""
        self._library.StandInFail(function.encode(), error)

    def limit_memory(self, num_bytes: int) -> None:
        """Limits the device's memory."""
        self._library.StandInLimitMemory(num_bytes)

    def be_late(self, late: bool) -> None:
        """Sets whether work is done as late as possible: when an event after it is waited for."""
        self._library.StandInBeLate(late)

    def reset(self) -> None:
        """Forgets all failures and calls."""
        self._library.StandInReset()

    def log(self) -> list[list[str]]:
        """The calls since the last ``log`` or ``reset``: name, then arguments."""
        found: bytes = self._library.StandInCalls()
        lines = [line.split("\t") for line in found.decode().splitlines()]
        self.reset()
        return lines

    def calls(self) -> list[str]:
        """The names of :meth:`log`, without their prefix."""
        return [name.removeprefix("cuda") for name, *_ in self.log()]

    @property
    def used_bytes(self) -> int:
        """Used bytes of the device's memory."""
        available, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._library.cudaMemGetInfo(ctypes.byref(available), ctypes.byref(total))
        return total.value - available.value

    @property
    def num_alive(self) -> int:
        """Number of CUDA objects and allocations that are not destroyed."""
        number: int = self._library.StandInNumAlive()
        return number


def void(_: object) -> None:
    """Discards a result: callbacks return nothing."""
