"""A small trainer: teacher forcing, with the schedule of Vaswani et al. 2017, section 5.

For models that train in seconds on a CPU.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from model.config import Kind, ModelConfig
from model.initialise import random_weights
from model.kernels import Step
from model.transformer import Transformer

IGNORED = -100  # a target that is not part of the loss


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """``learning_rate`` is the peak, reached after ``warmup_steps``.

    The result is the mean of the weights of the last ``num_averaged_steps`` steps (section 6.1
    averages the last checkpoints).
    """

    num_steps: int
    learning_rate: float = 2e-3
    warmup_steps: int = 200
    label_smoothing: float = 0.1  # Szegedy et al. 2016
    max_gradient_norm: float = 1.0
    num_averaged_steps: int = 1
    seed: int = 0


@dataclass(frozen=True)
class TrainingBatch:
    """Right-padded inputs and their targets.

    Attributes:
        inputs: ``[batch, length]``, input ids of an encoder or a decoder.
        lengths: ``[batch]``, valid ids of each row.
        targets: ``[batch]`` labels, or ``[batch, length]`` next ids, :data:`IGNORED` where the
            loss leaves a position out.
        sources: ``[batch, source_length]``, of an encoder-decoder.
        source_lengths: ``[batch]``
    """

    inputs: Tensor
    lengths: Tensor
    targets: Tensor
    sources: Tensor | None = None
    source_lengths: Tensor | None = None


def pad_rows(rows: list[list[int]], value: int = 0) -> Tensor:
    """Rows of ids as ``[batch, longest]``, right-padded with ``value``."""
    tensors = [torch.tensor(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)


def _lengths(rows: list[list[int]]) -> Tensor:
    return torch.tensor([len(row) for row in rows], dtype=torch.int32)


def classification_batch(rows: list[list[int]], labels: list[int]) -> TrainingBatch:
    """Rows of ids and their labels."""
    return TrainingBatch(pad_rows(rows), _lengths(rows), torch.tensor(labels))


def causal_lm_batch(
    rows: list[list[int]], prompt_lengths: list[int] | None = None
) -> TrainingBatch:
    """Rows in which each id is predicted from those before it.

    Args:
        prompt_lengths: ids at the start of each row that are not part of the loss (default: 1).
    """
    targets = [
        [*([IGNORED] * (length - 1)), *row[length:]]
        for row, length in zip(rows, prompt_lengths or [1] * len(rows), strict=True)
    ]
    inputs = [row[:-1] for row in rows]
    return TrainingBatch(pad_rows(inputs), _lengths(inputs), pad_rows(targets, IGNORED))


def translation_batch(
    sources: list[list[int]], targets: list[list[int]], start: int
) -> TrainingBatch:
    """Sources and their ``targets``, which end with EOS.

    The decoder's inputs are the targets shifted right, after the id ``start``.
    """
    inputs = [[start, *target[:-1]] for target in targets]
    return TrainingBatch(
        pad_rows(inputs),
        _lengths(inputs),
        pad_rows(targets, IGNORED),
        pad_rows(sources),
        _lengths(sources),
    )


def learning_rate_factor(step: int, warmup_steps: int) -> float:
    """Linear warm-up, then inverse square root decay, as a fraction of the peak.

    Vaswani et al. 2017, equation 3; ``step`` starts at 1.
    """
    return min(step / warmup_steps, math.sqrt(warmup_steps / step))


def _encoder_logits(model: Transformer, batch: TrainingBatch) -> Tensor:
    return model.pool(model.encode(batch.inputs, batch.lengths), batch.lengths)


def _decoder_logits(model: Transformer, batch: TrainingBatch) -> Tensor:
    return model.logits(model.decode(batch.inputs, Step.whole(batch.lengths)).hidden)


def _encoder_decoder_logits(model: Transformer, batch: TrainingBatch) -> Tensor:
    if batch.sources is None or batch.source_lengths is None:
        raise ValueError("an encoder-decoder needs batches with sources")
    states = model.cross_attention_kv(model.encode(batch.sources, batch.source_lengths))
    step = Step.whole(batch.lengths, batch.source_lengths)
    return model.logits(model.decode(batch.inputs, step, states).hidden)


LOGITS: dict[Kind, Callable[[Transformer, TrainingBatch], Tensor]] = {
    Kind.ENCODER: _encoder_logits,
    Kind.DECODER: _decoder_logits,
    Kind.ENCODER_DECODER: _encoder_decoder_logits,
}


def compute_loss(model: Transformer, batch: TrainingBatch, label_smoothing: float) -> Tensor:
    """Mean cross-entropy over all targets but :data:`IGNORED`."""
    logits = LOGITS[model.config.kind](model, batch)
    return functional.cross_entropy(
        logits.flatten(0, -2),
        batch.targets.flatten(),
        ignore_index=IGNORED,
        label_smoothing=label_smoothing,
    )


def train(
    config: ModelConfig,
    batches: Iterable[TrainingBatch],
    training: TrainingConfig,
    report: Callable[[int, float], None] | None = None,
) -> dict[str, Tensor]:
    """Trains a new model of ``config``, one batch per step, and returns its weights.

    On the same machine, the same ``batches`` and ``training`` give the same weights.

    Args:
        batches: at least ``training.num_steps``.
        report: called after each step with the step's number, from 1, and its loss.

    Raises:
        ValueError: fewer batches than steps.
    """
    model = Transformer(config)
    model.load_state_dict(random_weights(config, training.seed))
    optimizer = torch.optim.Adam(
        model.parameters(), lr=training.learning_rate, betas=(0.9, 0.98), eps=1e-9
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step + 1, training.warmup_steps)
    )
    averaged = torch.optim.swa_utils.AveragedModel(model)
    step = 0
    for step, batch in enumerate(batches, 1):
        loss = compute_loss(model, batch, training.label_smoothing)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_gradient_norm)
        optimizer.step()
        schedule.step()
        if step > training.num_steps - training.num_averaged_steps:
            averaged.update_parameters(model)
        if report is not None:
            report(step, loss.item())
        if step == training.num_steps:
            break
    if step < training.num_steps:
        raise ValueError(f"{step} batches for {training.num_steps} steps")
    weights = averaged.module.state_dict()
    return {name: weight.detach().clone() for name, weight in weights.items()}
