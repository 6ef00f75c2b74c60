"""Which bundles are served: found, verified, loaded. One that is damaged is refused by name."""

import logging
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jinja2 import TemplateError

from model.bundle import (
    ATTEND,
    MANIFEST_FILE,
    TOKENIZER_FILE,
    BundleError,
    Manifest,
    Parity,
    read_manifest,
    read_parity,
    verify_files,
)
from server.backend.base import Backend, Graph
from server.backend.external_data import check_external_data
from server.backend.lazy import LazyGraph
from server.errors import ModelNotFoundError
from server.text.chat import ChatTemplate
from server.text.grammar import GrammarCompiler
from server.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Model:
    """A bundle in memory. ``max_length``: what this server accepts, in tokens."""

    manifest: Manifest
    parity: Parity
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    grammars: GrammarCompiler
    graphs: dict[str, Graph]
    max_length: int
    directory: Path

    @property
    def mask_token(self) -> str:
        """How a mask is written; empty for a model that fills none."""
        mask = self.manifest.special_tokens.mask
        return "" if mask is None else self.tokenizer.tokens([mask])[0]

    @property
    def key(self) -> str:
        """``name/version``: unique in a server."""
        return f"{self.manifest.name}/{self.manifest.version}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A bundle that is not served. ``reason`` names the file or field."""

    name: str
    version: str
    reason: str


class Registry:
    """Models by name and version.

    Args:
        models: loaded.
        refusals: for ``ListModels``.
    """

    def __init__(self, models: list[Model], refusals: list[Refusal]) -> None:
        self.models = tuple(sorted(models, key=_order))
        self.refusals = tuple(refusals)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(model.manifest.name for model in self.models)

    def get(self, name: str, version: str = "") -> Model:
        """The newest version, or the one named. Raises ``ModelNotFoundError``."""
        found = [
            model
            for model in self.models
            if model.manifest.name == name and version in ("", model.manifest.version)
        ]
        if not found:
            label = f"{name}/{version}" if version else name
            raise ModelNotFoundError(label, sorted(self.names))
        return found[-1]


def load_bundles(root: Path, backend: Backend, max_length: int) -> Registry:
    """Loads every ``NAME/VERSION`` folder below ``root`` that has a ``bundle.json``.

    Args:
        root: of the bundles.
        backend: that runs the graphs.
        max_length: a bound on sequences, in tokens, whatever a model could hold.
    """
    models, refusals = [], []
    for path in sorted(root.glob(f"*/*/{MANIFEST_FILE}")):
        directory = path.parent
        try:
            models.append(load_bundle(directory, backend, max_length))
        except BundleError as error:
            log.error("refused a bundle: %s", error)
            refusals.append(Refusal(directory.parent.name, directory.name, str(error)))
        else:
            log.info("loaded %s", models[-1].key)
    return Registry(models, refusals)


def load_bundle(directory: Path, backend: Backend, max_length: int) -> Model:
    """Verifies and loads one bundle. Raises ``BundleError`` with its name and what is wrong."""
    manifest = read_manifest(directory)
    verify_files(directory, manifest)
    graphs: dict[str, Graph] = {}
    for name, graph in manifest.graphs.items():
        check_external_data(directory, manifest, graph.file)
        load = partial(backend.load, directory / graph.file, graph.disabled_optimizers)
        graphs[name] = LazyGraph(load) if name == ATTEND else load()
    tokenizer = Tokenizer(directory / TOKENIZER_FILE)
    return Model(
        manifest=manifest,
        parity=read_parity(directory),
        tokenizer=tokenizer,
        chat_template=_chat_template(manifest, tokenizer),
        grammars=GrammarCompiler(
            directory / TOKENIZER_FILE,
            manifest.dimensions.vocabulary_size,
            manifest.special_tokens.eos,
        ),
        graphs=graphs,
        max_length=min(max_length, manifest.dimensions.max_positions),
        directory=directory,
    )


def _chat_template(manifest: Manifest, tokenizer: Tokenizer) -> ChatTemplate | None:
    if manifest.chat_template is None:
        return None
    special = manifest.special_tokens
    named = {"bos_token": special.bos, "eos_token": next(iter(special.eos), None)}
    tokens = {
        name: "" if id_ is None else tokenizer.tokens([id_])[0] for name, id_ in named.items()
    }
    try:
        return ChatTemplate(manifest.chat_template, tokens)
    except TemplateError as error:
        label = f"{manifest.name}/{manifest.version}"
        raise BundleError(f"{label}: chat_template: {error}") from error


def _order(model: Model) -> tuple[str, tuple[tuple[int, int, str], ...]]:
    """By name, then version: numbers in it compare as numbers."""
    parts = re.findall(r"\d+|\D+", model.manifest.version)
    keys = ((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)
    return model.manifest.name, tuple(keys)
