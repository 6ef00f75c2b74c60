"""The configuration of the model that a recipe describes."""

import msgspec

from model.config import (
    Activation,
    AttentionConfig,
    DenseConfig,
    EmbeddingConfig,
    ExpertsConfig,
    FeedForwardConfig,
    HaltingConfig,
    HeadConfig,
    HeadKind,
    Kind,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormKind,
    NormOrder,
    PoolingKind,
    StackConfig,
)
from model.image_config import PatchConfig
from model.position_config import (
    PositionConfig,
    PositionKind,
    PositionPlacement,
    RelativePositionConfig,
    RotaryConfig,
    SignalKind,
)
from model.recurrent_config import AlignmentConfig, BridgeKind, RecurrentConfig
from model.sublayers import in_order
from train.errors import RecipeError
from train.image_architecture import image_head, with_image_stream
from train.recipe import (
    ATTENTION_POSITIONS,
    GlobalTokens,
    ModelRecipe,
    ObjectiveKind,
    Placement,
    Positions,
    RecurrentRecipe,
    UniversalRecipe,
)
from train.tokenizer import EOS

EPSILON = 1e-5

KINDS = {
    ObjectiveKind.NEXT_TOKEN: Kind.DECODER,
    ObjectiveKind.SEQUENCE_TO_SEQUENCE: Kind.ENCODER_DECODER,
    ObjectiveKind.IMAGE_TO_TEXT: Kind.ENCODER_DECODER,
    ObjectiveKind.MASKED: Kind.ENCODER,
    ObjectiveKind.CLASSIFICATION: Kind.ENCODER,
    ObjectiveKind.TOKEN_CLASSIFICATION: Kind.ENCODER,
    ObjectiveKind.SPAN: Kind.ENCODER,
    ObjectiveKind.RELEVANCE: Kind.ENCODER,
    ObjectiveKind.RETRIEVAL: Kind.ENCODER,
}
NUM_SEGMENTS = 2  # for encoders, whose inputs may be pairs


def model_config(
    recipe: ModelRecipe,
    objective: ObjectiveKind,
    vocabulary_size: int,
    num_labels: int,
    separator: int | None = EOS,
) -> ModelConfig:
    """The configuration of the model that ``recipe`` describes.

    Args:
        num_labels: number of a classifier's labels.
        separator: the token after a question, for ``global_tokens``.

    Raises:
        RecipeError: ``global_tokens`` needs a separator, and there is none.
    """
    if recipe.recurrent is not None:
        return _recurrent_model(recipe, recipe.recurrent, vocabulary_size)
    kind, patches = KINDS[objective], None if recipe.patches is None else recipe.patches.config
    if patches is not None and recipe.image_stream is None and kind == Kind.ENCODER:
        return _image_model(recipe, patches, num_labels)
    norm = NormConfig(kind=recipe.norm, epsilon=EPSILON)
    encoder, decoder = None, None
    if kind != Kind.DECODER:
        reader = recipe if kind == Kind.ENCODER or patches is None else _image_reader(recipe)
        encoder = _stack(reader, norm, recipe.num_layers, cross=False)
    if kind != Kind.ENCODER:
        has_source = kind == Kind.ENCODER_DECODER
        num_layers = recipe.num_decoder_layers if has_source else None
        decoder = _stack(recipe, norm, num_layers or recipe.num_layers, cross=has_source)
    if encoder is not None and recipe.global_tokens == GlobalTokens.QUESTION:
        if separator is None:
            raise RecipeError("model.global_tokens: the tokenizer puts no token after a question")
        encoder = msgspec.structs.replace(encoder, global_before=separator)
    is_sinusoidal = recipe.positions in (Positions.SINUSOIDAL, Positions.SINUSOIDAL_PAPER)
    model = ModelConfig(
        kind=kind,
        vocabulary_size=vocabulary_size,
        hidden_size=recipe.hidden_size,
        position=_positions(recipe),
        embedding=EmbeddingConfig(
            scale=recipe.hidden_size**0.5 if is_sinusoidal else 1.0,
            norm=norm if kind == Kind.ENCODER else None,
            num_segments=NUM_SEGMENTS if kind == Kind.ENCODER else 0,
        ),
        encoder=encoder,
        decoder=decoder,
        patches=patches if kind == Kind.ENCODER_DECODER else None,
        head=_head(recipe.hidden_size, recipe.tied, objective, norm, num_labels),
    )
    stream = recipe.image_stream
    if patches is None or stream is None:
        return model
    image = msgspec.structs.replace(
        _image_reader(recipe),
        hidden_size=stream.hidden_size,
        num_heads=stream.num_heads,
        num_kv_heads=None,
        inner_size=stream.inner_size,
    )
    layers = _stack(image, norm, stream.num_layers, cross=False)
    return with_image_stream(model, layers, stream, patches, num_labels)


def _image_reader(recipe: ModelRecipe) -> ModelRecipe:
    """``recipe`` for a stack of patches, whose positions are learned and added once."""
    return msgspec.structs.replace(
        recipe, positions=Positions.LEARNED, placement=Placement.ADDED, targets=()
    )


def _positions(recipe: ModelRecipe) -> PositionConfig:
    """The positions of the input embedding; a universal model has them in its signal instead."""
    kind, placement = PositionKind.NONE, PositionPlacement.ADDED
    is_in_layers = recipe.placement == Placement.EVERY_LAYER or recipe.universal is not None
    if recipe.positions not in ATTENTION_POSITIONS and not is_in_layers:
        kind = PositionKind(recipe.positions.value)
        placement = PositionPlacement(recipe.placement.value)
    return PositionConfig(kind=kind, max_positions=recipe.max_positions, placement=placement)


def _recurrent_model(
    recipe: ModelRecipe, recurrent: RecurrentRecipe, vocabulary_size: int
) -> ModelConfig:
    size, num_layers = recipe.hidden_size, recipe.num_layers
    num_decoder_layers = recipe.num_decoder_layers or num_layers
    alignment = None
    if recurrent.alignment is not None:
        alignment = AlignmentConfig(
            kind=recurrent.alignment, size=size, from_previous=recurrent.from_previous
        )
    return ModelConfig(
        kind=Kind.ENCODER_DECODER,
        vocabulary_size=vocabulary_size,
        hidden_size=size,
        position=PositionConfig(kind=PositionKind.NONE, max_positions=recipe.max_positions),
        embedding=EmbeddingConfig(),
        recurrent=RecurrentConfig(
            cell=recurrent.cell,
            encoder_size=size // 2 if recurrent.bidirectional else size,
            decoder_size=size,
            num_encoder_layers=num_layers,
            num_decoder_layers=num_decoder_layers,
            bidirectional=recurrent.bidirectional,
            bridge=BridgeKind.COPY if num_layers == num_decoder_layers else BridgeKind.DENSE,
            alignment=alignment,
            readout=alignment is not None,
            readout_kind=recurrent.readout,
            input_feeding=recurrent.input_feeding,
        ),
        head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, bias=True, tied=recipe.tied),
    )


def _image_model(recipe: ModelRecipe, patches: PatchConfig, num_labels: int) -> ModelConfig:
    norm = NormConfig(kind=recipe.norm, epsilon=EPSILON)
    return ModelConfig(
        kind=Kind.ENCODER,
        vocabulary_size=0,
        hidden_size=recipe.hidden_size,
        position=patches.position,
        embedding=EmbeddingConfig(),
        encoder=_stack(recipe, norm, recipe.num_layers, cross=False),
        patches=patches,
        head=image_head(num_labels),
    )


def with_new_head(model: ModelConfig, objective: ObjectiveKind, num_labels: int) -> ModelConfig:
    """The layers of ``model`` with the head of ``objective``.

    A language model keeps its own head, and so does a sparse embedding model for retrieval.
    """
    norm = NormConfig(kind=NormKind.LAYER, epsilon=EPSILON)
    if model.patches is not None and model.kind == Kind.ENCODER:
        return msgspec.structs.replace(model, head=image_head(num_labels))
    tied = model.embedding.size is None
    if model.head.kind == HeadKind.LANGUAGE_MODEL:
        tied = model.head.tied
    head = _head(model.hidden_size, tied, objective, norm, num_labels)
    is_sparse = model.head.kind == HeadKind.SPARSE_EMBEDDING
    if is_sparse and objective == ObjectiveKind.RETRIEVAL:
        return model
    if head.kind == model.head.kind == HeadKind.LANGUAGE_MODEL:
        return model
    return msgspec.structs.replace(model, head=head)


def _stack(recipe: ModelRecipe, norm: NormConfig, num_layers: int, *, cross: bool) -> StackConfig:
    is_biased = recipe.norm == NormKind.LAYER
    attention = AttentionConfig(
        num_heads=recipe.num_heads,
        num_kv_heads=recipe.num_kv_heads or recipe.num_heads,
        head_size=recipe.hidden_size // recipe.num_heads,
        input_bias=is_biased,
        output_bias=is_biased,
        score=recipe.score,
        scale=recipe.score_scale,
        rotary=RotaryConfig() if recipe.positions == Positions.ROTARY else None,
        relative=RelativePositionConfig(max_distance=recipe.max_distance)
        if recipe.positions == Positions.RELATIVE
        else None,
        window=recipe.window,
        num_global_tokens=_num_global_tokens(recipe),
    )
    cross_attention = AttentionConfig(
        num_heads=recipe.num_heads,
        num_kv_heads=recipe.num_kv_heads or recipe.num_heads,
        head_size=recipe.hidden_size // recipe.num_heads,
        input_bias=is_biased,
        output_bias=is_biased,
        score=recipe.score,
        scale=recipe.score_scale,
    )
    experts = None
    if recipe.experts is not None:
        count, active = recipe.experts.count, recipe.experts.active
        experts = ExpertsConfig(count=count, active=active, normalized=True)
    layer = LayerConfig(
        attention=attention,
        cross_attention=cross_attention if cross else None,
        feed_forward=FeedForwardConfig(
            inner_size=recipe.inner_size,
            activation=recipe.activation,
            gated=recipe.gated,
            bias=is_biased,
            experts=experts,
        ),
        norm=norm,
        norm_order=recipe.norm_order,
    )
    layers = (layer,) * num_layers
    order = recipe.decoder_sublayers if cross else recipe.sublayers
    if order is not None:
        layers = in_order(order, layer)
    final_norm = norm if recipe.norm_order != NormOrder.POST else None
    if recipe.universal is not None:
        return _universal_stack(recipe.universal, layer, num_layers, final_norm)
    in_layers = recipe.placement == Placement.EVERY_LAYER
    return StackConfig(
        layers=layers,
        final_norm=final_norm,
        signal=SignalKind.POSITIONS if in_layers else SignalKind.NONE,
        signal_targets=recipe.targets,
    )


def _num_global_tokens(recipe: ModelRecipe) -> int:
    if recipe.window is None or recipe.global_tokens is None:
        return 0
    return 1 if recipe.global_tokens == GlobalTokens.FIRST else recipe.window - 1


def _universal_stack(
    recipe: UniversalRecipe, layer: LayerConfig, num_steps: int, final_norm: NormConfig | None
) -> StackConfig:
    return StackConfig(
        layers=(layer,),
        final_norm=final_norm,
        order=(0,) * num_steps,
        signal=SignalKind.SINUSOIDAL,
        halting=HaltingConfig(epsilon=recipe.epsilon) if recipe.halting else None,
    )


def _head(
    size: int, tied: bool, objective: ObjectiveKind, norm: NormConfig, num_labels: int
) -> HeadConfig:
    if objective in (ObjectiveKind.CLASSIFICATION, ObjectiveKind.RELEVANCE):
        pooler = DenseConfig(size=size, activation=Activation.TANH)
        return HeadConfig(
            kind=HeadKind.CLASSIFICATION,
            pooling=PoolingKind.CLS,
            dense=(pooler,),
            bias=True,
            num_labels=num_labels,
        )
    if objective in (ObjectiveKind.TOKEN_CLASSIFICATION, ObjectiveKind.SPAN):
        return HeadConfig(kind=HeadKind.TOKEN_CLASSIFICATION, bias=True, num_labels=num_labels)
    if objective in (ObjectiveKind.MASKED, ObjectiveKind.RETRIEVAL):
        transform = DenseConfig(size=size, activation=Activation.GELU, norm=norm)
        return HeadConfig(kind=HeadKind.LANGUAGE_MODEL, dense=(transform,), bias=True, tied=tied)
    return HeadConfig(kind=HeadKind.LANGUAGE_MODEL, tied=tied)
