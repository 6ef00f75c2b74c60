"""Small random models of images, and of texts with images."""

import msgspec

from export.checkpoint import Checkpoint
from export.tokenization.none import NO_TOKENIZER
from model.bundle import Embedding, ImageSpec, SpecialTokens, Task
from model.config import (
    Activation,
    ConnectionConfig,
    EmbeddingConfig,
    HeadConfig,
    HeadKind,
    ImageStreamConfig,
    Kind,
    LayerConfig,
    ModelConfig,
    NormOrder,
    PoolingKind,
)
from model.image_config import PatchConfig, Resampling
from model.position_config import PositionConfig, PositionKind
from tests.architectures import (
    BERT,
    HIDDEN_SIZE,
    NORM,
    VOCABULARY_SIZE,
    attention,
    random_weights,
    stack,
    tokenizer_json,
)

PATCHES = PatchConfig(
    height=24,
    width=16,
    size=8,
    mean=(0.5, 0.4, 0.3),
    deviation=(0.2, 0.3, 0.4),
)
IMAGE = ImageSpec(
    height=24,
    width=16,
    num_channels=3,
    resize=(24, 16),
    resampling=Resampling.BILINEAR,
    num_tokens=PATCHES.num_tokens,
)
CLASSIFIER = HeadConfig(
    kind=HeadKind.CLASSIFICATION, pooling=PoolingKind.CLS, bias=True, num_labels=3
)
# Dosovitskiy et al. 2021.
VIT = ModelConfig(
    kind=Kind.ENCODER,
    vocabulary_size=0,
    hidden_size=HIDDEN_SIZE,
    position=PositionConfig(kind=PositionKind.LEARNED, max_positions=PATCHES.num_tokens),
    embedding=EmbeddingConfig(),
    encoder=stack(order=NormOrder.PRE, activation=Activation.GELU),
    patches=PATCHES,
    head=CLASSIFIER,
)
_EMBEDDING = HeadConfig(kind=HeadKind.EMBEDDING, pooling=PoolingKind.CLS, normalize=True)
IMAGE_SIZE = 32  # the width of the image's stream


def co_attention() -> LayerConfig:
    """A co-attentional layer of one stream."""
    layer = stack(activation=Activation.GELU).layers[0]
    return msgspec.structs.replace(layer, mixer=None, attention=None, cross_attention=attention())


# Lu et al. 2019: one text layer, then a connection before the second one, and one at the end.
VILBERT = ModelConfig(
    kind=Kind.ENCODER,
    vocabulary_size=VOCABULARY_SIZE,
    hidden_size=HIDDEN_SIZE,
    position=PositionConfig(kind=PositionKind.LEARNED, max_positions=96),
    embedding=EmbeddingConfig(norm=NORM, num_segments=2),
    encoder=BERT.encoder,
    patches=PATCHES,
    image_stream=ImageStreamConfig(
        hidden_size=IMAGE_SIZE,
        norm=NORM,
        encoder=stack(activation=Activation.GELU),
        connections=(
            ConnectionConfig(
                text=co_attention(), image=co_attention(), text_depth=1, image_depth=0
            ),
            ConnectionConfig(
                text=co_attention(), image=co_attention(), text_depth=2, image_depth=1
            ),
        ),
        fusion=Activation.RELU,
    ),
    head=CLASSIFIER,
)


def checkpoint(config: ModelConfig, name: str, seed: int = 0) -> Checkpoint:
    """A random model of ``config``, which classifies or embeds."""
    embeds = config.head.kind == HeadKind.EMBEDDING
    return Checkpoint(
        config=config,
        weights=random_weights(config, seed),
        tokenizer_json=tokenizer_json() if config.reads_texts else NO_TOKENIZER,
        architecture=name,
        tasks=(Task.EMBED if embeds else Task.CLASSIFY,),
        special_tokens=SpecialTokens(),
        license="Apache-2.0",
        name=f"random-{name}",
        labels=() if embeds else tuple("abc"),
        embedding=Embedding(size=HIDDEN_SIZE, pooling=PoolingKind.CLS, is_normalized=True)
        if embeds
        else None,
        image=IMAGE,
        sample_inputs=("HELLO", "A?", "WHAT+IS-THIS") if config.reads_texts else (),
    )


CHECKPOINTS = {
    "vit": lambda: checkpoint(VIT, "vit"),
    "vit-embed": lambda: checkpoint(msgspec.structs.replace(VIT, head=_EMBEDDING), "vit-embed"),
    "vilbert": lambda: checkpoint(VILBERT, "vilbert"),
}
