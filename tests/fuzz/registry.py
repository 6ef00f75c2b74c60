"""Fuzz targets by name. Importing this module imports no target."""

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, cast

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).with_name("corpus")

# Modules in tests.fuzz.targets. The last ones import torch.
TARGETS = (
    "requests",
    "options",
    "http",
    "tensors",
    "image_bodies",
    "pipelines",
    "forms",
    "long_texts",
    "costs",
    "protocol_costs",
    "text",
    "stops",
    "markup",
    "chat",
    "grammar",
    "manifest",
    "external_data",
    "image",
    "audio",
    "gguf",
    "marian",
    "ctranslate2",
    "shortlist",
    "sentence_piece",
    "keras_vocabulary",
)


class Target(Protocol):
    """``SIZE``: maximum input length in bytes."""

    SIZE: int

    def run(self, data: bytes) -> None:
        """Processes ``data``. Returns if it is accepted or rejected with a typed error.

        Raises:
            Exception: a defect in the code under test.
        """

    def seeds(self) -> Iterable[bytes]:
        """Valid or nearly valid inputs to start from."""


def load(name: str) -> Target:
    """Imports a target. A ``name`` with a dot is a full module name."""
    path = name if "." in name else f"tests.fuzz.targets.{name}"
    return cast(Target, importlib.import_module(path))


def cases(name: str) -> list[Path]:
    """The regression corpus of a target."""
    return sorted((CORPUS / name).glob("*"))
