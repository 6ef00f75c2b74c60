"""Exports a Transformer-base with random weights, to measure translation without a trained model.

    python -m scripts.transformer_base --out DIR/NAME --precision int8

The sizes are those of Vaswani et al. 2017, table 3, "base", with a shared vocabulary of 32,000:
6 + 6 layers, hidden size 512, 8 heads, feed-forward size 2,048. The tokenizer's words are ``w2`` to
``w31999``.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer
from tokenizers import Tokenizer, models, pre_tokenizers

from export.bundle_writer import write_bundle
from export.checkpoint import Checkpoint
from model import initialise
from model.bundle import Precision, SpecialTokens, Task
from model.config import (
    Activation,
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    HeadKind,
    Kind,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormKind,
    NormOrder,
    StackConfig,
)
from model.position_config import PositionConfig, PositionKind

VOCABULARY = 32_000
HIDDEN = 512


def config() -> ModelConfig:
    """The configuration of the base model, with post-norm as in the paper."""
    attention = AttentionConfig(
        num_heads=8, num_kv_heads=8, head_size=HIDDEN // 8, input_bias=True, output_bias=True
    )

    def layer(*, cross: bool) -> LayerConfig:
        return LayerConfig(
            attention=attention,
            cross_attention=attention if cross else None,
            feed_forward=FeedForwardConfig(
                inner_size=4 * HIDDEN, activation=Activation.RELU, gated=False, bias=True
            ),
            norm=NormConfig(kind=NormKind.LAYER, epsilon=1e-5),
            norm_order=NormOrder.POST,
        )

    return ModelConfig(
        kind=Kind.ENCODER_DECODER,
        vocabulary_size=VOCABULARY,
        hidden_size=HIDDEN,
        position=PositionConfig(kind=PositionKind.SINUSOIDAL, max_positions=512),
        embedding=EmbeddingConfig(scale=HIDDEN**0.5),
        encoder=StackConfig(layers=(layer(cross=False),) * 6),
        decoder=StackConfig(layers=(layer(cross=True),) * 6),
        head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, bias=True, tied=True),
    )


def checkpoint() -> Checkpoint:
    """The model with random weights from a fixed seed."""
    words = ["</s>", "<unk>", *(f"w{index}" for index in range(2, VOCABULARY))]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    generator = torch.Generator().manual_seed(0)
    samples = torch.randint(2, VOCABULARY, (5, 12), generator=generator).tolist()
    return Checkpoint(
        config=config(),
        weights=initialise.random_weights(config(), 0),
        tokenizer_json=tokenizer.to_str(),
        architecture="TransformerBase",
        tasks=(Task.TRANSLATE,),
        special_tokens=SpecialTokens(eos=(0,), pad=0, unk=1, decoder_start=0, suppressed=(1,)),
        license="Apache-2.0",
        name="transformer-base",
        max_length_factor=2.0,
        sample_inputs=tuple(" ".join(f"w{id_}" for id_ in row) for row in samples),
    )


def main(
    out: Annotated[Path, typer.Option(metavar="DIR/NAME")],
    precision: Precision = Precision.INT8,
) -> None:
    """Writes the bundle."""
    print(write_bundle(checkpoint(), out.parent.absolute(), name=out.name, precision=precision))


if __name__ == "__main__":
    typer.run(main)
