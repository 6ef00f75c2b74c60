"""The trained model that a training starts from: ``start_from`` in a recipe."""

from pathlib import Path

import msgspec
from safetensors.torch import save
from tokenizers import Tokenizer

from export.checkpoint import Checkpoint
from export.errors import ExportError
from export.importers.native import import_native, is_native
from export.sources import DEFAULT_SOURCES, load_checkpoint
from model.config import ModelConfig
from model.initialise import random_weights
from train.data.dataset import sha256_of
from train.errors import RecipeError
from train.recipe import ObjectiveKind, Recipe
from train.state import Weights
from train.tokenizer import special_tokens

HUB_PREFIX = "hf:"
# Objectives whose rows have no special tokens but those that the tokenizer adds.
ANY_TOKENIZER = (
    ObjectiveKind.CLASSIFICATION,
    ObjectiveKind.TOKEN_CLASSIFICATION,
    ObjectiveKind.SPAN,
    ObjectiveKind.RELEVANCE,
    ObjectiveKind.RETRIEVAL,
)


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
        RecipeError: it cannot be read, or the objective needs other special tokens.
    """
    source = recipe.start_from
    if source is None:
        return None
    is_name = source in DEFAULT_SOURCES or source.startswith(HUB_PREFIX)
    path = folder / source
    try:
        if not is_name and is_native(path):
            start = import_native(path)
        else:
            start = load_checkpoint(source if is_name else str(path))
    except ExportError as error:
        raise RecipeError(f"start_from: {error}") from error
    tokens = start.special_tokens
    expected = special_tokens(start.config.kind)
    if recipe.objective not in ANY_TOKENIZER and tokens != expected:
        raise RecipeError(
            f"start_from: objective {recipe.objective} needs the special tokens of a tokenizer "
            f"that train made; any tokenizer: {', '.join(ANY_TOKENIZER)}"
        )
    return start


def start_record(start: Checkpoint) -> StartRecord:
    """The record of ``start`` for ``training.json``."""
    weights = {name: weight.contiguous() for name, weight in sorted(start.weights.items())}
    return StartRecord(
        name=start.name,
        architecture=start.architecture,
        license=start.license,
        sha256=sha256_of(save(weights)),
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


def initial_weights(config: ModelConfig, seed: int, start: Checkpoint | None) -> Weights:
    """Random weights, replaced by those of ``start`` where name and shape agree.

    Raises:
        RecipeError: no layer agrees.
    """
    weights = random_weights(config, seed)
    if start is None:
        return weights
    common = {
        name: weight
        for name, weight in start.weights.items()
        if name in weights and weights[name].shape == weight.shape
    }
    if not any(name.startswith(("encoder.", "decoder.")) for name in common):
        raise RecipeError("start_from: no weight of a layer has the name and shape of the model's")
    return {**weights, **common}
