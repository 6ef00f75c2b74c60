"""A small random model that writes texts about images."""

import msgspec

from export.checkpoint import Checkpoint
from model.bundle import SpecialTokens, Task
from model.config import (
    Activation,
    EmbeddingConfig,
    HeadConfig,
    HeadKind,
    Kind,
    ModelConfig,
    NormOrder,
    StackConfig,
)
from model.position_config import PositionConfig, PositionKind
from tests.architectures import (
    HIDDEN_SIZE,
    VOCABULARY_SIZE,
    attention,
    random_weights,
    stack,
    tokenizer_json,
)
from tests.image_models import IMAGE, PATCHES

IMAGE_SIZE = 32  # of the encoder's vectors
START, EOS = 0, 1
MAX_LENGTH = 96


def _decoder() -> StackConfig:
    written = stack(order=NormOrder.PRE, activation=Activation.GELU)
    cross = msgspec.structs.replace(attention(), source_size=IMAGE_SIZE)
    layers = tuple(msgspec.structs.replace(x, cross_attention=cross) for x in written.layers)
    return msgspec.structs.replace(written, layers=layers)


CAPTIONER = ModelConfig(
    kind=Kind.ENCODER_DECODER,
    vocabulary_size=VOCABULARY_SIZE,
    hidden_size=HIDDEN_SIZE,
    position=PositionConfig(kind=PositionKind.LEARNED, max_positions=MAX_LENGTH),
    embedding=EmbeddingConfig(),
    encoder=stack(order=NormOrder.PRE, activation=Activation.GELU),
    decoder=_decoder(),
    patches=PATCHES,
    head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, tied=True),
)


def checkpoint(seed: int = 0, strength: float = 3.0) -> Checkpoint:
    """A random model of :data:`CAPTIONER`.

    ``strength``: multiplies the weights that read the image; with the default, texts depend on it.
    """
    weights = random_weights(CAPTIONER, seed)
    for name, weight in weights.items():
        if name.startswith("images.") or "cross_attention" in name:
            weights[name] = strength * weight
    return Checkpoint(
        config=CAPTIONER,
        weights=weights,
        tokenizer_json=tokenizer_json(),
        architecture="captioner",
        tasks=(Task.GENERATE,),
        special_tokens=SpecialTokens(eos=(EOS,), decoder_start=START),
        license="Apache-2.0",
        name="captioner",
        image=IMAGE,
    )
