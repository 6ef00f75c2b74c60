"""The training loop: from batches to checkpoints, resumable from each of them."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from train.batches import BatchOrder, Row, TrainingBatch, make_batch, share_of
from train.errors import TrainingError
from train.log import CsvLog
from train.objectives import TrainingModule
from train.preparation import Preparation
from train.recipe import TrainingRecipe
from train.report import TrainingReport
from train.state import Progress, StateFolder, Weights, mean_weights
from train.steps import Optimization, barrier, num_processes, random_states


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The tokenized data. ``num_dropped``: rows for training that were too long."""

    train: list[Row]
    validation: list[Row]
    num_dropped: int = 0


@dataclass(frozen=True, kw_only=True)
class Result:
    """The weights of a finished training, and its course.

    ``averaged_steps``: steps of the checkpoints whose weights were averaged.
    """

    weights: Weights
    validation_loss: float
    averaged_steps: tuple[int, ...]
    progress: Progress


class Trainer:
    """One training; with torchrun, one process of it.

    Args:
        preparation: prepares the rows of each epoch: masked language models mask them anew.
    """

    def __init__(
        self,
        optimization: Optimization,
        rows: Rows,
        seed: int,
        state: StateFolder,
        log: Path,
        preparation: Preparation,
    ) -> None:
        self._optimization = optimization
        self._module: TrainingModule = optimization.module
        self._recipe: TrainingRecipe = optimization.recipe
        self._rows, self._seed, self._state, self._preparation = rows, seed, state, preparation
        self._log_folder = log
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self._validation = self._validation_batches()

    def run(self, report: TrainingReport) -> Result:
        """Trains until the last step or until validations stop improving."""
        progress = self._resume(report)
        is_first = self._rank == 0
        log = CsvLog(self._log_folder, progress.step) if is_first else None
        recipe, started = self._recipe, time.monotonic()
        earlier_seconds = progress.seconds
        earlier_cpu_seconds = progress.cpu_seconds - time.process_time()
        batches = self._batches(progress)
        window_tokens, window_started, window_loss, window_steps = 0, started, 0.0, 0
        while progress.step < recipe.num_steps and not self._is_over(progress):
            learning_rate = self._optimization.learning_rate
            result = self._optimization.step([next(batches) for _ in range(recipe.accumulation)])
            progress.step += 1
            progress.num_tokens += result.num_tokens
            window_tokens += result.num_tokens
            window_loss, window_steps = window_loss + result.loss, window_steps + 1
            now = time.monotonic()
            rate = window_tokens / max(now - window_started, 1e-9)
            is_logged = progress.step % recipe.log_every == 0 or progress.step == recipe.num_steps
            report.step(progress.step, result.loss, rate, is_logged=is_logged)
            is_checkpoint = (
                progress.step % recipe.validate_every == 0 or progress.step == recipe.num_steps
            )
            validation_loss: float | None = None
            progress.seconds = earlier_seconds + now - started
            progress.cpu_seconds = earlier_cpu_seconds + time.process_time()
            if is_checkpoint:
                validation_loss = self._validate(progress)
            if log is not None and (is_logged or is_checkpoint):
                log.write(
                    step=str(progress.step),
                    loss=window_loss / window_steps,
                    validation_loss="" if validation_loss is None else validation_loss,
                    learning_rate=learning_rate,
                    gradient_norm=result.gradient_norm,
                    target_tokens=str(progress.num_tokens),
                    tokens_per_second=rate,
                    seconds=progress.seconds,
                    ponder_time=result.ponder_time,
                )
            if is_checkpoint:  # after logging: a resumed run drops later rows of the log
                self._save(progress, report)
            if is_logged or is_checkpoint:
                window_tokens, window_started = 0, time.monotonic()
                window_loss, window_steps = 0.0, 0
        return self._result(progress)

    def _is_over(self, progress: Progress) -> bool:
        return bool(self._recipe.patience) and progress.num_bad >= self._recipe.patience

    def _batches(self, progress: Progress) -> Iterator[TrainingBatch]:
        """This process's share of every batch from ``progress`` on, which it updates."""
        prepare, tokens = self._preparation, self._recipe.batch_tokens * num_processes()
        while True:
            order = BatchOrder(prepare.lengths(progress.epoch), tokens, self._seed)
            epoch = order.epoch(progress.epoch)
            while progress.batch < len(epoch):
                indices = epoch[progress.batch]
                progress.batch += 1
                own = share_of(indices, self._rank, num_processes())
                rows = [prepare.row(index, progress.epoch) for index in own or indices[:1]]
                yield make_batch(rows, is_filler=not own)
            progress.epoch, progress.batch = progress.epoch + 1, 0

    def _validation_batches(self) -> list[TrainingBatch]:
        lengths = [row.length for row in self._rows.validation]
        order = BatchOrder(lengths, self._recipe.batch_tokens, 0)
        batches = share_of(list(range(len(order.epoch(0)))), self._rank, num_processes())
        epoch = order.epoch(0)
        return [make_batch([self._rows.validation[i] for i in epoch[index]]) for index in batches]

    def _validate(self, progress: Progress) -> float:
        """The validation loss, which is also stored in ``progress``.

        Raises:
            TrainingError: the loss is not a finite number.
        """
        loss = self._optimization.validation_loss(self._validation)
        if not math.isfinite(loss):
            raise TrainingError(
                f"step {progress.step}: the validation loss is {loss}; training.learning_rate may "
                "be too high"
            )
        progress.validations.append((progress.step, loss))
        if loss < progress.best_loss:
            progress.best_loss, progress.best_step, progress.num_bad = loss, progress.step, 0
        else:
            progress.num_bad += 1
        return loss

    def _save(self, progress: Progress, report: TrainingReport) -> None:
        """Saves everything that further steps depend on."""
        states = random_states()
        if self._rank == 0:
            weights = self._trained()
            self._state.save_weights(progress.step, weights)
            state = {
                "random_states": states,
                "module": weights,
                "optimizer": self._optimization.optimizer.state_dict(),
            }
            self._state.save(progress, state)
            # Only now: a state refers to the weights of its steps.
            kept = {step for step, _ in progress.validations[-self._recipe.num_averaged :]}
            self._state.remove_weights({*kept, progress.best_step})
        barrier()
        step, loss = progress.validations[-1]
        report.say(f"step {step}: saved, validation loss {loss:.4f}")

    def _resume(self, report: TrainingReport) -> Progress:
        if not self._state.exists:
            return Progress()
        progress, record = self._state.load()
        torch.set_rng_state(record["random_states"][self._rank])
        self._load(record["module"])
        optimizer: dict[str, Any] = record["optimizer"]
        self._optimization.optimizer.load_state_dict(optimizer)
        self._optimization.num_steps = progress.step
        report.say(f"resumed at step {progress.step}")
        return progress

    def _trained(self) -> Weights:
        """Copies of the weights, without those that an adapter leaves as they are."""
        frozen = {name for name, x in self._module.named_parameters() if not x.requires_grad}
        return {
            name: weight.detach().clone()
            for name, weight in self._module.state_dict().items()
            if name not in frozen
        }

    def _load(self, weights: Weights) -> None:
        self._module.load_state_dict({**self._module.state_dict(), **weights})

    def _result(self, progress: Progress) -> Result:
        """The mean of the last checkpoints, or the best checkpoint if that is better."""
        steps = tuple(step for step, _ in progress.validations[-self._recipe.num_averaged :])
        candidates = {steps: mean_weights([self._state.weights(step) for step in steps])}
        best = (progress.best_step,)
        candidates.setdefault(best, self._state.weights(progress.best_step))
        losses = {}
        for chosen, weights in candidates.items():
            self._load(weights)
            losses[chosen] = self._optimization.validation_loss(self._validation)
        chosen = min(losses, key=losses.__getitem__)
        return Result(
            weights=_of_model(candidates[chosen]),
            validation_loss=losses[chosen],
            averaged_steps=chosen,
            progress=progress,
        )


def _of_model(weights: Weights) -> Weights:
    """The weights of a module's model, which leave out a second head."""
    prefix = "model."
    return {
        name.removeprefix(prefix): weight
        for name, weight in weights.items()
        if name.startswith(prefix)
    }


def seed_everything(seed: int, rank: int) -> None:
    """Seeds dropout per process; data and initial weights have generators of their own."""
    torch.manual_seed(seed * 1000 + rank)
