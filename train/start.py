"""The trained model that a training starts from: ``start_from`` in a recipe."""

from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from export.checkpoint import Checkpoint, weights_sha256
from export.errors import ExportError
from export.importers.native import import_native, is_native
from export.importers.native_adapter import is_native_adapter
from export.sources import DEFAULT_SOURCES, load_checkpoint
from model.config import ModelConfig
from model.initialise import random_weights
from model.transformer import parameter_shapes
from train.errors import RecipeError
from train.recipe import WITH_SOURCE, ObjectiveKind, Recipe
from train.state import Weights

HUB_PREFIX = "hf:"


class StartRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The model that a training started from. ``sha256``: hash of its weights as safetensors."""

    name: str
    architecture: str
    license: str
    sha256: str


def load_start(recipe: Recipe, folder: Path) -> Checkpoint | None:
    """The model of ``start_from``; None if the recipe has none.

    Args:
        folder: the recipe's folder; relative paths start there.

    Raises:
        RecipeError: it cannot be read, reads speech, or lacks a token that the objective needs.
    """
    source = recipe.start_from
    if source is None:
        return None
    path = (folder / source).absolute()  # no name of a model
    try:
        if is_name(source):
            start = load_checkpoint(source)
        elif recipe.adapter is None and is_native(path) and not is_native_adapter(path):
            start = import_native(path)  # heads as they were trained
        else:
            start = load_checkpoint(str(path))
    except ExportError as error:
        raise RecipeError(f"start_from: {error}") from error
    if start.audio is not None:
        raise RecipeError("start_from: it reads speech")
    tokens, objective = start.special_tokens, recipe.objective
    needed: dict[str, object] = {}
    if objective in (ObjectiveKind.NEXT_TOKEN, *WITH_SOURCE):
        needed["end"] = tokens.eos or None
    if objective in WITH_SOURCE:
        needed["decoder start"] = tokens.decoder_start
    if objective == ObjectiveKind.MASKED:
        needed["mask"] = tokens.mask
    missing = [name for name, token in needed.items() if token is None]
    if missing:
        raise RecipeError(
            f"start_from: objective {objective} needs the tokens: {', '.join(missing)}"
        )
    return start


def is_name(source: str) -> bool:
    """Whether ``source`` is a model's name, not a path."""
    return source in DEFAULT_SOURCES or source.startswith(HUB_PREFIX)


def start_record(start: Checkpoint) -> StartRecord:
    """The record of ``start`` for ``training.json``."""
    return StartRecord(
        name=start.name,
        architecture=start.architecture,
        license=start.license,
        sha256=weights_sha256(start.weights),
    )


def start_tokenizer(start: Checkpoint) -> Tokenizer:
    """The tokenizer of ``start``, which neither pads nor truncates."""
    tokenizer = Tokenizer.from_str(start.tokenizer_json)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def separator_of(tokenizer: Tokenizer) -> int | None:
    """The special token after the first of two texts; None if there is none."""
    encoding = tokenizer.encode("a", "a")
    tokens = list(zip(encoding.ids, encoding.special_tokens_mask, strict=True))
    text = next((index for index, (_, is_special) in enumerate(tokens) if not is_special), 0)
    return next((id_ for id_, is_special in tokens[text:] if is_special), None)


def known_weights(config: ModelConfig, start: Checkpoint) -> set[str]:
    """The names of the weights of ``start`` whose name and shape agree with those of ``config``."""
    shapes = parameter_shapes(config)
    return {
        name for name, weight in start.weights.items() if shapes.get(name) == tuple(weight.shape)
    }


def initial_weights(config: ModelConfig, seed: int, start: Checkpoint | None) -> Weights:
    """Random weights, replaced by those of ``start`` where name and shape agree.

    Raises:
        RecipeError: no layer agrees.
    """
    weights = random_weights(config, seed)
    if start is None:
        return weights
    common = {name: start.weights[name] for name in known_weights(config, start)}
    if not any(name.startswith(("encoder.", "decoder.")) for name in common):
        raise RecipeError("start_from: no weight of a layer has the name and shape of the model's")
    return {**weights, **common}
