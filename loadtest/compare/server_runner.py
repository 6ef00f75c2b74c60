"""A server that is measured: a process for each layout, and runs of loads against it."""

import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import uvloop

from loadtest import arrivals, driver
from loadtest.compare.contestants import ROOT
from loadtest.compare.cpu import Used
from loadtest.compare.errors import BadAnswerError, WorkerError
from loadtest.compare.loads import Load, Pace, Requests
from loadtest.compare.process import ProcessGroup
from loadtest.compare.runs import Ran, Timing, answers_per_second
from loadtest.compare.senders import connect
from loadtest.compare.servers import Server, ServerPlaces
from loadtest.statistics import OK, Sample, summarise
from loadtest.tasks import Task

START_SECONDS = 240.0
COMPILE_SECONDS = 900.0
_POLL_SECONDS = 0.2
_END_SECONDS = 5.0
_SPARE = 1.3
"""So many more requests are made before a run than the last one took."""


class ServerRunner:
    """A server in all its layouts; ``reason`` says why, if none of them is left.

    Processes are started when they are first wanted, and paused while they are not asked.
    """

    def __init__(
        self,
        server: Server,
        task: Task,
        places: ServerPlaces,
        logs: Path,
        threads: int,
        say: Callable[[str], None],
    ) -> None:
        self.name = server.name
        self.reasons: dict[str, str] = {}
        self._server = server
        self._task = task
        self._places = places
        self._logs = logs
        self._threads = threads
        self._say = say
        self._warm: set[tuple[str, int]] = set()
        self._rates: dict[tuple[str, Load], float] = {}
        self._running: dict[tuple[str, int], tuple[ProcessGroup, int]] = {}

    @property
    def layouts(self) -> list[str]:
        """Those that did not fail."""
        return [name for name in self._server.layouts if name not in self.reasons]

    @property
    def reason(self) -> str:
        """Empty while there is a layout that runs."""
        return "" if self.layouts else next(iter(self.reasons.values()))

    def is_warm(self, layout: str, load: Load) -> bool:
        """Whether what would answer did so before."""
        return self._key(layout, load.clients) in self._warm

    def run(
        self, layout: str, load: Load, requests: Requests, rate: float | None, timing: Timing
    ) -> Ran:
        """Raises ``WorkerError`` or ``BadAnswerError``. ``rate``: of an open loop, per second."""
        group, port = self._process(layout, load.clients)
        expected = rate or self._rates.get((layout, load), 0.0)
        whole = timing.warmup_seconds + timing.duration_seconds
        requests.prepare(load.clients + int(_SPARE * whole * expected))
        group.resume()
        try:
            ran = uvloop.run(self._drive(group.pid, port, load, requests, rate, timing))
            self._rates[layout, load] = ran.answers_per_second
            self._warm.add(self._key(layout, load.clients))
        except BadAnswerError as error:
            if not group.is_alive:
                raise WorkerError(self._lost(layout, group.last_words())) from error
            raise
        finally:
            if group.is_alive:
                group.pause()
        return ran

    def compile(self) -> bool:
        """Starts each layout once, if that makes what later starts find. Whether all served."""
        if not self._server.compiles:
            return True
        for layout in self.layouts:
            done = self._places.environments / "cache" / f"{self.name}-{self._task}-{layout}"
            if done.exists():
                continue
            try:
                self._process(layout, 1, COMPILE_SECONDS)
            except WorkerError as error:
                self._say(f"{self.name} {layout}: {error}")
                continue
            done.parent.mkdir(parents=True, exist_ok=True)
            done.touch()
            self.close()
        return not self.reasons

    def forget(self, clients: int) -> None:
        """Ends the processes that were started for so many clients alone."""
        self._end([key for key in self._running if key[1] == clients])

    def close(self) -> None:
        self._end(list(self._running))

    def _end(self, keys: list[tuple[str, int]]) -> None:
        groups = [self._running.pop(key)[0] for key in keys]
        self._warm -= set(keys)
        for group in groups:
            group.ask_to_end()
        for group in groups:
            group.wait_and_kill(_END_SECONDS)

    def _key(self, layout: str, clients: int) -> tuple[str, int]:
        return (layout, clients if self._server.is_for_clients else 0)

    def _process(
        self, layout: str, clients: int, start_seconds: float = START_SECONDS
    ) -> tuple[ProcessGroup, int]:
        key = self._key(layout, clients)
        if key not in self._running:
            self._say(f"starting {self.name} {layout}".rstrip())
            self._running[key] = self._start(layout, clients, start_seconds)
        return self._running[key]

    def _start(self, layout: str, clients: int, start_seconds: float) -> tuple[ProcessGroup, int]:
        port = _free_port()
        log = self._logs / f"server-{self.name}-{layout or 'only'}.log".replace(" ", "-")
        try:
            command = self._server.filled(
                layout, port=port, clients=clients, threads=self._threads, places=self._places
            )
            variables = self._server.environment_variables(self._threads, self._places.environments)
            group = ProcessGroup(command, variables, log, ROOT, talks=False)
        except (LookupError, WorkerError) as error:
            raise WorkerError(self._lost(layout, str(error))) from error
        try:
            reason = self._wait(group, port, start_seconds)
        except BaseException:
            group.kill()
            raise
        if reason:
            group.kill()
            raise WorkerError(self._lost(layout, reason))
        return group, port

    def _lost(self, layout: str, reason: str) -> str:
        self.reasons[layout] = reason
        for key in [key for key in self._running if key[0] == layout]:
            self._running.pop(key)[0].kill()
        return reason

    def _wait(self, group: ProcessGroup, port: int, start_seconds: float) -> str:
        """Until it serves. Returns why it does not, or nothing."""
        end = time.monotonic() + start_seconds
        while time.monotonic() < end:
            if not group.is_alive:
                return f"does not start: {group.last_words()}"
            if _serves(port, self._server.health):
                return ""
            time.sleep(_POLL_SECONDS)
        return f"does not serve within {start_seconds:g} s"

    async def _drive(
        self,
        group: int,
        port: int,
        load: Load,
        requests: Requests,
        rate: float | None,
        timing: Timing,
    ) -> Ran:
        clock = driver.MonotonicClock()
        window = driver.Window(
            warmup_seconds=timing.warmup_seconds, duration_seconds=timing.duration_seconds
        )
        samples: list[Sample] = []
        wrong: list[str] = []
        async with connect(
            self._server.protocol, self._task, self._server.model_name, port, clock
        ) as sender:
            questions = [sender.encode(request) for request in requests.prepared]

            async def send(number: int) -> driver.Answer:
                request = requests[number]
                is_made = number < len(questions)
                answer = await sender.ask(questions[number] if is_made else sender.encode(request))
                num_tokens = sum(arrival.num_tokens for arrival in answer.arrivals)
                if answer.status == OK and num_tokens != request.num_new_tokens:
                    wrong.append(f"{num_tokens} tokens came of {request.num_new_tokens}")
                return answer

            before = Used.now(group)
            if load.pace == Pace.CLOSED or rate is None:
                await driver.closed_loop(
                    send, samples.append, clock, window, concurrency=load.clients
                )
            else:
                whole = timing.warmup_seconds + timing.duration_seconds
                await driver.open_loop(
                    send,
                    samples.append,
                    clock,
                    window,
                    due_seconds=arrivals.poisson(rate, whole, seed=load.clients),
                    most_in_flight=load.clients if load.pace == Pace.FLOOD else None,
                )
            after = Used.now(group)
        failures = [sample.status for sample in samples if sample.status != OK] + wrong
        if failures:
            raise BadAnswerError(f"{len(failures)} of {len(samples)} requests: {failures[0]}")
        summary = summarise(
            samples,
            start_seconds=window.start_seconds,
            duration_seconds=window.duration_seconds,
        )
        return Ran(
            summary=summary,
            answers_per_second=answers_per_second(samples, window),
            client_cores=after.client_cores(before),
            other_cores=after.other_cores(before),
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serves(port: int, health: str) -> bool:
    if not health:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=_POLL_SECONDS)
            except grpc.FutureTimeoutError:
                return False
        return True
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{health}", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:  # of which urllib's errors are
        return False
