"""Generates the Python stubs of the .proto files: ``make protos``."""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (Path("protos/inference"), Path("protos/triune/v1"))


class GenerationError(Exception):
    """protoc failed; its message is on standard error."""


def generate(out: Path) -> None:
    """Writes the stubs of all .proto files to ``out``, in the folders of the packages.

    Removes protoc's empty ``_pb2_grpc`` modules of files without a service. Raises
    ``GenerationError`` if protoc fails.
    """
    sources = [path for package in PACKAGES for path in sorted((ROOT / package).glob("*.proto"))]
    plugins = [
        f"--plugin={name}={Path(sys.executable).parent / name}"
        for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")
    ]
    kinds = [f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    relative = [str(source.relative_to(ROOT)) for source in sources]
    if protoc.main(["protoc", f"-I{ROOT}", *plugins, *kinds, *relative]) != 0:
        raise GenerationError("protoc failed")
    for source in sources:
        if "\nservice " not in source.read_text(encoding="utf-8"):
            folder = out / source.parent.relative_to(ROOT)
            for suffix in (".py", ".pyi"):
                (folder / f"{source.stem}_pb2_grpc{suffix}").unlink()


def main() -> None:
    """Replaces the committed stubs after all were generated."""
    with TemporaryDirectory() as folder:
        generate(Path(folder))
        for package in PACKAGES:
            shutil.copytree(Path(folder) / package, ROOT / package, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
