"""Compiles the device code for GPUs with NVIDIA's compiler, as the driver does when it loads it.

nvJitLink needs no GPU. Source: nvJitLink 13, "API"; for blocks per multiprocessor, the CUDA C++
Programming Guide, "Compute Capabilities".
"""

import ctypes
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from scripts.build_kernels import CAPABILITIES
from server.runtime.kernels.library import CUDA_LIBRARY
from tests.cuda.libraries import package_for_gpus
from tests.server.cuda_operators import NEEDS_LIBRARY

pytestmark = [pytest.mark.slow, NEEDS_LIBRARY]

PTX = 2  # NVJITLINK_INPUT_PTX
VERSION = "13_0"  # suffix of the functions
# Kilobytes of shared memory per multiprocessor, by compute capability: A100, A10, L4, H100 and
# H200, B200, RTX PRO 6000.
SHARED_KILOBYTES = {80: 164, 86: 100, 89: 100, 90: 228, 100: 228, 120: 100}
REGISTERS, REGISTERS_AT_ONCE = 65536, 256  # per multiprocessor; allocated per warp in multiples
RESERVED_BYTES = 1024  # bytes of shared memory that each block reserves
MAX_BLOCKS = 16  # per multiprocessor


# The most bytes that a kernel spills from registers: a few words outside its loops cost nothing.
MOST_SPILLED = 32  # bytes


class Compiled(NamedTuple):
    """The resources of a kernel: ``stack`` and ``spilled`` bytes, and ``registers``."""

    stack: int
    spilled: int
    registers: int

    def blocks(self, capability: int, num_threads: int, shared_bytes: int) -> int:
        """Number of blocks that fit on a multiprocessor."""
        of_warp = -(-self.registers * 32 // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
        by_registers = REGISTERS // (of_warp * (num_threads // 32))
        by_memory = (SHARED_KILOBYTES[capability] << 10) // (shared_bytes + RESERVED_BYTES)
        return min(by_registers, by_memory)


class Kernel(NamedTuple):
    """Properties in the PTX. ``num_blocks``: blocks that should fit on a multiprocessor."""

    shared_bytes: int
    num_threads: int
    num_blocks: int


@pytest.fixture(scope="module")
def codes() -> dict[int, bytes]:
    """The library's PTX, by compute capability."""
    parts = CUDA_LIBRARY.read_bytes().split(b"\0")
    found = [part for part in parts if b".visible .entry " in part]
    return dict(zip(CAPABILITIES, found, strict=True))


@pytest.fixture(scope="module")
def compiler() -> Callable[[bytes, int], str]:
    """Compiles PTX for a compute capability; returns the log."""
    (library,) = package_for_gpus("nvidia-nvjitlink").glob("nvidia/cu13/lib/libnvJitLink.so.13")
    return lambda code, capability: compile_(ctypes.CDLL(str(library)), code, capability)


def compile_(library: ctypes.CDLL, code: bytes, capability: int) -> str:
    def call(name: str, *arguments: object) -> int:
        status: int = getattr(library, f"__nvJitLink{name}_{VERSION}")(*arguments)
        return status

    def log(name: str) -> str:
        size = ctypes.c_size_t()
        assert call(f"Get{name}LogSize", handle, ctypes.byref(size)) == 0
        text = ctypes.create_string_buffer(size.value + 1)
        assert call(f"Get{name}Log", handle, text) == 0
        return text.value.decode()

    handle, texts = ctypes.c_void_p(), (f"-arch=sm_{capability}", "-verbose", "-Xptxas=-v")
    options = (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))
    assert call("Create", ctypes.byref(handle), len(texts), options) == 0
    try:
        failed = call("AddData", handle, PTX, code, ctypes.c_size_t(len(code)), b"kernels")
        failed = failed or call("Complete", handle)
        assert not failed, log("Error")
        return log("Info")
    finally:
        call("Destroy", ctypes.byref(handle))


def read_log(text: str) -> Iterator[tuple[str, Compiled]]:
    for part in text.split("Compiling entry function '")[1:]:
        stack, stores, loads = map(int, re.findall(r"(\d+) bytes (?:stack|spill)", part))
        registers = re.search(r"Used (\d+) registers", part)
        assert registers is not None
        yield part.partition("'")[0], Compiled(stack, stores + loads, int(registers[1]))


def read_code(code: str) -> Iterator[tuple[str, Kernel]]:
    declared = re.findall(r"\.shared \.align \d+ \.b(\d+) (\w+)(?:\[(\d+)\])?;", code)
    sizes = {name: int(bits) // 8 * int(count or 1) for bits, name, count in declared}
    for kernel in code.split(".visible .entry ")[1:]:
        name, _, body = kernel.partition("(")
        directives = re.search(r"\n\.maxntid (\d+)\n\.minnctapersm (\d+)\n\{", body)
        shared = sum(sizes[word] for word in set(re.findall(r"\w+", body)) & sizes.keys())
        assert directives is not None
        yield name, Kernel(shared, *map(int, directives.groups()))


@pytest.mark.parametrize("capability", SHARED_KILOBYTES)
def test_kernels_fit(
    capability: int, codes: dict[int, bytes], compiler: Callable[[bytes, int], str]
) -> None:
    code = codes[max(each for each in CAPABILITIES if each <= capability)]
    compiled, kernels = dict(read_log(compiler(code, capability))), dict(read_code(code.decode()))
    assert compiled.keys() == kernels.keys() != set()
    spills = {name: each for name, each in compiled.items() if each.stack > MOST_SPILLED}
    assert spills == {}
    rooms = {
        name: (compiled[name].blocks(capability, kernel.num_threads, kernel.shared_bytes), kernel)
        for name, kernel in kernels.items()
    }
    # With less shared memory, two blocks are enough.
    most = 2 if SHARED_KILOBYTES[capability] < 128 else MAX_BLOCKS
    lacking = {
        name: each for name, each in rooms.items() if each[0] < min(each[1].num_blocks, most)
    }
    assert lacking == {}


def test_the_compiler_tells_errors(compiler: Callable[[bytes, int], str]) -> None:
    code = b".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry f() { no.such; }\n\0"
    with pytest.raises(AssertionError, match="PTX_COMPILE"):
        compiler(code, 80)


def test_blocks_are_counted_by_registers_and_by_memory() -> None:
    text = (
        "ptxas info    : Compiling entry function 'f' for 'sm_90'\n"
        "ptxas info    : Function properties for f\n"
        "ptxas         .     16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 130 registers, used 1 barriers\n"
    )
    ((name, found),) = read_log(text)
    assert (name, found) == ("f", Compiled(stack=16, spilled=12, registers=130))
    assert found.blocks(90, 256, 1024) == 1
    assert found._replace(registers=128).blocks(90, 256, 1024) == 2
    assert found._replace(registers=32).blocks(86, 256, 49 * 1024) == 2
