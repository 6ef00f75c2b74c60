"""ViLBERT against its formulas, written for one text and one image."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from export.sample_images import sample_images
from model.image_stream import CoAttention
from model.transformer import from_weights
from tests.architectures import HIDDEN_SIZE, random_weights
from tests.image_models import IMAGE, IMAGE_SIZE, PATCHES, VILBERT
from train.recipe import TrainingRecipe
from train.regularization import add_dropout

TEXTS = ([3, 9, 4, 60, 7], [11], [5, 5, 8])
NUM_HEADS, HEAD_SIZE = 4, 16


class Formulas:
    """Lu et al. 2019, figures 1 and 2, with a model's weights. Vectors are ``[tokens, size]``."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return functional.layer_norm(x, weight.shape, weight, bias, 1e-5)

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        parts = []
        for head in range(NUM_HEADS):
            part = slice(head * HEAD_SIZE, (head + 1) * HEAD_SIZE)
            scores = query[:, part] @ key[:, part].T / math.sqrt(HEAD_SIZE)
            parts.append(scores.softmax(-1) @ value[:, part])
        return torch.cat(parts, -1)

    def feed_forward(self, name: str, x: Tensor) -> Tensor:
        inner = functional.gelu(self.linear(f"{name}.feed_forward.input", x))
        added = x + self.linear(f"{name}.feed_forward.output", inner)
        return self.norm(f"{name}.feed_forward_norm", added)

    def layer(self, name: str, x: Tensor) -> Tensor:
        query, key, value = self.linear(f"{name}.mixer.qkv", x).chunk(3, -1)
        context = self.linear(f"{name}.mixer.output", self.attention(query, key, value))
        return self.feed_forward(name, self.norm(f"{name}.mixer_norm", x + context))

    def co_attention(self, name: str, x: Tensor, other: Tensor) -> Tensor:
        query = self.linear(f"{name}.cross_attention.query", x)
        key, value = self.linear(f"{name}.cross_attention.key_value", other).chunk(2, -1)
        context = self.linear(f"{name}.cross_attention.output", self.attention(query, key, value))
        return self.feed_forward(name, self.norm(f"{name}.cross_attention_norm", x + context))

    def text(self, ids: list[int]) -> Tensor:
        tokens = self.weights["embedding.tokens.weight"][ids]
        positions = self.weights["embedding.positions.weight"][: len(ids)]
        segments = self.weights["embedding.segments.weight"][[0] * len(ids)]
        return self.norm("embedding.norm", tokens + positions + segments)

    def image(self, pixels: Tensor) -> Tensor:
        start = "image_stream.embedding"
        values = (pixels / 255 - torch.tensor(PATCHES.mean)) / torch.tensor(PATCHES.deviation)
        size = PATCHES.size
        patches = [
            values[top : top + size, left : left + size].flatten()
            for top in range(0, PATCHES.height, size)
            for left in range(0, PATCHES.width, size)
        ]
        vectors = self.linear(f"{start}.patches", torch.stack(patches))
        vectors = torch.cat([self.weights[f"{start}.class_tokens"], vectors])
        return self.norm(f"{start}.norm", vectors + self.weights[f"{start}.positions.weight"])

    def logits(self, ids: list[int], pixels: Tensor) -> Tensor:
        text, image, stream = self.text(ids), self.image(pixels), "image_stream"
        text = self.layer("encoder.layers.0", text)
        text, image = (
            self.co_attention(f"{stream}.connections.0.text", text, image),
            self.co_attention(f"{stream}.connections.0.image", image, text),
        )
        text = self.layer("encoder.layers.1", text)
        image = self.layer(f"{stream}.encoder.layers.0", image)
        text, image = (
            self.co_attention(f"{stream}.connections.1.text", text, image),
            self.co_attention(f"{stream}.connections.1.image", image, text),
        )
        image = self.layer(f"{stream}.encoder.layers.1", image)
        fused = self.linear(f"{stream}.fuse_text", text[0]).relu()
        fused = fused * self.linear(f"{stream}.fuse_image", image[0]).relu()
        return self.linear("head.output", fused)


def test_two_streams_follow_the_formulas() -> None:
    weights = random_weights(VILBERT)
    assert weights["image_stream.fuse_image.weight"].shape == (IMAGE_SIZE, HIDDEN_SIZE)
    images = [torch.from_numpy(image) for image in sample_images(IMAGE, len(TEXTS), seed=1)]
    formulas = Formulas(weights)
    expected = [formulas.logits(ids, pixels) for ids, pixels in zip(TEXTS, images, strict=True)]
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(x) for x in TEXTS], batch_first=True)
    lengths = torch.tensor([len(row) for row in TEXTS], dtype=torch.int32)
    model = from_weights(VILBERT, weights)
    fused = model.encode_pairs(ids, lengths, torch.stack(images), torch.zeros_like(ids))
    actual = model.pool(fused, torch.ones_like(lengths))
    torch.testing.assert_close(actual, torch.stack(expected), rtol=1e-4, atol=1e-4)
    assert actual.std(0).min() > 1e-2  # each pair has logits of its own


def test_training_drops_weights_of_co_attention() -> None:
    model = from_weights(VILBERT, random_weights(VILBERT))
    add_dropout(model, TrainingRecipe(num_steps=1, attention_dropout=0.5))
    text, image = torch.randn(1, 5, HIDDEN_SIZE), torch.randn(1, 7, IMAGE_SIZE)
    stream = model.image_stream
    assert stream is not None
    (layer, *_) = [module for module in stream.modules() if isinstance(module, CoAttention)]
    lengths = torch.tensor([7], dtype=torch.int32)
    expected = layer(text, image, lengths)
    assert torch.equal(layer(text, image, lengths), expected)
    model.train()
    means = torch.stack([layer(text, image, lengths) for _ in range(2000)]).mean(0)
    assert not torch.equal(layer(text, image, lengths), expected)
    torch.testing.assert_close(means, expected, rtol=0, atol=0.1)
