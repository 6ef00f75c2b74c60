"""Three small models that learn something real in seconds, trained once and kept in build/."""

import random
from collections.abc import Callable, Iterator
from datetime import date, timedelta

from export.checkpoint import Checkpoint
from model.bundle import SpecialTokens, Task
from model.config import (
    Activation,
    AttentionConfig,
    DenseConfig,
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
    PoolingKind,
    StackConfig,
)
from model.position_config import PositionConfig, PositionKind, RotaryConfig
from tests.tiny_training import (
    BATCH_SIZE,
    BOS,
    EOS,
    PAD,
    UNKNOWN,
    VOCABULARY_SIZE,
    character_tokenizer,
    trained,
)
from train.batches import IGNORED, Row, TrainingBatch, make_batch
from train.recipe import TrainingRecipe


def _attention(size: int, num_kv_heads: int = 4) -> AttentionConfig:
    return AttentionConfig(
        num_heads=4,
        num_kv_heads=num_kv_heads,
        head_size=size // 4,
        input_bias=True,
        output_bias=True,
    )


NORM = NormConfig(kind=NormKind.LAYER, epsilon=1e-5)


def _stack(size: int, num_layers: int, *, cross: bool = False) -> StackConfig:
    layer = LayerConfig(
        attention=_attention(size),
        cross_attention=_attention(size) if cross else None,
        feed_forward=FeedForwardConfig(
            inner_size=2 * size, activation=Activation.RELU, gated=False, bias=True
        ),
        norm=NORM,
        norm_order=NormOrder.PRE,
    )
    return StackConfig(layers=(layer,) * num_layers, final_norm=NORM)


# --- dates: an encoder-decoder -------------------------------------------------------------

DATES_SIZE = 64
DATES = ModelConfig(
    kind=Kind.ENCODER_DECODER,
    vocabulary_size=VOCABULARY_SIZE,
    hidden_size=DATES_SIZE,
    position=PositionConfig(kind=PositionKind.SINUSOIDAL, max_positions=128),
    embedding=EmbeddingConfig(scale=DATES_SIZE**0.5),
    encoder=_stack(DATES_SIZE, 2),
    decoder=_stack(DATES_SIZE, 2, cross=True),
    head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, tied=True),
)
FIRST_DAY, LAST_DAY = date(1970, 1, 1), date(2069, 12, 31)


def _ordinal(day: int) -> str:
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{'th' if 11 <= day <= 13 else suffix}"


DATE_FORMS: tuple[Callable[[date], str], ...] = (
    lambda d: f"{d.day} {d:%B %Y}",
    lambda d: f"{d:%B} {d.day}, {d.year}",
    lambda d: f"{d:%d/%m/%Y}",
    lambda d: f"{d:%a} {_ordinal(d.day)} of {d:%b '%y}",
    lambda d: f"{d:%A}, {d.day} {d:%b %Y}",
    lambda d: f"{d.day}.{d.month}.{d.year}",
    lambda d: f"{d:%Y%m%d}",
    lambda d: f"the {_ordinal(d.day)} of {d:%B}, {d.year}",
)


def _random_date(rng: random.Random) -> date:
    return FIRST_DAY + timedelta(days=rng.randrange((LAST_DAY - FIRST_DAY).days + 1))


def held_out_dates(count: int = 400) -> list[tuple[str, str]]:
    """Written dates and their ISO forms, of days that training never sees."""
    rng = random.Random(1)
    days: list[date] = []
    while len(days) < count:
        day = _random_date(rng)
        if _is_held_out(day):
            days.append(day)
    return [(rng.choice(DATE_FORMS)(day), day.isoformat()) for day in days]


def _is_held_out(day: date) -> bool:
    return day.toordinal() % 20 == 7


def date_batches() -> Iterator[TrainingBatch]:
    """Written dates and ISO dates, of days that are not held out."""
    rng = random.Random(0)
    tokenizer = character_tokenizer(begins=False, ends=True)
    while True:
        days = [_random_date(rng) for _ in range(2 * BATCH_SIZE)]
        days = [day for day in days if not _is_held_out(day)][:BATCH_SIZE]
        sources = [tokenizer.encode(rng.choice(DATE_FORMS)(day)).ids for day in days]
        targets = [tokenizer.encode(day.isoformat()).ids for day in days]
        yield make_batch(
            [
                Row(inputs=[PAD, *target[:-1]], targets=target, sources=source)
                for source, target in zip(sources, targets, strict=True)
            ]
        )


def dates() -> tuple[Checkpoint, list[tuple[str, str]]]:
    """A translator of written dates to ISO dates, and pairs it was not trained on."""
    training = TrainingRecipe(
        num_steps=1200, learning_rate=3e-3, warmup_steps=200, label_smoothing=0.1
    )
    held_out = held_out_dates()
    return Checkpoint(
        config=DATES,
        weights=trained("dates", DATES, date_batches, training, 150),
        tokenizer_json=character_tokenizer(begins=False, ends=True).to_str(),
        architecture="Transformer",
        tasks=(Task.TRANSLATE,),
        special_tokens=SpecialTokens(
            eos=(EOS,), pad=PAD, unk=UNKNOWN, decoder_start=PAD, suppressed=(PAD, UNKNOWN, BOS)
        ),
        license="Apache-2.0",
        name="dates",
        max_length_factor=3.0,
        sample_inputs=tuple(text for text, _ in held_out[:6]),
    ), held_out


# --- counting: a decoder -------------------------------------------------------------------

COUNTING_SIZE = 64
COUNTING_LAYER = LayerConfig(
    attention=AttentionConfig(
        num_heads=4,
        num_kv_heads=2,
        head_size=16,
        input_bias=False,
        output_bias=False,
        rotary=RotaryConfig(),
    ),
    feed_forward=FeedForwardConfig(
        inner_size=128, activation=Activation.SILU, gated=True, bias=False
    ),
    norm=NormConfig(kind=NormKind.RMS, epsilon=1e-5),
    norm_order=NormOrder.PRE,
)
COUNTING = ModelConfig(
    kind=Kind.DECODER,
    vocabulary_size=VOCABULARY_SIZE,
    hidden_size=COUNTING_SIZE,
    position=PositionConfig(kind=PositionKind.NONE, max_positions=256),
    embedding=EmbeddingConfig(),
    decoder=StackConfig(layers=(COUNTING_LAYER,) * 2, final_norm=COUNTING_LAYER.norm),
    head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, tied=True),
)


def counting_text(first: int) -> tuple[str, str]:
    """``first`` and what follows it: ``("7,", "8,9,10,11.")``."""
    return f"{first},", ",".join(str(first + k) for k in range(1, 5)) + "."


def counting_batches() -> Iterator[TrainingBatch]:
    """Numbers and those after them."""
    rng = random.Random(0)
    tokenizer = character_tokenizer(begins=True, ends=False)
    while True:
        texts = [counting_text(rng.randrange(200)) for _ in range(BATCH_SIZE)]
        prompts = [tokenizer.encode(prompt).ids for prompt, _ in texts]
        rows = [[*tokenizer.encode("".join(text)).ids, EOS] for text in texts]
        yield make_batch(
            [
                Row(
                    inputs=row[:-1],
                    targets=[*([IGNORED] * (len(prompt) - 1)), *row[len(prompt) :]],
                )
                for row, prompt in zip(rows, prompts, strict=True)
            ]
        )


def decoder() -> tuple[Checkpoint, list[tuple[str, str]]]:
    """A decoder that counts on, and what it says: after ``7,`` comes ``8,9,10,11.``."""
    training = TrainingRecipe(
        num_steps=500, learning_rate=5e-3, warmup_steps=100, label_smoothing=0.1
    )
    return Checkpoint(
        config=COUNTING,
        weights=trained("counting", COUNTING, counting_batches, training, 50),
        tokenizer_json=character_tokenizer(begins=True, ends=False).to_str(),
        architecture="Transformer",
        tasks=(Task.GENERATE,),
        special_tokens=SpecialTokens(eos=(EOS,), pad=PAD, bos=BOS, unk=UNKNOWN),
        license="Apache-2.0",
        name="tiny-decoder",
        sample_inputs=("7,", "98,", "113,"),
    ), [counting_text(first) for first in range(0, 200, 7)]


# --- digits or letters: an encoder ---------------------------------------------------------

MAJORITY_LABELS = ("digits", "letters")
MAJORITY_SIZE = 32
MAJORITY = ModelConfig(
    kind=Kind.ENCODER,
    vocabulary_size=VOCABULARY_SIZE,
    hidden_size=MAJORITY_SIZE,
    position=PositionConfig(kind=PositionKind.LEARNED, max_positions=64),
    embedding=EmbeddingConfig(norm=NORM),
    encoder=_stack(MAJORITY_SIZE, 2),
    head=HeadConfig(
        kind=HeadKind.CLASSIFICATION,
        pooling=PoolingKind.CLS,
        dense=(DenseConfig(size=MAJORITY_SIZE, activation=Activation.TANH),),
        bias=True,
        num_labels=len(MAJORITY_LABELS),
    ),
)


def majority_examples(seed: int, count: int) -> list[tuple[str, str]]:
    """Mixed digits and letters, and which of the two are more."""
    rng = random.Random(seed)
    examples = []
    for _ in range(count):
        size = rng.randrange(5, 30)
        share = rng.choice((0.25, 0.75))
        text = "".join(
            rng.choice("0123456789" if rng.random() < share else "abcdefghij") for _ in range(size)
        )
        num_digits = sum(character.isdigit() for character in text)
        if 2 * num_digits == size:
            text, num_digits = text + "0", num_digits + 1
        examples.append((text, MAJORITY_LABELS[2 * num_digits < len(text)]))
    return examples


def _majority_batches() -> Iterator[TrainingBatch]:
    tokenizer = character_tokenizer(begins=True, ends=True)
    for seed in range(1, 10**6):
        examples = majority_examples(seed, BATCH_SIZE)
        rows = [tokenizer.encode(text).ids for text, _ in examples]
        labels = [MAJORITY_LABELS.index(label) for _, label in examples]
        pairs = zip(rows, labels, strict=True)
        yield make_batch([Row(inputs=row, targets=[label]) for row, label in pairs])


def classifier() -> tuple[Checkpoint, list[tuple[str, str]]]:
    """Says whether a text has more digits or more letters; and texts with their labels."""
    training = TrainingRecipe(
        num_steps=200, learning_rate=2e-3, warmup_steps=50, label_smoothing=0.1
    )
    held_out = majority_examples(0, 200)
    return Checkpoint(
        config=MAJORITY,
        weights=trained("majority", MAJORITY, _majority_batches, training),
        tokenizer_json=character_tokenizer(begins=True, ends=True).to_str(),
        architecture="Transformer",
        tasks=(Task.CLASSIFY,),
        special_tokens=SpecialTokens(eos=(EOS,), pad=PAD, bos=BOS, unk=UNKNOWN),
        license="Apache-2.0",
        name="tiny-classifier",
        labels=MAJORITY_LABELS,
        sample_inputs=tuple(text for text, _ in held_out[:6]),
    ), held_out
