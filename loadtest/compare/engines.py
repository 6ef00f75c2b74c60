"""Engines side by side at one precision."""

from collections.abc import Callable, Sequence

from loadtest.compare.contestants import Contestant, engine_of
from loadtest.compare.figures import Measured
from loadtest.compare.measure import Places, Runner, measure, with_cosines
from loadtest.compare.timetable import Timetable
from loadtest.compare.works import Work
from loadtest.tasks import Task


class Engines:
    """Ours and the peers' at one precision; with texts, ours in fp32 to compare vectors with."""

    def __init__(
        self,
        task: Task,
        precision: str,
        peers: Sequence[Contestant],
        places: Places,
        rounds: int,
        say: Callable[[str], None],
    ) -> None:
        self._rounds, self._say = rounds, say
        self._runners: list[Runner] = []
        self._reference: Runner | None = None
        try:
            for contestant in (engine_of(task), *peers):
                say(f"loading {contestant.name} {precision}")
                self._runners.append(Runner(contestant, task, precision, places))
                say(f"{contestant.name} {precision}: {self._runners[-1].about}")
            if task == Task.EMBED:
                self._reference = Runner(engine_of(task), task, "fp32", places)
        except BaseException:
            self.close()
            raise

    @property
    def versions(self) -> dict[str, str]:
        return {runner.name: runner.version for runner in self._runners}

    def measured(self, work: Work, timetable: Timetable) -> tuple[Measured, dict[str, Measured]]:
        """Ours, and the peers' by name."""
        until = timetable.begin()
        found = measure(work, self._runners, self._rounds, timetable, until, self._say)
        if self._reference is not None:
            found = with_cosines(found, work, self._runners, self._reference)
        return found.pop(self._runners[0].name), found

    def close(self) -> None:
        for runner in (*self._runners, *([self._reference] if self._reference else [])):
            runner.close()
