"""Checkpoints by name from the Hugging Face Hub: ``hf:OWNER/NAME[@REVISION][:FILE]``.

``HF_HOME``, ``HF_TOKEN``, ``HF_ENDPOINT`` and ``HF_HUB_OFFLINE`` work as in *huggingface-hub*.
Of pickles, only the small ones that are read are fetched (:mod:`export.readers.pickles`).
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from export.errors import SourceError, UnsupportedError
from export.importers.gliner import GLINER_FILE
from export.importers.heads import SENTENCE_TRANSFORMERS_FILE
from export.importers.multi_vector import METADATA_FILE
from export.importers.sentence_transformers import LIMITS_FILES, MODULES_FILE
from export.importers.sparse_embedders import QUERY_WEIGHTS_FILE
from export.importers.static import is_static
from export.readers.ctranslate2 import MODEL_FILE
from export.readers.hugging_face import (
    CONFIG_FILE,
    INDEX_FILE,
    PROCESSOR_TEMPLATE_FILE,
    WEIGHTS_FILE,
    has_safetensors,
)
from export.readers.image_processor import PROCESSOR_FILE, WHOLE_PROCESSOR_FILE
from export.readers.lora import ADAPTER_FILE, ADAPTER_WEIGHTS_FILE, is_adapter
from export.readers.pickles import LINEAR_FILES, SUFFIXES
from export.tokenization.hugging_face import SENTENCE_PIECES, TARGET_PIECES, TOKENIZER_FILE

PREFIX = "hf:"
_NAME = re.compile(r"(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)(@(?P<revision>[^:@]+))?(:(?P<file>.+))?")

TEXTS = (
    *(CONFIG_FILE, GLINER_FILE, "generation_config.json", "README.md"),
    *("chat_template.jinja", PROCESSOR_TEMPLATE_FILE),
    *(TOKENIZER_FILE, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "vocab.txt", *SENTENCE_PIECES, TARGET_PIECES),
    *(MODULES_FILE, SENTENCE_TRANSFORMERS_FILE, *LIMITS_FILES, METADATA_FILE, QUERY_WEIGHTS_FILE),
    *(PROCESSOR_FILE, WHOLE_PROCESSOR_FILE),
    *(ADAPTER_FILE, f"*/{ADAPTER_FILE}"),
)
"""The files that readers read besides weights, as patterns of ``fnmatch``; so are the next ones."""
WEIGHTS = (WEIGHTS_FILE, INDEX_FILE, "model-*-of-*.safetensors", ADAPTER_WEIGHTS_FILE)
# Files in every CTranslate2 folder, beside the model file.
VOCABULARIES = ("vocabulary.json", "vocabulary.txt")
# Modules of sentence-transformers: 0_StaticEmbedding, 1_Pooling, 2_Dense, …
MODULES = (
    *(f"[0-9]_*/{name}" for name in (CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE)),
    *LINEAR_FILES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubName:
    """A repository; optionally a branch, tag or commit, and a file if it has several models."""

    repository: str
    revision: str | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """``path``: a folder or a GGUF file in the cache. ``source``: ``hf:OWNER/NAME@COMMIT``."""

    path: Path
    source: str


def parse(source: str) -> HubName:
    """Parses ``hf:OWNER/NAME[@REVISION][:FILE]``.

    Raises:
        SourceError: it does not have this form.
    """
    found = _NAME.fullmatch(source.removeprefix(PREFIX))
    if found is None:
        raise SourceError(f"{source}: not {PREFIX}OWNER/NAME[@REVISION][:FILE]")
    return HubName(
        repository=f"{found['owner']}/{found['name']}",
        revision=found["revision"],
        file=found["file"],
    )


def pull(source: str) -> Pulled:
    """Fetches the files that an export needs into the Hub's cache; cached files are not fetched.

    Safetensors take precedence over a GGUF file, a CTranslate2 model and an ONNX graph, in this
    order. Without a connection, the cache is used if it has the repository.

    Raises:
        SourceError: there is no such repository, revision or file, no access to it, or no
            connection and no cached copy.
        UnsupportedError: its weights are pickles.
    """
    name = parse(source)
    if name.file is not None and not name.file.endswith(".gguf"):
        raise SourceError(f"{source}: only a GGUF file can be named")
    weights = [name.file] if name.file else [*WEIGHTS, *MODULES]
    folder = _snapshot(name, [*TEXTS, *weights])
    path = folder
    if name.file is not None:
        path = folder / name.file
        if not path.is_file():
            raise SourceError(f"{name.repository} has no file {name.file}")
    elif not (has_safetensors(folder) or is_adapter(folder) or is_static(folder)):
        path = _other_weights(name, folder)
    return Pulled(path=path, source=f"{PREFIX}{name.repository}@{folder.name}")


def _other_weights(name: HubName, folder: Path) -> Path:
    """The only GGUF file, CTranslate2 model or ONNX graph of a repository without safetensors."""
    files = _files(name, folder)
    gguf = [file for file in files if file.endswith(".gguf")]
    if len(gguf) == 1:
        return _snapshot(name, gguf) / gguf[0]
    if gguf:
        example = f"{PREFIX}{name.repository}:{gguf[0]}"
        raise SourceError(f"several GGUF files, name one, as in {example}: {', '.join(gguf)}")
    if MODEL_FILE in files and any(file in VOCABULARIES for file in files):
        return _snapshot(name, [MODEL_FILE])
    pickles = [file for file in files if file.endswith(SUFFIXES) and file not in LINEAR_FILES]
    if pickles:
        raise UnsupportedError(
            f"{name.repository}: no {WEIGHTS_FILE}, only pickles, which can run code when they are "
            f"loaded and are not fetched: {', '.join(pickles)}. Look for a revision with "
            f"safetensors (@refs/pr/NUMBER), or convert a local copy"
        )
    graphs = [file for file in files if re.fullmatch(r"onnx/[^/]+\.onnx", file)]
    if len(graphs) == 1:
        return _snapshot(name, [*graphs, f"{graphs[0]}_data"])
    raise SourceError(f"{name.repository}: no weights in a known format among its files")


def _snapshot(name: HubName, patterns: list[str]) -> Path:
    """The folder of the commit, named like it, with the files that match ``patterns``."""
    hub = _hub()
    try:
        return Path(
            hub.snapshot_download(name.repository, revision=name.revision, allow_patterns=patterns)
        )
    except _errors() as error:
        raise SourceError(_reason(name, error)) from error


def _files(name: HubName, folder: Path) -> list[str]:
    """All files of the commit; without a connection, those in the cache."""
    hub = _hub()
    try:
        return sorted(hub.HfApi().list_repo_files(name.repository, revision=folder.name))
    except _errors():
        found = (file for file in folder.rglob("*") if file.is_file())
        return sorted(str(file.relative_to(folder)) for file in found)


def _reason(name: HubName, error: Exception) -> str:
    from huggingface_hub import constants, errors  # noqa: PLC0415

    if isinstance(error, errors.GatedRepoError):
        reason = "access is granted on its page: accept its terms there, then set HF_TOKEN"
    elif isinstance(error, errors.RepositoryNotFoundError):
        reason = f"no such repository at {constants.ENDPOINT}; a private one needs HF_TOKEN"
    elif isinstance(error, errors.RevisionNotFoundError):
        reason = f"no revision {name.revision}"
    elif isinstance(error, errors.LocalEntryNotFoundError):
        offline = constants.HF_HUB_OFFLINE
        reason = "HF_HUB_OFFLINE is set" if offline else f"no connection to {constants.ENDPOINT}"
        reason += f", and the cache {constants.HF_HUB_CACHE} does not have all its files"
    else:
        reason = f"{error}"
    return f"{PREFIX}{name.repository}: {reason}"


def _hub() -> ModuleType:
    """Imports huggingface-hub when needed: the package reads its variables at import."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        import huggingface_hub  # noqa: PLC0415
    except ImportError as error:
        reason = f"needs the package {error.name}: pip install '.[export]'"
        raise SourceError(f"{PREFIX}… {reason}") from error
    return huggingface_hub


def _errors() -> tuple[type[Exception], ...]:
    import httpx2  # noqa: PLC0415

    return (OSError, ValueError, httpx2.HTTPError)
