"""The progress of a training for the user: a progress bar, or lines in a log file."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)


class TrainingReport:
    """Loss, tokens per second and time left. Processes other than the first are silent."""

    def __init__(self, name: str, num_steps: int, *, is_quiet: bool) -> None:
        self._console = Console(
            stderr=True, quiet=is_quiet, markup=False, emoji=False, highlight=False
        )
        self._num_steps = num_steps
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.4f}, {task.fields[rate]:,.0f} tokens/s, left"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(name, total=num_steps, loss=float("nan"), rate=0.0)
        self._first_step: int | None = None
        self._started = time.monotonic()

    def __enter__(self) -> "TrainingReport":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def step(self, step: int, loss: float, tokens_per_second: float, *, is_logged: bool) -> None:
        """Reports a step; ``is_logged``: without a terminal, also prints a line."""
        self._bar.update(self._task, completed=step, loss=loss, rate=tokens_per_second)
        if self._first_step is None:
            self._first_step, self._started = step, time.monotonic()
        if is_logged and not self._console.is_terminal:
            done = max(1, step - self._first_step)
            left = (time.monotonic() - self._started) / done * (self._num_steps - step)
            self.say(
                f"step {step}/{self._num_steps}: loss {loss:.4f}, "
                f"{tokens_per_second:,.0f} tokens/s, {left:,.0f} s left"
            )

    def say(self, message: str) -> None:
        """Prints a line."""
        self._console.print(message, soft_wrap=True)
