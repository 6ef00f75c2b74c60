"""A small GRU encoder-decoder with additive attention, trained once and kept in build/."""

from export.checkpoint import Checkpoint
from model.bundle import SpecialTokens, Task
from model.config import EmbeddingConfig, HeadConfig, HeadKind, Kind, ModelConfig
from model.position_config import PositionConfig, PositionKind
from model.recurrent_config import AlignmentConfig, AlignmentKind, CellKind, RecurrentConfig
from tests.tiny import date_batches, held_out_dates
from tests.tiny_training import (
    BOS,
    EOS,
    PAD,
    UNKNOWN,
    VOCABULARY_SIZE,
    character_tokenizer,
    trained,
)
from train.recipe import TrainingRecipe

NAME, INT8_NAME = "tiny-gru", "tiny-gru-int8"
SIZE = 64
CONFIG = ModelConfig(
    kind=Kind.ENCODER_DECODER,
    vocabulary_size=VOCABULARY_SIZE,
    hidden_size=SIZE,
    position=PositionConfig(kind=PositionKind.NONE, max_positions=256),
    embedding=EmbeddingConfig(),
    recurrent=RecurrentConfig(
        cell=CellKind.GRU,
        encoder_size=SIZE // 2,
        decoder_size=SIZE,
        bidirectional=True,
        alignment=AlignmentConfig(kind=AlignmentKind.ADDITIVE, size=SIZE, from_previous=True),
    ),
    head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, bias=True),
)


def recurrent_dates(name: str = NAME) -> Checkpoint:
    """Written dates to ISO dates (Bahdanau et al. 2015), as a text-to-text model."""
    training = TrainingRecipe(num_steps=700, learning_rate=3e-3, warmup_steps=80)
    return Checkpoint(
        config=CONFIG,
        weights=trained("gru-dates", CONFIG, date_batches, training, 50),
        tokenizer_json=character_tokenizer(begins=False, ends=True).to_str(),
        architecture="GRU encoder-decoder",
        tasks=(Task.GENERATE,),
        special_tokens=SpecialTokens(
            eos=(EOS,), pad=PAD, unk=UNKNOWN, decoder_start=PAD, suppressed=(PAD, UNKNOWN, BOS)
        ),
        license="Apache-2.0",
        name=name,
        max_length_factor=3.0,
        sample_inputs=tuple(text for text, _ in held_out_dates()[:6]),
    )
