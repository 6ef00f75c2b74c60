"""An AArch64 machine in a folder, which QEMU emulates: Debian's Python, the server's packages."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from scripts import build_kernels
from tests.container.image import ROOT, SUITE, mirrors

MACHINE = "aarch64"
TOOLS = ("mmdebstrap", "qemu-aarch64-static")
# The packages of the server, and those that tests of kernels import.
_TEST_PACKAGES = (
    *("pytest", "pytest-asyncio", "pytest-timeout", "iniconfig", "pluggy", "hypothesis"),
    *("sortedcontainers", "onnx-ir", "sympy", "mpmath"),
)
_PLATFORMS = tuple(f"manylinux_2_{minor}_{MACHINE}" for minor in (31, 28, 27, 26, 24, 17))
# Code of the project. The libraries of this machine stay behind.
_CODE = ("scripts", "server", "client", "console", "export", "model", "protos", "tests")
# A Neoverse N1. QEMU shows the real processor, of which ONNX Runtime makes nothing: it crashes.
_PROCESSOR = """processor\t: {}
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc \
dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""


@dataclass(frozen=True)
class Machine:
    """The emulated machine. ``code`` holds the project with libraries for this machine."""

    root: Path
    packages: Path
    code: Path

    def command(self, *arguments: str) -> list[str]:
        """The command that runs Python with ``arguments``, in the environment :attr:`variables`."""
        python = self.root / "usr" / "bin" / "python3"
        emulator = ["qemu-aarch64-static", "-cpu", "neoverse-n1", "-L", str(self.root)]
        return [*emulator, str(python), *arguments]

    @property
    def variables(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (self.code, self.packages)))}


def make(folder: Path) -> Machine:
    """Installs the machine into ``folder``; nothing runs on it meanwhile."""
    machine = Machine(folder / "root", folder / "packages", folder / "code")
    debian = ["mmdebstrap", "--quiet", "--format=directory", "--variant=extract"]
    debian += ["--architectures=arm64", "--include=python3,libstdc++6"]
    _run([*debian, SUITE, str(machine.root), *mirrors()])
    processors = machine.root / "proc" / "cpuinfo"
    processors.parent.mkdir(exist_ok=True)
    processors.write_text("".join(map(_PROCESSOR.format, range(2))))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    pip += ["--no-deps", "--only-binary=:all:", "--target", str(machine.packages)]
    pip += ["--python-version", "3.11", "--implementation", "cp"]
    pip += [option for name in _PLATFORMS for option in ("--platform", name)]
    _run([*pip, "--require-hashes", "-r", str(ROOT / "requirements" / "cpu.txt")])
    _run([*pip, *(f"{name}=={version(name)}" for name in _TEST_PACKAGES)])
    hidden = shutil.ignore_patterns("*.so", "__pycache__")
    for name in _CODE:
        shutil.copytree(ROOT / name, machine.code / name, ignore=hidden)
    shutil.copy(ROOT / "pyproject.toml", machine.code)
    libraries = machine.code / build_kernels.FOLDER.relative_to(build_kernels.ROOT)
    build_kernels.build(libraries, MACHINE)
    return machine


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
