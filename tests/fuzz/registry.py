"""The targets by name. Importing this imports none of them."""

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, cast

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).with_name("corpus")

# Each is a module of tests.fuzz.targets. The last ones load torch.
TARGETS = (
    "requests",
    "options",
    "text",
    "stops",
    "chat",
    "grammar",
    "manifest",
    "external_data",
    "gguf",
    "marian",
    "sentence_piece",
)


class Target(Protocol):
    """``SIZE``: bytes of the longest input that is worth a try."""

    SIZE: int

    def run(self, data: bytes) -> None:
        """Returns for whatever ``data``, good or refused with a typed error.

        Raises:
            Exception: a defect of what is fuzzed.
        """

    def seeds(self) -> Iterable[bytes]:
        """Inputs that are good, or nearly so, to begin from."""


def load(name: str) -> Target:
    """The module of a target. ``name`` with a dot is any module."""
    path = name if "." in name else f"tests.fuzz.targets.{name}"
    return cast(Target, importlib.import_module(path))


def cases(name: str) -> list[Path]:
    """What was found before, and is replayed."""
    return sorted((CORPUS / name).glob("*"))
