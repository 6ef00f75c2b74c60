"""One optimizer step over one or more batches, in one or more processes."""

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.batches import IGNORED, TrainingBatch, learning_rate_factor
from train.objectives import TrainingModule
from train.recipe import Precision, TrainingRecipe


@dataclass(frozen=True)
class StepResult:
    """The result of a step over all processes. ``loss``: mean over the ``num_tokens`` targets.

    ``ponder_time``: mean over this process's tokens; 0 without adaptive computation time.
    """

    loss: float
    num_tokens: int
    gradient_norm: float
    ponder_time: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PenaltyWeights:
    """Weights of the losses added to that of the targets: see :mod:`train.regularization`."""

    balancing: float = 0.0
    ponder: float = 0.0


NO_PENALTIES = PenaltyWeights()


def num_processes() -> int:
    """The number of processes; 1 without torchrun."""
    return dist.get_world_size() if dist.is_initialized() else 1


def all_sum(x: Tensor) -> Tensor:
    """The sum of ``x`` over all processes."""
    if dist.is_initialized():
        dist.all_reduce(x)
    return x


def random_states() -> list[Tensor]:
    """The random generator's state of each process."""
    own = torch.get_rng_state()
    states = [torch.empty_like(own) for _ in range(num_processes())]
    if dist.is_initialized():
        dist.all_gather(states, own)
        return states
    return [own]


def barrier() -> None:
    """Waits for all processes."""
    if dist.is_initialized():
        dist.barrier()


class Optimization:
    """The optimizer of a module. Each step is normalized by the targets of all its batches."""

    def __init__(
        self,
        module: TrainingModule,
        recipe: TrainingRecipe,
        weights: PenaltyWeights = NO_PENALTIES,
    ) -> None:
        self.module, self.recipe = module, recipe
        self.penalty_weights = torch.tensor([weights.balancing, weights.ponder])
        self.parallel: nn.Module = module
        if dist.is_initialized():
            self.parallel = nn.parallel.DistributedDataParallel(module)
        hidden_size = module.model.config.hidden_size
        self.peak = recipe.learning_rate or 1 / math.sqrt(hidden_size * recipe.warmup_steps)
        kind = torch.optim.AdamW if recipe.weight_decay else torch.optim.Adam
        self.optimizer = kind(
            [weight for weight in module.parameters() if weight.requires_grad],
            lr=self.peak,
            betas=(0.9, 0.98),
            eps=1e-9,
            weight_decay=recipe.weight_decay,
        )
        self.num_steps = 0

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return self.peak * learning_rate_factor(self.num_steps + 1, self.recipe.warmup_steps)

    def step(self, batches: Sequence[TrainingBatch]) -> StepResult:
        """Updates the weights with the gradient of all ``batches`` together."""
        self.module.train()
        self.module.num_steps = self.num_steps
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        counts = all_sum(sum_of_counts(batches)).clamp(min=1)
        self.optimizer.zero_grad()
        totals, penalties = torch.zeros(2), torch.zeros(2)
        for index, batch in enumerate(batches):
            with self._synchronised(is_last=index == len(batches) - 1):
                with self._autocast():
                    losses, added = self.parallel(batch, self.recipe.label_smoothing)
                # Processes average their gradients; this factor turns the mean into a sum.
                loss = (losses / counts).sum() * num_processes()
                (loss + (self.penalty_weights * added).sum() / len(batches)).backward()
            totals += losses.detach()
            penalties += added.detach() / len(batches)
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), self.recipe.max_gradient_norm)
        self.optimizer.step()
        self.num_steps += 1
        loss_value = float((all_sum(totals) / counts).sum())
        return StepResult(loss_value, int(counts[0]), float(norm), float(penalties[1]))

    def validation_loss(self, batches: Iterable[TrainingBatch]) -> float:
        """The mean loss over the targets, without label smoothing and dropout."""
        self.module.eval()
        totals, counts = torch.zeros(2), torch.zeros(2)
        with torch.no_grad(), self._autocast():
            for batch in batches:
                totals += self.module(batch, 0.0)[0]
                counts += sum_of_counts([batch])
        sums = all_sum(torch.stack([totals, counts]))
        return float((sums[0] / sums[1].clamp(min=1)).sum())

    def _autocast(self) -> torch.autocast:
        is_half = self.recipe.precision == Precision.BF16
        return torch.autocast("cpu", torch.bfloat16, enabled=is_half)

    def _synchronised(self, *, is_last: bool) -> contextlib.AbstractContextManager[None]:
        """Exchanges gradients once for several batches: with the last one."""
        if is_last or not isinstance(self.parallel, nn.parallel.DistributedDataParallel):
            return contextlib.nullcontext()
        no_sync: contextlib.AbstractContextManager[None] = self.parallel.no_sync()
        return no_sync


def sum_of_counts(batches: Sequence[TrainingBatch]) -> Tensor:
    """``[2]``: numbers of targets and of next sentences in ``batches``."""
    targets = sum(batch.num_tokens for batch in batches)
    follows = sum(
        int((batch.follows != IGNORED).sum()) for batch in batches if batch.follows is not None
    )
    return torch.tensor([float(targets), float(follows)])
