"""Which models there are, and how a bundle becomes one: verified, then loaded."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

from jinja2 import TemplateError

from model.bundle import ATTEND, TOKENIZER_FILE, BundleError, Manifest, Parity
from model.bundle_files import read_manifest, read_parity, verify_files
from server.engine.cache.slot_cache import MakeMemory
from server.engine.gpu.device_sampler import LoadModel
from server.errors import ModelNotFoundError
from server.runtime.contract import Backend, Graph
from server.runtime.ort.external_data import check_external_data
from server.runtime.ort.lazy_graph import LazyGraph
from server.text.chat import ChatTemplate
from server.text.grammar import GrammarCompiler
from server.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Replica:
    """A bundle's graphs on one device. ``memory`` makes tensors there.

    ``load_model`` loads graphs that are made here.
    """

    graphs: dict[str, Graph]
    memory: MakeMemory
    load_model: LoadModel


@dataclass(frozen=True, slots=True)
class Model:
    """A bundle in memory. ``max_length``: what this server accepts, in tokens.

    ``serial`` tells the loads of one version from each other.
    """

    manifest: Manifest
    parity: Parity
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    grammars: GrammarCompiler
    replicas: tuple[Replica, ...]  # one on each device
    max_length: int
    directory: Path
    serial: int = 0

    @property
    def mask_token(self) -> str:
        """How a mask is written; empty for a model that fills none."""
        mask = self.manifest.special_tokens.mask
        return "" if mask is None else self.tokenizer.tokens([mask])[0]

    @property
    def key(self) -> str:
        """Unique in a server, also among those that were loaded again."""
        label = self.manifest.label
        return f"{label}#{self.serial}" if self.serial else label


class State(StrEnum):
    """Of one version of a model.

    ``REFUSED``: it could not be loaded. ``UNLOADING``: calls that came before still use it.
    """

    LOADING = "loading"
    READY = "ready"
    REFUSED = "refused"
    UNLOADING = "unloading"


@dataclass(frozen=True, slots=True)
class Entry:
    """One version of a model. ``model``: of a READY one, what is served.

    ``failure`` says why the last load failed; a READY model's, why the one before goes on.
    """

    name: str
    version: str
    state: State
    model: Model | None = None
    failure: str = ""


class Registry:
    """A snapshot: which models there are, by name and version. Never changes; is replaced."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = tuple(
            sorted(entries, key=lambda entry: (entry.name, version_order(entry.version)))
        )
        self.models = tuple(entry.model for entry in self.entries if entry.model is not None)
        self.names = frozenset(model.manifest.name for model in self.models)

    def get(self, name: str, version: str = "") -> Model:
        """The newest version that is served, or the one named. Raises ``ModelNotFoundError``."""
        found = [entry.model for entry in self._entries(name, version) if entry.model is not None]
        if not found:
            raise ModelNotFoundError(label_of(name, version), sorted(self.names))
        return found[-1]

    def describe(self, name: str, version: str = "") -> Entry:
        """As ``get``, but if none is served, the newest of those that are not."""
        found = self._entries(name, version)
        if not found:
            raise ModelNotFoundError(label_of(name, version), sorted(self.names))
        return max(reversed(found), key=lambda entry: entry.model is not None)

    def entry(self, name: str, version: str) -> Entry | None:
        """What is known of one version."""
        return next(iter(self._entries(name, version)), None)

    def replacing(self, name: str, version: str, entry: Entry | None) -> "Registry":
        """With ``entry`` for this version, or without it."""
        others = (row for row in self.entries if (row.name, row.version) != (name, version))
        return Registry(others if entry is None else (*others, entry))

    def _entries(self, name: str, version: str) -> list[Entry]:
        return [
            entry for entry in self.entries if entry.name == name and version in ("", entry.version)
        ]


def version_order(version: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts versions: numbers in them compare as numbers."""
    parts = re.findall(r"\d+|\D+", version)
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)


def label_of(name: str, version: str = "") -> str:
    """How a model is named to people."""
    return f"{name}/{version}" if version else name


def load_bundle(
    directory: Path, backend: Backend, max_length: int, before: Model | None = None
) -> Model:
    """Verifies and loads one bundle.

    Args:
        directory: of the bundle.
        backend: that runs the graphs; :func:`replicated` has others run them too.
        max_length: a bound on sequences, in tokens, whatever a model could hold.
        before: what was loaded from there earlier. Its tokenizer is used again if it is the
            same: the library that reads it lets no other thread run meanwhile, for up to a
            second.

    Raises:
        BundleError: with the bundle's name and what is wrong.
    """
    manifest = read_manifest(directory)
    verify_files(directory, manifest)
    for graph in manifest.graphs.values():
        check_external_data(directory, manifest, graph.file)
    if before is not None and _tokenizer_hash(before.manifest) == _tokenizer_hash(manifest):
        tokenizer = before.tokenizer
    else:
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
        replicas=(_replica(directory, manifest, backend),),
        max_length=min(max_length, manifest.dimensions.max_positions),
        directory=directory,
    )


def replicated(model: Model, backends: Iterable[Backend]) -> Model:
    """``model``, on further devices as well. Raises ``BundleError`` if one cannot run it."""
    others = tuple(_replica(model.directory, model.manifest, backend) for backend in backends)
    return replace(model, replicas=(*model.replicas, *others))


def _replica(directory: Path, manifest: Manifest, backend: Backend) -> Replica:
    graphs: dict[str, Graph] = {}
    for name, graph in manifest.graphs.items():
        load = partial(
            backend.load,
            directory / graph.file,
            graph.disabled_optimizers,
            repeats=name == "decode",
        )
        graphs[name] = LazyGraph(load) if name == ATTEND else load()
    return Replica(graphs, backend.memory, backend.load_model)


def _tokenizer_hash(manifest: Manifest) -> str:
    return next(record.sha256 for record in manifest.files if record.path == TOKENIZER_FILE)


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
        raise BundleError(f"{manifest.label}: chat_template: {error}") from error
