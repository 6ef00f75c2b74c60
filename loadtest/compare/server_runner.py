"""Runs loads against a server, with a process for each of its layouts."""

import socket
import time
import urllib.request
from collections.abc import Callable

import grpc
import uvloop

from loadtest import arrivals, driver
from loadtest.compare.candidates import ROOT
from loadtest.compare.cpu_times import CpuTimes
from loadtest.compare.errors import InvalidResultError, WorkerError
from loadtest.compare.loads import ArrivalProcess, Load, Requests
from loadtest.compare.paths import Paths
from loadtest.compare.process import ProcessGroup
from loadtest.compare.senders import connect
from loadtest.compare.server_metrics import RunResult, RunTiming, responses_per_second
from loadtest.compare.servers import ServerCandidate
from loadtest.statistics import OK, Sample, summarise
from loadtest.tasks import Task

START_SECONDS = 240.0
COMPILE_SECONDS = 900.0
_POLL_SECONDS = 0.2
_END_SECONDS = 5.0
_SPARE_FACTOR = 1.3
"""Requests to build before a run, relative to the number that the last run sent."""


class ServerRunner:
    """A server in all its layouts. ``reason`` says why no layout is left.

    Processes are started when they are first needed, and paused between runs.
    """

    def __init__(
        self,
        server: ServerCandidate,
        task: Task,
        paths: Paths,
        threads: int,
        log: Callable[[str], None],
    ) -> None:
        self.name = server.name
        self.protocol = server.protocol
        self.reasons: dict[str, str] = {}
        self._server = server
        self._task = task
        self._paths = paths
        self._threads = threads
        self._log = log
        self._warm: set[tuple[str, int]] = set()
        self._rates: dict[tuple[str, Load], float] = {}
        self._running: dict[tuple[str, int], tuple[ProcessGroup, int]] = {}

    @property
    def layouts(self) -> list[str]:
        """The layouts that did not fail."""
        return [name for name in self._server.layouts if name not in self.reasons]

    @property
    def reason(self) -> str:
        """Why no layout is left; empty if there is one."""
        return "" if self.layouts else next(iter(self.reasons.values()))

    def is_warm(self, layout: str, load: Load) -> bool:
        """Whether the process for ``load`` has served a run before."""
        return self._key(layout, load.clients) in self._warm

    def run(
        self, layout: str, load: Load, requests: Requests, rate: float | None, timing: RunTiming
    ) -> RunResult:
        """Runs ``load`` once.

        Args:
            rate: requests per second of an open loop; ``None`` is a closed loop.

        Raises:
            WorkerError: the server cannot be started, or has ended.
            InvalidResultError: requests failed, or tokens are missing.
        """
        group, port = self._running_process(layout, load.clients)
        expected = rate or self._rates.get((layout, load), 0.0)
        whole = timing.warmup_seconds + timing.duration_seconds
        requests.prepare(load.clients + int(_SPARE_FACTOR * whole * expected))
        group.resume()
        try:
            result = uvloop.run(self._drive(group.pid, port, load, requests, rate, timing))
            self._rates[layout, load] = result.responses_per_second
            self._warm.add(self._key(layout, load.clients))
        except InvalidResultError as error:
            if not group.is_alive:
                raise WorkerError(self._mark_failed(layout, group.exit_reason())) from error
            raise
        finally:
            if group.is_alive:
                group.pause()
        return result

    def compile(self) -> bool:
        """Starts each layout once, if the server compiles at its first start.

        Returns whether all layouts became ready.
        """
        if not self._server.compiles:
            return True
        for layout in self.layouts:
            done = self._paths.environments / "cache" / f"{self.name}-{self._task}-{layout}"
            if done.exists():
                continue
            try:
                self._running_process(layout, 1, COMPILE_SECONDS)
            except WorkerError as error:
                self._log(f"{self.name} {layout}: {error}")
                continue
            done.parent.mkdir(parents=True, exist_ok=True)
            done.touch()
            self.close()
        return not self.reasons

    def stop_for(self, clients: int) -> None:
        """Ends the processes that were started for this number of clients."""
        self._stop([key for key in self._running if key[1] == clients])

    def close(self) -> None:
        self._stop(list(self._running))

    def _stop(self, keys: list[tuple[str, int]]) -> None:
        groups = [self._running.pop(key)[0] for key in keys]
        self._warm -= set(keys)
        for group in groups:
            group.terminate()
        for group in groups:
            group.wait_and_kill(_END_SECONDS)

    def _key(self, layout: str, clients: int) -> tuple[str, int]:
        return (layout, clients if self._server.depends_on_clients else 0)

    def _running_process(
        self, layout: str, clients: int, start_seconds: float = START_SECONDS
    ) -> tuple[ProcessGroup, int]:
        key = self._key(layout, clients)
        if key not in self._running:
            self._log(f"starting {self.name} {layout}".rstrip())
            self._running[key] = self._start(layout, clients, start_seconds)
        return self._running[key]

    def _start(self, layout: str, clients: int, start_seconds: float) -> tuple[ProcessGroup, int]:
        port = _free_port()
        log_path = self._paths.logs / f"server-{self.name}-{layout or 'only'}.log".replace(" ", "-")
        try:
            command = self._server.format_command(
                layout, port=port, clients=clients, threads=self._threads, paths=self._paths
            )
            variables = self._server.environment_variables(self._threads, self._paths.environments)
            group = ProcessGroup(command, variables, log_path, ROOT, with_pipes=False)
        except (LookupError, WorkerError) as error:
            raise WorkerError(self._mark_failed(layout, str(error))) from error
        try:
            reason = self._wait_until_ready(group, port, start_seconds)
        except BaseException:
            group.kill()
            raise
        if reason:
            group.kill()
            raise WorkerError(self._mark_failed(layout, reason))
        return group, port

    def _mark_failed(self, layout: str, reason: str) -> str:
        self.reasons[layout] = reason
        for key in [key for key in self._running if key[0] == layout]:
            self._running.pop(key)[0].kill()
        return reason

    def _wait_until_ready(self, group: ProcessGroup, port: int, start_seconds: float) -> str:
        """Returns why the server does not become ready, or an empty string."""
        end = time.monotonic() + start_seconds
        while time.monotonic() < end:
            if not group.is_alive:
                return f"does not start: {group.exit_reason()}"
            if _is_ready(port, self._server.health):
                return ""
            time.sleep(_POLL_SECONDS)
        return f"is not ready after {start_seconds:g} s"

    async def _drive(
        self,
        group: int,
        port: int,
        load: Load,
        requests: Requests,
        rate: float | None,
        timing: RunTiming,
    ) -> RunResult:
        clock = driver.MonotonicClock()
        window = driver.Window(
            warmup_seconds=timing.warmup_seconds, duration_seconds=timing.duration_seconds
        )
        samples: list[Sample] = []
        incomplete: list[str] = []
        async with connect(
            self._server.protocol, self._task, self._server.model_name, port, clock
        ) as sender:
            payloads = [sender.encode(request) for request in requests.prepared]

            async def send(number: int) -> driver.Response:
                request = requests[number]
                is_encoded = number < len(payloads)
                response = await sender.call(
                    payloads[number] if is_encoded else sender.encode(request)
                )
                num_tokens = sum(arrival.num_tokens for arrival in response.arrivals)
                if response.status == OK and num_tokens != request.num_new_tokens:
                    incomplete.append(f"got {num_tokens} of {request.num_new_tokens} tokens")
                return response

            before = CpuTimes.now(group)
            if load.arrival_process == ArrivalProcess.CLOSED or rate is None:
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
                    max_in_flight=load.clients
                    if load.arrival_process == ArrivalProcess.FLOOD
                    else None,
                )
            after = CpuTimes.now(group)
        failures = [sample.status for sample in samples if sample.status != OK] + incomplete
        if failures:
            raise InvalidResultError(
                f"{len(failures)} of {len(samples)} requests failed: {failures[0]}"
            )
        summary = summarise(
            samples,
            start_seconds=window.start_seconds,
            duration_seconds=window.duration_seconds,
        )
        return RunResult(
            summary=summary,
            responses_per_second=responses_per_second(samples, window),
            client_cores=after.client_cores(before),
            other_cores=after.other_cores(before),
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_ready(port: int, health: str) -> bool:
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
    except OSError:  # includes urllib's errors
        return False
