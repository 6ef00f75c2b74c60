"""Puts the native kernels into wheels: docs/decisions/0093-native-kernels.md.

Everything else is in pyproject.toml. An editable installation has no kernels until
``python -m scripts.build_kernels`` builds them.
"""

import importlib.util
import os
import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
WITHOUT_KERNELS = "TRIUNE_WITHOUT_KERNELS"
"""If this variable is set, wheels have no kernels. They need no compiler and fit every system."""

# By path: a build backend does not have the project's folder on its import path.
_spec = importlib.util.spec_from_file_location("kernels", ROOT / "scripts" / "build_kernels.py")
kernels = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kernels)
HAS_KERNELS = kernels.is_supported() and not os.environ.get(WITHOUT_KERNELS)


class BuildWithKernels(build_py):
    """Adds the libraries, compiled unless the source folder has some newer than their sources."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        folder = Path(self.build_lib) / kernels.FOLDER.relative_to(kernels.ROOT)
        for name in kernels.LIBRARIES:
            (folder / name).unlink(missing_ok=True)
        if not HAS_KERNELS:
            return
        folder.mkdir(parents=True, exist_ok=True)
        if not kernels.is_current():
            kernels.build(folder)
            return
        for name in kernels.LIBRARIES:
            shutil.copyfile(kernels.FOLDER / name, folder / name)


class PlatformWheel(bdist_wheel):
    """A wheel for every Python 3, on the systems that the library runs on."""

    def get_tag(self):
        return ("py3", "none", kernels.WHEEL_PLATFORM if HAS_KERNELS else "any")


class PlatformDistribution(Distribution):
    def has_ext_modules(self):
        return HAS_KERNELS


setup(
    cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel},
    distclass=PlatformDistribution,
)
