"""A small trainer: teacher forcing, and the recipe of Vaswani et al. 2017, section 5.

Meant for models that learn in seconds on a CPU.
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

IGNORED = -100  # a target that does not count


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """``learning_rate`` is the highest, reached after ``warmup_steps``.

    The result is the mean of the weights after each of the last ``num_averaged_steps``, as
    section 6.1 averages its last checkpoints.
    """

    num_steps: int
    learning_rate: float = 2e-3
    warmup_steps: int = 200
    label_smoothing: float = 0.1  # Szegedy et al. 2016
    max_gradient_norm: float = 1.0
    num_averaged_steps: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Batch:
    """Right-padded rows and what to predict.

    ``inputs [batch, length]``, of which each row's first ``lengths [batch]`` count, are the
    ids of an encoder, or those that a decoder is fed. ``targets`` are ``[batch]`` labels, or
    ``[batch, length]`` next ids; :data:`IGNORED` where nothing is asked. ``sources`` and
    ``source_lengths`` are those of an encoder-decoder.
    """

    inputs: Tensor
    lengths: Tensor
    targets: Tensor
    sources: Tensor | None = None
    source_lengths: Tensor | None = None


def pad(rows: list[list[int]], value: int = 0) -> Tensor:
    """Rows of ids as ``[batch, longest]``, right-padded with ``value``."""
    tensors = [torch.tensor(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)


def _lengths(rows: list[list[int]]) -> Tensor:
    return torch.tensor([len(row) for row in rows], dtype=torch.int32)


def classification_batch(rows: list[list[int]], labels: list[int]) -> Batch:
    """Rows of ids, and the label of each."""
    return Batch(pad(rows), _lengths(rows), torch.tensor(labels))


def language_batch(rows: list[list[int]], num_given: list[int] | None = None) -> Batch:
    """Each id is to be predicted from those before it.

    Args:
        num_given: how many ids at the start of each row are given and not asked for
            (default: the first one).
    """
    targets = [
        [*([IGNORED] * (given - 1)), *row[given:]]
        for row, given in zip(rows, num_given or [1] * len(rows), strict=True)
    ]
    fed = [row[:-1] for row in rows]
    return Batch(pad(fed), _lengths(fed), pad(targets, IGNORED))


def translation_batch(sources: list[list[int]], rows: list[list[int]], start: int) -> Batch:
    """Targets, which end with EOS, are fed behind ``start``, one place late."""
    fed = [[start, *row[:-1]] for row in rows]
    targets = pad(rows, IGNORED)
    return Batch(pad(fed), _lengths(fed), targets, pad(sources), _lengths(sources))


def rate_factor(step: int, warmup_steps: int) -> float:
    """Linear warm-up, then the inverse square root of the step, as a fraction of the highest.

    Vaswani et al. 2017, equation 3; ``step`` begins with 1.
    """
    return min(step / warmup_steps, math.sqrt(warmup_steps / step))


def _encoder_logits(model: Transformer, batch: Batch) -> Tensor:
    return model.pool(model.encode(batch.inputs, batch.lengths), batch.lengths)


def _decoder_logits(model: Transformer, batch: Batch) -> Tensor:
    return model.logits(model.decode(batch.inputs, Step.whole(batch.lengths)).hidden)


def _encoder_decoder_logits(model: Transformer, batch: Batch) -> Tensor:
    if batch.sources is None or batch.source_lengths is None:
        raise ValueError("an encoder-decoder learns from batches with sources")
    states = model.remember(model.encode(batch.sources, batch.source_lengths))
    step = Step.whole(batch.lengths, batch.source_lengths)
    return model.logits(model.decode(batch.inputs, step, states).hidden)


LOGITS: dict[Kind, Callable[[Transformer, Batch], Tensor]] = {
    Kind.ENCODER: _encoder_logits,
    Kind.DECODER: _decoder_logits,
    Kind.ENCODER_DECODER: _encoder_decoder_logits,
}


def loss_of(model: Transformer, batch: Batch, label_smoothing: float) -> Tensor:
    """Mean cross-entropy over the targets that count."""
    logits = LOGITS[model.config.kind](model, batch)
    return functional.cross_entropy(
        logits.flatten(0, -2),
        batch.targets.flatten(),
        ignore_index=IGNORED,
        label_smoothing=label_smoothing,
    )


def train(
    config: ModelConfig,
    batches: Iterable[Batch],
    recipe: Recipe,
    report: Callable[[int, float], None] | None = None,
) -> dict[str, Tensor]:
    """Trains a new model of ``config`` on one batch a step, and returns its weights.

    The same ``batches`` and ``recipe`` on the same machine give the same weights.

    Args:
        batches: at least ``recipe.num_steps``.
        report: is told the step (from 1) and its loss.

    Raises:
        ValueError: ``batches`` ran out.
    """
    model = Transformer(config)
    model.load_state_dict(random_weights(config, recipe.seed))
    optimizer = torch.optim.Adam(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), eps=1e-9
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: rate_factor(done + 1, recipe.warmup_steps)
    )
    averaged = torch.optim.swa_utils.AveragedModel(model)
    num_done = 0
    for num_done, batch in enumerate(batches, 1):
        loss = loss_of(model, batch, recipe.label_smoothing)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_gradient_norm)
        optimizer.step()
        schedule.step()
        if num_done > recipe.num_steps - recipe.num_averaged_steps:
            averaged.update_parameters(model)
        if report is not None:
            report(num_done, loss.item())
        if num_done == recipe.num_steps:
            break
    if num_done < recipe.num_steps:
        raise ValueError(f"{num_done} batches for {recipe.num_steps} steps")
    weights = averaged.module.state_dict()
    return {name: weight.detach().clone() for name, weight in weights.items()}
