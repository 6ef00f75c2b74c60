"""A Marian model and the files beside it: vocabulary, decoder configuration, description."""

import json
from dataclasses import dataclass
from pathlib import Path

from export.errors import SourceError, UnsupportedError
from export.readers.fields import Fields
from export.readers.marian import MarianFile, is_marian, read_marian
from export.readers.shortlist import is_marian_shortlist
from export.readers.yaml_text import read_yaml
from export.tokenization.sentence_piece import SentencePieceModel, read_sentence_piece

VOCABULARY_PATTERN = "*.spm"
_DESCRIPTIONS = ("model_info.json", "modelMeta.json")


@dataclass(frozen=True, kw_only=True)
class MarianFolder:
    """``decoder_config`` is marian-decoder's configuration; ``description`` has model metadata.

    ``shortlist``: the path of a binary shortlist; None if there is none.
    """

    path: Path
    model: MarianFile
    vocabulary: SentencePieceModel
    decoder_config: Fields
    description: Fields
    shortlist: Path | None = None


def read_marian_folder(path: Path) -> MarianFolder:
    """Reads the model file ``path``, or the model in the folder ``path``.

    Raises:
        SourceError: there is no model or are several, no vocabulary, or a damaged file.
        UnsupportedError: source and target have different vocabularies.
    """
    folder = path if path.is_dir() else path.parent
    decoder_config = _decoder_config(folder)
    model = _model_path(path, decoder_config)
    return MarianFolder(
        path=path,
        model=read_marian(model),
        vocabulary=read_sentence_piece(_vocabulary_path(folder, decoder_config)),
        decoder_config=decoder_config,
        description=_description(folder),
        shortlist=_shortlist_path(folder, decoder_config),
    )


def _decoder_config(folder: Path) -> Fields:
    """The YAML file that names models and vocabularies; empty if there is none."""
    found = []
    for path in sorted(folder.glob("*.yml")):
        try:
            text = path.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise SourceError(f"{path.name}: {error}") from error
        values = read_yaml(text, path.name)
        if isinstance(values, dict) and {"models", "vocabs"} <= set(values):
            found.append(Fields(values, path.name))
    if len(found) > 1:
        names = ", ".join(fields.origin for fields in found)
        raise SourceError(f"{folder}: several decoder configurations: {names}")
    return found[0] if found else Fields({}, str(folder))


def _model_path(path: Path, decoder_config: Fields) -> Path:
    if path.is_file():
        return path
    models = [_inside(path, name) for name in decoder_config.texts("models")]
    if not models:
        models = [file for file in sorted(path.glob("*.bin")) if is_marian(file)]
    if len(models) != 1:
        names = [model.name for model in models]
        raise SourceError(f"{path}: several or no Marian models, {names}; give the path of one")
    return models[0]


def _vocabulary_path(folder: Path, decoder_config: Fields) -> Path:
    paths = [_inside(folder, name) for name in decoder_config.texts("vocabs")]
    paths = paths or sorted(folder.glob(VOCABULARY_PATTERN))
    if not paths:
        raise SourceError(f"{folder}: no SentencePiece vocabulary ({VOCABULARY_PATTERN})")
    try:
        contents = {path.read_bytes() for path in paths}
    except OSError as error:
        raise SourceError(f"{folder}: {error}") from error
    if len(contents) > 1:
        names = ", ".join(path.name for path in paths)
        raise UnsupportedError(f"{folder}: different vocabularies of source and target: {names}")
    return paths[0]


def _shortlist_path(folder: Path, decoder_config: Fields) -> Path | None:
    """The file that the decoder configuration names, or the only one in the folder.

    Raises:
        SourceError: the named file is outside the folder.
    """
    named = decoder_config.get("shortlist")
    if isinstance(named, list) and named and isinstance(named[0], str):
        path = _inside(folder, named[0])
        found = [path] if path.is_file() else []
    else:
        found = sorted(folder.glob("*.bin"))
    found = [path for path in found if is_marian_shortlist(path)]
    return found[0] if len(found) == 1 else None


def _inside(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise SourceError(f"{folder}: {name} is outside the folder")
    return path


def _description(folder: Path) -> Fields:
    values: dict[str, object] = {}
    for name in _DESCRIPTIONS:
        path = folder / name
        if path.is_file():
            try:
                content = json.loads(path.read_text("utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                raise SourceError(f"{path.name}: {error}") from error
            values |= content if isinstance(content, dict) else {}
    return Fields(values, str(folder))
