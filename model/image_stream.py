"""ViLBERT: a text stream and an image stream that attend to each other (Lu et al. 2019)."""

import torch
from msgspec import structs
from torch import Tensor, nn

from model.basics import ACTIVATIONS, Linear
from model.config import (
    AttentionConfig,
    ConnectionConfig,
    ImageStreamConfig,
    LayerConfig,
    ModelConfig,
)
from model.eager import scaled_dot_product_attention, split_heads
from model.embeddings import ImageEmbedding, images_config
from model.image_config import PatchConfig
from model.kernels import ModelKernels
from model.layers import Layer, full_lengths, make_feed_forward
from model.mixers import required
from model.stacks import Encoder


class AttentionWeights(nn.Identity):
    """The weights of a co-attention. Hooks of training drop some of them."""


class CoAttention(nn.Module):
    """Attention of one stream to all valid tokens of the other, which may have another width.

    It uses plain tensor operations in graphs too: with given keys, ONNX Runtime's operator takes
    several queries only if there is one row.
    """

    def __init__(self, hidden_size: int, source_size: int, config: AttentionConfig) -> None:
        super().__init__()
        self.config = config
        inner_size = config.num_heads * config.head_size
        kv_size = 2 * config.num_kv_heads * config.head_size
        self.query = Linear(hidden_size, inner_size, bias=config.input_bias)
        self.key_value = Linear(source_size, kv_size, bias=config.input_bias)
        self.output = Linear(inner_size, hidden_size, bias=config.output_bias)
        self.weights = AttentionWeights()

    def forward(self, x: Tensor, source: Tensor, source_lengths: Tensor) -> Tensor:
        """``x [batch, length, hidden]`` reads ``source [batch, source_length, source_size]``.

        ``source_lengths [batch]``: valid tokens of each source.
        """
        config = self.config
        query = split_heads(self.query(x), config.num_heads)
        key, value = (
            split_heads(part, config.num_kv_heads) for part in self.key_value(source).chunk(2, -1)
        )
        is_valid = torch.arange(source.shape[1]) < source_lengths[:, None]
        context = scaled_dot_product_attention(
            query,
            key,
            value,
            is_valid[:, None, None],
            scale=config.scale,
            dropout=self.weights,
        )
        output: Tensor = self.output(context)
        return output


class CoAttentionLayer(Layer):
    """Figure 2b of the paper: attention to the other stream, then a feed-forward."""

    def __init__(
        self, hidden_size: int, source_size: int, layer: LayerConfig, kernels: ModelKernels
    ) -> None:
        super().__init__(layer)
        config = required(layer.cross_attention)
        self.cross_attention = CoAttention(hidden_size, source_size, config)
        self.cross_attention_norm = self.make_norm(hidden_size, layer)
        self.feed_forward = make_feed_forward(hidden_size, layer.feed_forward, kernels)
        if layer.feed_forward is not None:
            self.feed_forward_norm = self.make_norm(hidden_size, layer)

    def forward(self, x: Tensor, source: Tensor, source_lengths: Tensor) -> Tensor:
        """As :meth:`CoAttention.forward`."""
        h = self.residual(
            x, lambda x: self.cross_attention(x, source, source_lengths), self.cross_attention_norm
        )
        return self.add_feed_forward(h, x)


class Connection(nn.Module):
    """One co-attentional layer per stream."""

    def __init__(
        self, text_size: int, image_size: int, config: ConnectionConfig, kernels: ModelKernels
    ) -> None:
        super().__init__()
        self.text = CoAttentionLayer(text_size, image_size, config.text, kernels)
        self.image = CoAttentionLayer(image_size, text_size, config.image, kernels)

    def forward(
        self, text: Tensor, lengths: Tensor, image: Tensor, image_lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Both streams after the layers; each reads the other as it was before."""
        read_image: Tensor = self.text(text, image, image_lengths)
        read_text: Tensor = self.image(image, text, lengths)
        return read_image, read_text


class ImageStream(nn.Module):
    """The image's embedding and layers, the connections to the text stream, and their fusion."""

    def __init__(
        self,
        model: ModelConfig,
        config: ImageStreamConfig,
        patches: PatchConfig,
        kernels: ModelKernels,
    ) -> None:
        super().__init__()
        self.config, own = config, _image_config(model, config, patches)
        self.embedding = ImageEmbedding(own, patches)
        self.encoder = Encoder(own, config.encoder, kernels)
        self.connections = nn.ModuleList(
            Connection(model.hidden_size, config.hidden_size, connection, kernels)
            for connection in config.connections
        )
        self.activation = ACTIVATIONS[config.fusion]
        self.fuse_text = Linear(model.hidden_size, model.hidden_size, bias=True)
        self.fuse_image = Linear(config.hidden_size, model.hidden_size, bias=True)

    def forward(self, text: Tensor, lengths: Tensor, pixels: Tensor, encoder: Encoder) -> Tensor:
        """Runs both streams.

        Args:
            text: the text's embeddings, ``[batch, length, hidden]``.
            lengths: valid tokens of each text, ``[batch]``.
            pixels: as :class:`model.embeddings.ImageEmbedding` takes them.
            encoder: the text's layers.

        Returns:
            the product of both class tokens after the fusion, ``[batch, 1, hidden]``
        """
        image = self.embedding.embed(pixels)
        image_lengths = full_lengths(image)
        text_depth = image_depth = 0
        for config, connection in zip(self.config.connections, self.connections, strict=True):
            text = encoder.run(text, lengths, text_depth, config.text_depth)
            image = self.encoder.run(image, image_lengths, image_depth, config.image_depth)
            text_depth, image_depth = config.text_depth, config.image_depth
            text, image = connection(text, lengths, image, image_lengths)
        text = encoder.finish(text, lengths, text_depth)
        image = self.encoder.finish(image, image_lengths, image_depth)
        fused_text = self.activation(self.fuse_text(text[:, :1]))
        fused_image = self.activation(self.fuse_image(image[:, :1]))
        return fused_text * fused_image


def _image_config(
    model: ModelConfig, config: ImageStreamConfig, patches: PatchConfig
) -> ModelConfig:
    """The image stream's configuration as that of a model of its own."""
    own = images_config(model, patches, config.hidden_size, config.norm)
    return structs.replace(own, encoder=config.encoder, image_stream=None)
