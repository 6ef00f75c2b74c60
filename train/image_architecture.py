"""The configurations of image models that a recipe describes."""

import msgspec

from model.config import (
    Activation,
    AttentionConfig,
    ConnectionConfig,
    HeadConfig,
    HeadKind,
    ImageStreamConfig,
    LayerConfig,
    ModelConfig,
    PoolingKind,
    StackConfig,
)
from model.image_config import PatchConfig
from train.image_recipe import ImageStreamRecipe


def image_head(num_labels: int) -> HeadConfig:
    """The class token's vector times a matrix (Dosovitskiy et al. 2021, section 3.1)."""
    return HeadConfig(
        kind=HeadKind.CLASSIFICATION, pooling=PoolingKind.CLS, bias=True, num_labels=num_labels
    )


def with_image_stream(
    text: ModelConfig,
    encoder: StackConfig,
    recipe: ImageStreamRecipe,
    patches: PatchConfig,
    num_labels: int,
) -> ModelConfig:
    """``text`` with an image stream beside it, and the head of both.

    Args:
        encoder: the image's layers.
    """
    own, other = encoder.layers[0], (text.encoder or encoder).layers[0]
    connections = tuple(
        ConnectionConfig(
            text=_co_attention(other, recipe),
            image=_co_attention(own, recipe),
            text_depth=(text.num_layers - recipe.num_connections + index),
            image_depth=recipe.num_layers - recipe.num_connections + index,
        )
        for index in range(recipe.num_connections)
    )
    return msgspec.structs.replace(
        text,
        patches=patches,
        image_stream=ImageStreamConfig(
            hidden_size=recipe.hidden_size,
            norm=text.embedding.norm,
            encoder=encoder,
            connections=connections,
            fusion=Activation.RELU,
        ),
        head=image_head(num_labels),
    )


def _co_attention(layer: LayerConfig, recipe: ImageStreamRecipe) -> LayerConfig:
    """A layer with attention to the other stream instead of self-attention."""
    has_bias = layer.attention is None or layer.attention.input_bias
    attention = AttentionConfig(
        num_heads=recipe.num_heads,
        num_kv_heads=recipe.num_heads,
        head_size=recipe.hidden_size // recipe.num_heads,
        input_bias=has_bias,
        output_bias=has_bias,
    )
    return msgspec.structs.replace(layer, mixer=None, attention=None, cross_attention=attention)
