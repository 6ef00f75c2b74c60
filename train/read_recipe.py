"""Reads a recipe and lists every problem, with the name of its field."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from model.config import LINEAR_SCORES, NormKind, ScoreKind
from model.recurrent_config import AlignmentKind, ReadoutKind
from train.errors import RecipeError
from train.export_limits import export_conflicts
from train.image_recipe import MAX_TOKENS, ImageStreamRecipe, PatchesRecipe
from train.recipe import (
    ATTENTION_POSITIONS,
    WITH_SOURCE,
    ModelRecipe,
    ObjectiveKind,
    Placement,
    Positions,
    Recipe,
    RecurrentRecipe,
    TokenizerKind,
)
from train.retrieval_recipe import MIN_LENGTH, conflicts

# The objectives of Debian's sources that are not parallel texts.
DEBIAN_OBJECTIVES = {
    "sections": (ObjectiveKind.CLASSIFICATION,),
    "summaries": (ObjectiveKind.SEQUENCE_TO_SEQUENCE, ObjectiveKind.NEXT_TOKEN),
    "relevance": (ObjectiveKind.RELEVANCE, ObjectiveKind.RETRIEVAL),
}


def read_recipe(path: Path) -> Recipe:
    """The recipe in the TOML file ``path``.

    Raises:
        RecipeError: it is unreadable or not valid; the message lists every problem.
    """
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise RecipeError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise RecipeError(f"{path}: {error}") from error
    return parse_recipe(values, str(path))


def parse_recipe(values: dict[str, Any], origin: str) -> Recipe:
    """The recipe with these ``values``.

    Raises:
        RecipeError: it is not valid; the message lists every problem.
    """
    problems = list(_problems(Recipe, values, ""))
    if not problems:
        recipe = msgspec.convert(values, Recipe)
        problems = list(_conflicts(recipe))
        if not problems:
            return recipe
    raise RecipeError("\n  ".join([f"{origin}:", *problems]))


def _problems(kind: type[msgspec.Struct], values: Any, prefix: str) -> Iterator[str]:
    """The problems of each field. msgspec stops at the first, so each field is converted alone."""
    if not isinstance(values, dict):
        yield f"{prefix.rstrip('.')}: not a table"
        return
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for name in values:
        if name not in fields:
            yield f"{prefix}{name}: unknown; known: {', '.join(fields)}"
    for name, field in fields.items():
        if name not in values:
            if field.required:
                yield f"{prefix}{name}: missing"
            continue
        section = _section(field.type)
        if section is not None:
            yield from _problems(section, values[name], f"{prefix}{name}.")
            continue
        try:
            msgspec.convert(values[name], field.type)
        except msgspec.ValidationError as error:
            yield f"{prefix}{name}: {error}"


def _section(type_: Any) -> type[msgspec.Struct] | None:
    """The structure type of a field, optional or not; None if the field is a plain value."""
    for option in getattr(type_, "__args__", (type_,)):
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            return option
    return None


def _conflicts(recipe: Recipe) -> Iterator[str]:
    """Problems that involve several fields."""
    training, objective = recipe.training, recipe.objective
    patches = None if recipe.model is None else recipe.model.patches
    yield from _start_conflicts(recipe)
    if recipe.model is not None:
        yield from _model_conflicts(recipe, recipe.model)
    if patches is not None and recipe.model is not None:
        yield from _image_conflicts(recipe, recipe.model, patches)
    if has_texts(recipe) and training.batch_tokens < recipe.data.max_length:
        yield f"training.batch_tokens: less than data.max_length, {recipe.data.max_length}"
    if training.next_sentence and objective != ObjectiveKind.MASKED:
        yield f"training.next_sentence: not for objective {objective}"
    if training.label_smoothing and objective in (ObjectiveKind.SPAN, ObjectiveKind.RELEVANCE):
        yield f"training.label_smoothing: not for objective {objective}"
    kind = None if recipe.tokenizer is None else recipe.tokenizer.kind
    continues_words = kind in (None, TokenizerKind.BPE, TokenizerKind.CHARACTERS)
    if objective == ObjectiveKind.NEXT_TOKEN and not continues_words:
        yield "tokenizer.kind: a decoder continues texts in the middle of a word: bpe, characters"
    origin, _, name = recipe.data.source.partition(":")
    expected = DEBIAN_OBJECTIVES.get(name, (ObjectiveKind.SEQUENCE_TO_SEQUENCE,))
    if origin in ("debian", "lexicon") and objective not in expected:
        yield (
            f"data.source: objective {objective} cannot use {recipe.data.source}, "
            f"only {', '.join(expected)}"
        )
    yield from _retrieval_conflicts(recipe)


def _start_conflicts(recipe: Recipe) -> Iterator[str]:
    if recipe.start_from is None:
        needed = ("tokenizer", "model") if has_texts(recipe) else ("model",)
        for name in needed:
            if getattr(recipe, name) is None:
                yield f"{name}: missing; only a recipe with start_from can do without"
    elif recipe.tokenizer is not None:
        yield "tokenizer: start_from brings its own"
    if recipe.adapter is not None:
        if recipe.start_from is None or recipe.model is not None:
            yield "adapter: needs start_from, and no model"
        if recipe.training.num_averaged > 1:
            yield "training.num_averaged: the mean of an adapter's factors is not that of changes"


def _retrieval_conflicts(recipe: Recipe) -> Iterator[str]:
    is_retrieval = recipe.objective == ObjectiveKind.RETRIEVAL
    if is_retrieval and recipe.retrieval is None:
        yield "retrieval: missing; objective retrieval needs it"
    elif recipe.retrieval is not None and not is_retrieval:
        yield f"retrieval: not for objective {recipe.objective}"
    elif recipe.retrieval is not None:
        max_positions = None if recipe.model is None else recipe.model.max_positions
        yield from conflicts(recipe.retrieval, max_positions)
        if recipe.data.max_length < MIN_LENGTH:
            yield f"data.max_length: less than {MIN_LENGTH}"


def _image_conflicts(recipe: Recipe, model: ModelRecipe, patches: PatchesRecipe) -> Iterator[str]:
    for side in ("height", "width"):
        if getattr(patches, side) % patches.size:
            yield f"model.patches.{side}: not a multiple of size, {patches.size}"
    for values in ("mean", "deviation"):
        if len(getattr(patches, values)) != patches.num_channels:
            yield f"model.patches.{values}: needs {patches.num_channels} numbers, one a channel"
    num_tokens = patches.config.num_tokens
    if num_tokens > MAX_TOKENS:
        yield f"model.patches.size: an image would have {num_tokens} tokens, more than {MAX_TOKENS}"
    if recipe.training.batch_tokens < num_tokens:
        yield f"training.batch_tokens: less than the {num_tokens} tokens of an image"
    writes = recipe.objective == ObjectiveKind.IMAGE_TO_TEXT
    if not writes and recipe.objective != ObjectiveKind.CLASSIFICATION:
        yield f"model.patches: not for objective {recipe.objective}"
    for field in ("window", "recurrent", *(("image_stream", "universal") if writes else ())):
        if getattr(model, field) is not None:
            yield f"model.{field}: not in a model of images"
    if model.image_stream is not None:
        yield from _stream_conflicts(model, model.image_stream)
    elif not writes:
        yield from _alone_conflicts(recipe, model)


def _alone_conflicts(recipe: Recipe, model: ModelRecipe) -> Iterator[str]:
    """Problems of a model of images without texts."""
    if recipe.tokenizer is not None:
        yield "tokenizer: a model of images has none"
    if model.positions != Positions.LEARNED:
        yield "model.positions: those of patches are learned"
    if model.placement == Placement.CONCATENATED:
        yield "model.placement: those of patches are added"


def _stream_conflicts(model: ModelRecipe, stream: ImageStreamRecipe) -> Iterator[str]:
    if stream.hidden_size % stream.num_heads:
        yield "model.image_stream.num_heads: does not divide hidden_size"
    if stream.num_connections > min(stream.num_layers, model.num_layers):
        yield "model.image_stream.num_connections: more than the layers of a stream"
    for field in ("experts", "universal", "sublayers"):
        if getattr(model, field) is not None:
            yield f"model.{field}: not beside an image_stream"


def has_texts(recipe: Recipe) -> bool:
    """Whether the model of ``recipe`` reads or writes texts; True without a model."""
    model = recipe.model
    if model is None or model.patches is None or model.image_stream is not None:
        return True
    return recipe.objective == ObjectiveKind.IMAGE_TO_TEXT


def _model_conflicts(recipe: Recipe, model: ModelRecipe) -> Iterator[str]:
    if model.patches is None and recipe.training.augmentation is not None:
        yield "training.augmentation: only in a model of images"
    if model.patches is None and model.image_stream is not None:
        yield "model.image_stream: needs model.patches"
    if model.patches is None and recipe.objective == ObjectiveKind.IMAGE_TO_TEXT:
        yield "model.patches: missing; objective image_to_text reads images"
    if has_texts(recipe) and recipe.data.max_length > model.max_positions:
        yield f"data.max_length: more than model.max_positions, {model.max_positions}"
    has_decoder = recipe.objective in WITH_SOURCE
    if model.num_decoder_layers is not None and not has_decoder:
        yield f"model.num_decoder_layers: objective {recipe.objective} has one stack"
    if model.recurrent is None:
        yield from _transformer_conflicts(recipe, model)
    else:
        yield from _recurrent_conflicts(recipe, model, model.recurrent)
    if model.decoder_sublayers is not None and not has_decoder:
        yield f"model.decoder_sublayers: objective {recipe.objective} has one stack"
    is_encoder = not has_decoder and recipe.objective != ObjectiveKind.NEXT_TOKEN
    if model.global_tokens is not None and not (is_encoder and (model.window or 0) > 1):
        yield "model.global_tokens: only in an encoder with a window of at least 2"
    if model.global_tokens is not None and model.score != ScoreKind.SCALED_DOT:
        yield f"model.score: global tokens have no {model.score} scores"
    if model.global_tokens is not None and model.positions == Positions.RELATIVE:
        yield "model.positions: global tokens have no relative positions"


def _recurrent_conflicts(
    recipe: Recipe, model: ModelRecipe, recurrent: RecurrentRecipe
) -> Iterator[str]:
    if recipe.objective != ObjectiveKind.SEQUENCE_TO_SEQUENCE:
        yield f"model.recurrent: not for objective {recipe.objective}"
    for field in ("residual_dropout", "attention_dropout"):
        if getattr(recipe.training, field):
            yield f"training.{field}: recurrent layers have embedding_dropout, recurrent_dropout"
    for field in ("experts", "universal", "window", "sublayers", "decoder_sublayers"):
        if getattr(model, field) is not None:
            yield f"model.{field}: not in recurrent layers"
    if recurrent.bidirectional and model.hidden_size % 2:
        yield "model.hidden_size: two directions need an even size"
    if recurrent.alignment is None:
        if recurrent.from_previous:
            yield "model.recurrent.from_previous: there is no alignment"
        if recurrent.readout != ReadoutKind.TANH:
            yield "model.recurrent.readout: there is no alignment"
    num_layers = max(model.num_layers, model.num_decoder_layers or 1)
    if recipe.training.recurrent_dropout and num_layers == 1:
        yield "training.recurrent_dropout: needs stacked layers"
    is_additive = recurrent.alignment in (None, AlignmentKind.ADDITIVE)
    if not is_additive and model.hidden_size % 8:
        yield f"model.hidden_size: {recurrent.alignment} attention needs a multiple of 8"


def _position_conflicts(model: ModelRecipe) -> Iterator[str]:
    if model.positions == Positions.RELATIVE and model.score not in LINEAR_SCORES:
        yield f"model.score: {model.score} does not work with relative positions"
    if model.positions == Positions.ROTARY and model.score == ScoreKind.ADDITIVE:
        yield f"model.score: {model.score} does not work with rotary positions"
    if model.positions in ATTENTION_POSITIONS and model.placement != Placement.ADDED:
        yield f"model.placement: {model.positions} positions are not in the embedding"
    is_in_layers = model.placement == Placement.EVERY_LAYER
    if is_in_layers and model.positions != Positions.SINUSOIDAL:
        yield "model.placement: every_layer needs sinusoidal positions"
    if model.targets and not is_in_layers:
        yield "model.targets: placement is not every_layer"


def _transformer_conflicts(recipe: Recipe, model: ModelRecipe) -> Iterator[str]:
    if recipe.training.recurrent_dropout:
        yield "training.recurrent_dropout: only in recurrent layers"
    if model.hidden_size % model.num_heads:
        yield f"model.num_heads: {model.num_heads} does not divide hidden_size"
    elif model.positions == Positions.ROTARY and (model.hidden_size // model.num_heads) % 2:
        yield "model.num_heads: rotary positions need heads of even size"
    if model.num_kv_heads is not None and model.num_heads % model.num_kv_heads:
        yield f"model.num_kv_heads: {model.num_kv_heads} does not divide num_heads"
    is_sinusoidal = model.positions in (Positions.SINUSOIDAL, Positions.SINUSOIDAL_PAPER)
    if is_sinusoidal and model.hidden_size % 2:
        yield "model.hidden_size: sinusoidal positions need an even size"
    yield from _position_conflicts(model)
    if model.norm == NormKind.NONE:
        yield "model.norm: training needs a norm"
    yield from _stack_conflicts(model)
    yield from export_conflicts(model, recipe.objective)
    if model.experts is not None and model.experts.active > model.experts.count:
        yield f"model.experts.active: more than the {model.experts.count} experts"


def _stack_conflicts(model: ModelRecipe) -> Iterator[str]:
    num_decoder_layers = model.num_decoder_layers or model.num_layers
    for field, letters, number in (
        ("sublayers", "sf", model.num_layers),
        ("decoder_sublayers", "scf", num_decoder_layers),
    ):
        order = getattr(model, field)
        if order is not None and sorted(order) != sorted(letters * number):
            yield f"model.{field}: needs {number} each of the letters {', '.join(letters)}"
    if model.universal is not None:
        if model.positions != Positions.SINUSOIDAL:
            yield "model.positions: a universal model has sinusoidal ones, at every step"
        if model.placement != Placement.ADDED:
            yield "model.placement: a universal model adds positions at every step"
        for field in ("sublayers", "decoder_sublayers"):
            if getattr(model, field) is not None:
                yield f"model.{field}: a universal model has one layer"
