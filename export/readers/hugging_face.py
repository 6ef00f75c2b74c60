"""A Hugging Face model folder: configuration, safetensors, tokenizer, chat template."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer
from torch import Tensor

from export.errors import SourceError
from export.readers.fields import Fields
from export.readers.onnx_weights import OnnxWeights
from export.readers.pickles import pickles_in, refusal
from export.readers.safetensors_weights import SafetensorsWeights
from export.readers.yaml_text import read_yaml
from export.tokenization.hugging_face import parse_tokenizer, read_fields, read_text, read_tokenizer
from model.bundle import EmbeddingKind

PROCESSOR_TEMPLATE_FILE = "chat_template.json"
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
UNKNOWN_LICENSE = "unknown"


@dataclass(frozen=True, kw_only=True)
class HuggingFaceFolder:
    """The files of a folder. The tokenizer is read on access: models of images have none.

    ``language``: the model card's only language, such as "en"; None: none, or several.
    ``tower``: the part to read of a model of images and texts, "image" or "text". ``vectors``: the
    kind of vectors, if the model's files do not say which it returns.
    """

    path: Path
    config: Fields
    generation_config: Fields
    weights: Mapping[str, Tensor]
    chat_template: str | None
    license: str
    language: str | None = None
    tower: str | None = None
    vectors: EmbeddingKind | None = None

    def read_json(self, name: str) -> object:
        """The JSON file ``name`` of the folder, or None if there is none."""
        path = self.path / name
        return _read_json(path) if path.is_file() else None

    @cached_property
    def tokenizer_json(self) -> str:
        """The tokenizer without padding and truncation, which the server sets.

        Raises:
            SourceError: it is damaged.
            UnsupportedError: there is none.
        """
        return read_tokenizer(self.path, self.config)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises ``SourceError`` if it is damaged."""
        return parse_tokenizer(self.tokenizer_json, self.path)

    @property
    def special_tokens(self) -> dict[str, str | None]:
        """The tokenizer's special tokens by name, such as ``bos_token``; None if it has none."""
        tokens: dict[str, str | None] = {}
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            value = self.read_json(name)
            for role, token in value.items() if isinstance(value, dict) else ():
                content = token.get("content") if isinstance(token, dict) else token
                if isinstance(content, str):
                    tokens[role] = content
                elif content is None:
                    tokens.setdefault(role, None)
        return tokens

    def read_weights(self, path: str) -> SafetensorsWeights:
        """The weights in the subfolder ``path``.

        Raises:
            SourceError, UnsupportedError: as :func:`read_folder` does.
        """
        return SafetensorsWeights(_weight_files(self.path / path))


def read_folder(path: Path, config_file: str = CONFIG_FILE) -> HuggingFaceFolder:
    """Reads the folder ``path``; each weight is read on access.

    Raises:
        SourceError: a file is missing or damaged.
        UnsupportedError: all weights are pickles.
    """
    config = read_fields(path / config_file)
    return HuggingFaceFolder(
        path=path,
        config=config,
        generation_config=_read_optional_fields(path / "generation_config.json"),
        weights=_read_weights(path),
        chat_template=_read_chat_template(path),
        license=read_license(path / "README.md"),
        language=read_language(path / "README.md"),
    )


def has_safetensors(folder: Path) -> bool:
    """Whether ``folder`` has a model's weights as safetensors: one file, or an index of shards."""
    return any((folder / name).is_file() for name in (WEIGHTS_FILE, INDEX_FILE))


def folders_near(path: Path) -> list[Path]:
    """The folders of models around the file ``path``, or at most two levels inside the folder."""
    patterns = (f"*/{CONFIG_FILE}", f"*/*/{CONFIG_FILE}")
    inside = sorted(config.parent for pattern in patterns for config in path.glob(pattern))
    folders = [path.parent] if path.is_file() else inside
    with_config = (folder for folder in folders if (folder / CONFIG_FILE).is_file())
    return [folder for folder in with_config if has_safetensors(folder) or pickles_in(folder)]


def _read_json(path: Path) -> object:
    try:
        value: object = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path.name}: {error}") from error
    return value


def _read_optional_fields(path: Path) -> Fields:
    return read_fields(path) if path.is_file() else Fields({}, path.name)


def _read_weights(folder: Path) -> Mapping[str, Tensor]:
    """Safetensors, or else the only ONNX graph in the subfolder ``onnx``."""
    graphs = sorted((folder / "onnx").glob("*.onnx"))
    if has_safetensors(folder) or not graphs or pickles_in(folder):
        return SafetensorsWeights(_weight_files(folder))
    if len(graphs) > 1:
        names = ", ".join(graph.name for graph in graphs)
        raise SourceError(f"{folder}: no {WEIGHTS_FILE}, and several ONNX graphs: {names}")
    return OnnxWeights(graphs[0])


def _weight_files(folder: Path) -> list[Path]:
    """As in ``transformers``, an index counts only without the file that has all weights."""
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    if (folder / INDEX_FILE).is_file():
        shards = read_fields(folder / INDEX_FILE).fields("weight_map")
        names = sorted({shards.text(name) for name in shards})
        outside = [name for name in names if Path(name).name != name]
        if outside or not names:
            raise SourceError(f"{INDEX_FILE}: not file names of this folder: {outside}")
        return [folder / name for name in names]
    pickles = pickles_in(folder)
    if pickles:
        raise refusal(pickles, folder / WEIGHTS_FILE)
    raise SourceError(f"{folder}: neither {WEIGHTS_FILE} nor {INDEX_FILE}")


def _read_chat_template(folder: Path) -> str | None:
    """``chat_template.jinja``, or the default template of the tokenizer's configuration.

    Older processors of texts and images have a template of their own, in a JSON file.
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        return read_text(path)
    value = _read_optional_fields(folder / PROCESSOR_TEMPLATE_FILE).get("chat_template")
    if isinstance(value, str):
        return value
    value = _read_optional_fields(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(value, list):
        named = [Fields(item, "tokenizer_config.json") for item in value if isinstance(item, dict)]
        value = next(
            (item.text("template") for item in named if item.get("name") == "default"), None
        )
    elif isinstance(value, dict):
        value = value.get("default")
    return value if isinstance(value, str) else None


def read_license(path: Path) -> str:
    """``license`` in the model card's front matter."""
    name = _read_card(path).get("license")
    return name if isinstance(name, str) else UNKNOWN_LICENSE


def read_language(path: Path) -> str | None:
    """``language`` there, if it is a single one."""
    value = _read_card(path).get("language")
    names = value if isinstance(value, list) else [value]
    return names[0] if len(names) == 1 and isinstance(names[0], str) else None


def _read_card(path: Path) -> dict[str, object]:
    """The model card's front matter, YAML between two lines of dashes; empty without any."""
    text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
    parts = text.split("---\n", 2)
    if len(parts) < 3 or parts[0].strip():
        return {}
    try:
        card = read_yaml(parts[1], path.name)
    except SourceError:
        return {}
    return card if isinstance(card, dict) else {}
