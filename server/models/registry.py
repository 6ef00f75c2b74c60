"""The registry of models, and the functions that verify and load a bundle."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

import msgspec
from jinja2 import TemplateError

from model.adapters import LATEST, SEPARATOR, AdapterSpec, adapter_label, bundle_of
from model.bundle import (
    ATTEND,
    ATTEND_ENCODE,
    PARITY_FILE,
    TOKENIZER_FILE,
    BundleError,
    Manifest,
    Parity,
    StateRole,
)
from model.bundle_files import read_manifest, read_parity, read_quality, verify_files
from model.chat_template import named_tokens
from model.quality import Quality
from model.shortlist import Shortlist
from server.errors import ModelNotFoundError
from server.file_changes import FileChanges
from server.models.cache_memories import CacheMemories
from server.models.memory_budget import MemoryPlan, max_source_length
from server.models.suppressed_tokens import suppressed_tokens
from server.printable import quoted
from server.runtime.contract import (
    Backend,
    Graph,
    KernelNodes,
    LoadModel,
    StepGraphs,
)
from server.runtime.lazy_graph import LazyGraph
from server.runtime.memory import MakeMemory
from server.runtime.ort.external_data import check_external_data
from server.text.chat import ChatTemplate
from server.text.grammar import GrammarCompiler
from server.text.tokenizer import Tokenizer

# Graphs that few requests need; they are loaded on first use.
ATTENTION_GRAPHS = (ATTEND, ATTEND_ENCODE)


@dataclass(frozen=True, slots=True)
class Replica:
    """A bundle's graphs on one device.

    ``memory`` allocates tensors on that device. ``load_model`` loads graphs there that were built
    in memory, ``load_repeated`` those whose runs repeat. ``steps`` are graphs of decode steps, if
    the device has some.
    """

    graphs: dict[str, Graph]
    memory: MakeMemory
    load_model: LoadModel
    load_repeated: LoadModel
    steps: StepGraphs | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded bundle, ready to serve.

    ``max_length`` is the maximum length of a sequence on this server, in tokens, and
    ``max_source_length`` that of an encoder-decoder's source, in vectors. ``serial`` counts
    earlier loads of this version. ``memory`` is the model's share of the memory budget; ``None``
    outside a server. ``caches`` tracks the cache tensors of its workers. ``changes`` detects
    changes of the bundle's files since they were verified. ``adapter`` is the LoRA adapter that the
    model applies, counted from 1; 0 for none.
    """

    manifest: Manifest
    parity: Parity
    quality: Quality | None
    tokenizer: Tokenizer
    shortlist: Shortlist | None
    chat_template: ChatTemplate | None
    grammars: GrammarCompiler
    replicas: tuple[Replica, ...]  # one per device
    max_length: int
    max_source_length: int
    directory: Path
    changes: FileChanges
    serial: int = 0
    memory: MemoryPlan | None = None
    caches: CacheMemories = field(default_factory=CacheMemories)
    adapter: int = 0

    def with_adapter(self, index: int, spec: AdapterSpec) -> "Model":
        """The model that is adapter ``index`` of the bundle, counted from 1.

        Quality, perplexity and fidelity are measured of the base only.
        """
        manifest, template = self.manifest, self.chat_template
        if spec.chat_template is not None:
            manifest = msgspec.structs.replace(manifest, chat_template=spec.chat_template)
            template = _chat_template(manifest, self.tokenizer)
        manifest = msgspec.structs.replace(
            manifest, name=adapter_label(manifest.name, spec.name), license=spec.license
        )
        return replace(
            self,
            manifest=manifest,
            parity=self.parity.of_adapter(spec.name),
            quality=None,
            chat_template=template,
            adapter=index,
        )

    def shortened(self, max_length: int) -> "Model":
        """This model for texts of up to ``max_length`` tokens."""
        source = max_source_length(self.manifest, min(self.max_source_length, max_length))
        return replace(self, max_length=min(self.max_length, max_length), max_source_length=source)

    @property
    def mask_token(self) -> str:
        """The mask token as text; empty if the model does not fill masks."""
        mask = self.manifest.special_tokens.mask
        return "" if mask is None else self.tokenizer.tokens([mask])[0]

    def can_run(self, graph: str) -> bool:
        """Whether a graph is loaded or can be loaded: its files have not changed since verified."""
        graphs = [replica.graphs[graph] for replica in self.replicas]
        return all(graph.is_usable for graph in graphs if isinstance(graph, LazyGraph))

    @property
    def kernel_nodes(self) -> dict[str, KernelNodes]:
        """Node counts per kernel, of each loaded graph that has nodes for the kernels."""
        return {
            name: nodes
            for replica in self.replicas
            for name, graph in replica.graphs.items()
            if (nodes := graph.kernel_nodes) != KernelNodes()
        }

    @property
    def key(self) -> str:
        """Name, version and serial of the bundle; unique in a server, even across reloads."""
        label = label_of(bundle_of(self.manifest.name), self.manifest.version)
        return f"{label}#{self.serial}" if self.serial else label


class State(StrEnum):
    """The state of one version of a model.

    ``REFUSED`` means that it could not be loaded, ``UNLOADING`` that earlier calls still use it.
    """

    LOADING = "loading"
    READY = "ready"
    REFUSED = "refused"
    UNLOADING = "unloading"


@dataclass(frozen=True, slots=True)
class Entry:
    """One version of a model.

    ``model`` is set while the state is ``READY``. ``failure`` says why the last load failed; a
    ``READY`` entry with a failure still serves the model that was loaded before.
    """

    name: str
    version: str
    state: State
    model: Model | None = None
    failure: str = ""


class Registry:
    """An immutable snapshot of all models, by name and version.

    Attributes:
        entries: the versions of bundles.
        models: the loaded bundles.
        described: ``entries``, each followed by its adapters.
        names: of all served models, adapters included.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = tuple(
            sorted(entries, key=lambda entry: (entry.name, version_order(entry.version)))
        )
        self.models = tuple(entry.model for entry in self.entries if entry.model is not None)
        self.described = tuple(each for entry in self.entries for each in _with_adapters(entry))
        self.names = frozenset(entry.name for entry in self.described if entry.model is not None)

    def get(self, name: str, version: str = "") -> Model:
        """The given version of a model, or the newest one that is served.

        Raises:
            ModelNotFoundError: no such version is served.
        """
        found = [entry.model for entry in self._entries(name, version) if entry.model is not None]
        if not found:
            raise ModelNotFoundError(label_of(name, version), sorted(self.names))
        return found[-1]

    def describe(self, name: str, version: str = "") -> Entry:
        """The entry of the model that :meth:`get` returns; if none is served, the newest entry."""
        found = self._entries(name, version)
        if not found:
            raise ModelNotFoundError(label_of(name, version), sorted(self.names))
        return max(reversed(found), key=lambda entry: entry.model is not None)

    def name_of(self, name: str) -> str:
        """The model that ``name`` means: ``BUNDLE:latest`` is the bundle, unless it is served."""
        bundle, _, tag = name.partition(SEPARATOR)
        return bundle if tag == LATEST and name not in self.names else name

    def entry(self, name: str, version: str) -> Entry | None:
        """The entry of one version; ``None`` if there is none."""
        return next(iter(self._entries(name, version)), None)

    def replacing(self, name: str, version: str, entry: Entry | None) -> "Registry":
        """A copy of the registry with ``entry`` for this version; ``None`` removes the version."""
        others = (other for other in self.entries if (other.name, other.version) != (name, version))
        return Registry(others if entry is None else (*others, entry))

    def _entries(self, name: str, version: str) -> list[Entry]:
        name = self.name_of(name)
        return [
            entry
            for entry in self.described
            if entry.name == name and version in ("", entry.version)
        ]


def _with_adapters(entry: Entry) -> Iterator[Entry]:
    yield entry
    if entry.model is not None:
        for index, spec in enumerate(entry.model.manifest.adapters or (), 1):
            model = entry.model.with_adapter(index, spec)
            yield Entry(model.manifest.name, entry.version, entry.state, model)


def version_order(version: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key for versions, in which digits compare as numbers: "2" before "10"."""
    parts = re.findall(r"\d+|\D+", version)
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts)


def label_of(name: str, version: str = "") -> str:
    """The name of a model in messages: ``name/version``, or ``name`` without a version."""
    return f"{name}/{version}" if version else name


def load_bundle(
    directory: Path, backend: Backend, max_length: int, before: Model | None = None
) -> Model:
    """Verifies and loads one bundle.

    Args:
        directory: the bundle's folder.
        backend: runs the graphs; see :func:`replicated` for more devices.
        max_length: upper bound on sequence lengths in tokens, even if the model supports more.
        before: the model loaded from this folder earlier. Its tokenizer is reused if the file is
            unchanged: the tokenizer library holds the interpreter lock for up to a second while
            it parses the file.

    Raises:
        BundleError: the bundle is invalid; the message names it and the problem.
    """
    manifest = read_manifest(directory)
    changes = FileChanges(*(directory / record.path for record in manifest.files))
    verify_files(directory, manifest)
    for graph in manifest.graphs.values():
        check_external_data(directory, manifest, graph.file)
    if before is not None and _tokenizer_hash(before.manifest) == _tokenizer_hash(manifest):
        tokenizer = before.tokenizer
    else:
        tokenizer = Tokenizer(directory / TOKENIZER_FILE)
    _check_vocabulary(manifest, tokenizer)
    model = Model(
        manifest=manifest,
        parity=read_parity(directory),
        quality=read_quality(directory),
        tokenizer=tokenizer,
        shortlist=_shortlist(directory, manifest),
        chat_template=_chat_template(manifest, tokenizer),
        grammars=GrammarCompiler(
            tokenizer.library,
            manifest.dimensions.vocabulary_size,
            manifest.special_tokens.eos,
        ),
        replicas=(),
        max_length=min(max_length, manifest.dimensions.max_positions),
        max_source_length=max_source_length(manifest, max_length),
        directory=directory,
        changes=changes,
    )
    for spec in manifest.adapters or ():
        if spec.name not in {one.name for one in model.parity.adapters or ()}:
            raise BundleError(f"{manifest.label}: {PARITY_FILE} lacks the adapter {spec.name}")
        model.with_adapter(1, spec)  # refuses a template that does not compile
    return replicated(model, [backend])


def replicated(model: Model, backends: Iterable[Backend]) -> Model:
    """Loads ``model`` on more devices. Raises ``BundleError`` if one of them cannot run it."""
    others = tuple(_replica(model, backend) for backend in backends)
    return replace(model, replicas=(*model.replicas, *others))


def _replica(model: Model, backend: Backend) -> Replica:
    graphs: dict[str, Graph] = {}
    manifest = model.manifest
    suppressed = suppressed_tokens(manifest)
    steps: StepGraphs | None = None
    for name, graph in manifest.graphs.items():
        path = model.directory / graph.file
        # Step graphs are checked against the decode graph by runs that change recurrent states.
        is_recurrent = any(state.role == StateRole.RECURRENT for state in graph.states)
        if name == "decode" and not is_recurrent:
            steps = backend.load_steps(path, graph.disabled_optimizers, suppressed)
        reads_texts = name == "encode" and manifest.reads_texts
        load = partial(
            backend.load,
            path,
            graph.disabled_optimizers,
            repeats=reads_texts or name == "decode",
            takes_candidates=name == "decode" and manifest.shortlist is not None,
            suppressed=suppressed,
        )
        graphs[name] = LazyGraph(load, model.changes) if name in ATTENTION_GRAPHS else load()
    memory = model.caches.tracking(backend.memory)
    load_repeated = partial(backend.load_model, repeats=True)
    return Replica(graphs, memory, backend.load_model, load_repeated, steps)


def _check_vocabulary(manifest: Manifest, tokenizer: Tokenizer) -> None:
    """Raises ``BundleError`` if a token's id has no embedding: the graph would misread it."""
    size, label = manifest.dimensions.vocabulary_size, manifest.label
    token = tokenizer.token_beyond(size)
    if token is not None:
        reason = f"the id of token {quoted(token)} is beyond the vocabulary of {size} tokens"
        raise BundleError(f"{label}: {TOKENIZER_FILE}: {reason}")
    spec = manifest.span_tagging
    if spec and "" in tokenizer.tokens((spec.marker, spec.separator)):
        raise BundleError(f"{label}: {TOKENIZER_FILE}: no token has the id of span_tagging")
    special = manifest.special_tokens
    ids = (*special.eos, special.bos, special.decoder_start, special.mask, special.forced_first)
    transcription = () if manifest.transcription is None else manifest.transcription.ids
    ctc = manifest.ctc.ids if manifest.ctc else ()
    for id_ in (*ids, *special.suppressed, *manifest.languages.values(), *transcription, *ctc):
        if id_ is not None and not 0 <= id_ < size:
            raise BundleError(
                f"{label}: the special token {id_} is beyond the vocabulary of {size}"
            )


def _tokenizer_hash(manifest: Manifest) -> str:
    return next(record.sha256 for record in manifest.files if record.path == TOKENIZER_FILE)


def _shortlist(directory: Path, manifest: Manifest) -> Shortlist | None:
    if manifest.shortlist is None:
        return None
    path = directory / manifest.shortlist.file
    try:
        found = Shortlist.from_bytes(path.read_bytes(), manifest.dimensions.vocabulary_size)
        return replace(found, excluded=suppressed_tokens(manifest))
    except (OSError, ValueError) as error:
        raise BundleError(f"{manifest.label}: {manifest.shortlist.file}: {error}") from error


def _chat_template(manifest: Manifest, tokenizer: Tokenizer) -> ChatTemplate | None:
    if manifest.chat_template is None:
        return None
    tokens = named_tokens(manifest.special_tokens, lambda id_: tokenizer.tokens([id_])[0])
    try:
        has_images = manifest.image_prompt is not None
        return ChatTemplate(manifest.chat_template, tokens, has_images=has_images)
    except TemplateError as error:
        raise BundleError(f"{manifest.label}: chat_template: {error}") from error
