"""Detects pickled PyTorch weights, which are not read: unpickling can run arbitrary code.

Only :data:`LINEAR_FILES` are read, by :mod:`export.importers.m3`.
"""

import zipfile
from pathlib import Path

from export.errors import UnsupportedError

SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
# M3-Embedding's linear maps. Their publishers have no other format of them.
SPARSE_FILE, MULTI_VECTOR_FILE = "sparse_linear.pt", "colbert_linear.pt"
LINEAR_FILES = (SPARSE_FILE, MULTI_VECTOR_FILE)
_PROTOCOL = b"\x80"  # the first byte of every pickle from protocol 2 on

# Uses only PyTorch and safetensors, in one process; weights_only rejects all but tensors.
_COMMAND = (
    'python -c "import glob, torch; from safetensors.torch import save_file; weights = {{}}; '
    "[weights.update(torch.load(file, map_location='cpu', weights_only=True)) "
    "for file in sorted(glob.glob('{pattern}'))]; "
    "save_file({{name: weight.clone().contiguous() for name, weight in weights.items() "
    "if torch.is_tensor(weight)}}, '{target}')\""
)


def is_pickle(path: Path) -> bool:
    """Whether ``torch.save`` wrote ``path``, in today's format or that before PyTorch 1.6."""
    if path.suffix not in SUFFIXES or not path.is_file():
        return False
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("data.pkl") for name in archive.namelist())
    with path.open("rb") as file:
        return file.read(1) == _PROTOCOL


def pickles_in(folder: Path) -> list[Path]:
    """Every pickle in ``folder`` that is not read, sorted by name."""
    paths = (path for path in sorted(folder.iterdir()) if path.name not in LINEAR_FILES)
    return [path for path in paths if is_pickle(path)]


def refusal(paths: list[Path], target: Path) -> UnsupportedError:
    """The error for ``paths``, a file or its shards: why they are not read, how to convert them.

    Args:
        target: the safetensors file that the command writes.
    """
    folder = paths[0].parent
    common = paths[0].name
    if len(paths) > 1:
        common = f"{paths[0].name.split('-')[0].removesuffix(paths[0].suffix)}*{paths[0].suffix}"
    command = _COMMAND.format(pattern=folder / common, target=target)
    return UnsupportedError(
        f"{paths[0]}: the weights are a pickle, which can run code when it is loaded; "
        f"convert them to safetensors:\n  {command}"
    )
