"""Objectives: from a batch to its loss."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.adaptive import record_ponder
from model.config import Kind
from model.heads import LanguageModelHead
from model.kernels import Step
from model.transformer import Transformer
from train.batches import IGNORED, TrainingBatch
from train.recipe import ObjectiveKind
from train.regularization import TrainingKernels, ponder_time

# A bias that no logit makes up for.
NEVER = -1e6

# Objectives with one target per vector of logits.
SINGLE_TARGETS = (
    ObjectiveKind.CLASSIFICATION,
    ObjectiveKind.TOKEN_CLASSIFICATION,
    ObjectiveKind.RELEVANCE,
)


class TrainingModule(nn.Module):
    """The model and its losses. ``next_sentence``: BERT's second head, not part of the bundle.

    Attributes:
        num_steps: steps that the optimizer has taken, for losses with a schedule.
    """

    def __init__(
        self,
        model: Transformer,
        kernels: TrainingKernels,
        objective: ObjectiveKind,
        *,
        next_sentence: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.kernels, self.objective = model, kernels, objective
        self.num_steps = 0
        self.next_sentence: nn.Module | None = None
        if next_sentence:
            size = model.config.hidden_size
            self.next_sentence = nn.Sequential(nn.Linear(size, size), nn.Tanh(), nn.Linear(size, 2))

    def train(self, mode: bool = True) -> "TrainingModule":
        """Switches dropout on or off."""
        self.kernels.is_training = mode
        return super().train(mode)

    def forward(self, batch: TrainingBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
        """The losses of targets and of next sentences, and the regularization terms.

        Returns:
            sums of the two losses ``[2]``; the balancing loss and the ponder time ``[2]``
        """
        self.kernels.balancing_losses.clear()
        with record_ponder(self.model) as ponders:
            hidden = self._hidden(batch)
        logits, targets = self._logits(hidden, batch)
        if self.objective == ObjectiveKind.RELEVANCE:
            total = _sum_of_binary_losses(logits, targets)
        else:
            total = _sum_of_losses(logits, targets, label_smoothing, _possible(self.model.head))
        follows = torch.zeros(())
        if self.next_sentence is not None and batch.follows is not None:
            follows = _sum_of_losses(self.next_sentence(hidden[:, 0]), batch.follows, 0.0)
        losses = self.kernels.balancing_losses
        balancing = torch.stack(losses).mean() if losses else torch.zeros(())
        return torch.stack([total, follows]), torch.stack([balancing, ponder_time(ponders)])

    def _hidden(self, batch: TrainingBatch) -> Tensor:
        model = self.model
        if model.config.kind == Kind.ENCODER:
            self.kernels.begin(batch.lengths, batch.inputs.shape[1])
            if batch.pixels is not None and model.image_stream is not None:
                return model.encode_pairs(batch.inputs, batch.lengths, batch.pixels, batch.segments)
            if batch.pixels is not None:
                return model.encode_images(batch.pixels)
            return model.encode(batch.inputs, batch.lengths, batch.segments)
        states, step = None, Step.whole(batch.lengths)
        if batch.pixels is not None and model.config.patches is not None:
            source_lengths = torch.full_like(batch.lengths, model.config.patches.num_tokens)
            self.kernels.begin(source_lengths, model.config.patches.num_tokens)
            states = model.encode_image_source(batch.pixels)
            step = Step.whole(batch.lengths, source_lengths)
        if batch.sources is not None and batch.source_lengths is not None:
            self.kernels.begin(batch.source_lengths, batch.sources.shape[1])
            states = model.encode_source(batch.sources, batch.source_lengths)
            step = Step.whole(batch.lengths, batch.source_lengths)
        self.kernels.begin(batch.lengths, batch.inputs.shape[1])
        return model.decode(batch.inputs, step, states).hidden

    def _logits(self, hidden: Tensor, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        """Logits ``[n, classes]`` and their targets ``[n]``."""
        objective, targets = self.objective, batch.targets
        if objective in SINGLE_TARGETS:
            logits = self.model.pool(hidden, batch.lengths)
            return logits.flatten(0, -2), targets.flatten()
        if objective == ObjectiveKind.SPAN:
            logits = self.model.pool(hidden, batch.lengths).transpose(1, 2)  # [batch, 2, length]
            is_padding = torch.arange(logits.shape[2]) >= batch.lengths[:, None, None]
            return logits.masked_fill(is_padding, -1e4).flatten(0, 1), targets.flatten()
        chosen = targets != IGNORED  # computes the logits of the whole vocabulary for these only
        return self.model.logits(hidden[chosen]), targets[chosen]


def _possible(head: nn.Module) -> Tensor | None:
    """Which tokens ``[vocabulary]`` the head's bias does not rule out, as it does Marian's start.

    None if it rules out none.
    """
    if not isinstance(head, LanguageModelHead) or head.output.bias is None:
        return None
    possible = head.output.bias > NEVER
    return None if possible.all() else possible


def _sum_of_losses(
    logits: Tensor, targets: Tensor, label_smoothing: float, possible: Tensor | None = None
) -> Tensor:
    """Summed cross-entropy; label smoothing is over the classes that are ``possible``."""
    logits = logits.float()
    if not label_smoothing or possible is None:
        return functional.cross_entropy(
            logits,
            targets,
            ignore_index=IGNORED,
            label_smoothing=label_smoothing,
            reduction="sum",
        )
    scores = logits.log_softmax(-1)
    right = functional.nll_loss(scores, targets, ignore_index=IGNORED, reduction="sum")
    every = -scores[targets != IGNORED].where(possible, 0).sum() / possible.sum()
    return (1 - label_smoothing) * right + label_smoothing * every


def _sum_of_binary_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Summed cross-entropy of ``logits [n, 1]``; ``targets [n]`` are 0, 1 or :data:`IGNORED`."""
    chosen = targets != IGNORED
    return functional.binary_cross_entropy_with_logits(
        logits[chosen, 0].float(), targets[chosen].float(), reduction="sum"
    )
