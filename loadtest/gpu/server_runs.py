"""``loadtest gpu-server``: our server on a GPU under load, out of memory, killed, for long.

Each part is written to the report when it ends. One that fails has a reason there.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtest import machine
from loadtest.compare.errors import WorkerError
from loadtest.gpu import memory_requests, skeletons
from loadtest.gpu.deadline import Deadline, OutOfTimeError
from loadtest.gpu.memory_requests import Models
from loadtest.gpu.model_builder import worker
from loadtest.gpu.report import Report
from loadtest.gpu.served import Served, model_of_task, states_of, within
from loadtest.gpu.server_loads import TASKS, Load, LoadProcesses, result_of

PARTS = ("loads", "slots", "kill", "memory", "soak")
CLIENTS = (1, 8, 64, 256)
# More clients than slots wait instead of being refused, each with the beams of a translation.
QUEUE = ("--max-queue", "4096", "--max-queue-tokens", str(4 << 20))
_SOAK_CLIENTS = 16
_START_SECONDS, _HOLDER_SECONDS = 180.0, 60.0
_END_SECONDS = 15.0  # kept for the end of a soak
_LEAST_SOAK_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class ServerRequest:
    """Arguments of the command.

    Args:
        bundles: a folder of NAME/VERSION bundles, or of NAME with skeletons, which are unpacked.
        seconds: of each load.
        too_many_slots: for the part ``slots``.
        leave_bytes: free memory of the GPU that the part ``memory`` leaves.
        longest: prompt tokens of loads; None for those of each task.
    """

    device: str
    bundles: Path
    out: Path
    root: Path
    budget_seconds: float
    soak_seconds: float
    seconds: float = 3.0
    clients: tuple[int, ...] = CLIENTS
    slots: int = 256
    too_many_slots: int = 4096
    leave_bytes: int = 64 << 20
    longest: int | None = None
    parts: tuple[str, ...] = PARTS


def run_server(request: ServerRequest, console: Console) -> bool:
    """Runs the parts. Returns whether none has a reason why it failed."""
    report = Report(request.out, request.device)
    runs = _ServerRuns(request, report, console)
    try:
        runs.run()
    finally:
        runs.close()
    return not runs.found["reasons"]


@dataclass
class _ServerRuns:
    """The server, its clients, and what was found so far: the report's ``server``."""

    request: ServerRequest
    report: Report
    console: Console
    found: dict[str, Any] = field(default_factory=dict)
    models: Models = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.deadline = Deadline(self.request.budget_seconds)
        self.found = self.report.get("server") or {}
        self.found["reasons"] = {}
        self.found.setdefault("runs", {})
        self.loads: LoadProcesses | None = None
        self.server: Served | None = None
        self.bundles = self.request.bundles

    def run(self) -> None:
        """All parts, in order; the later ones need the server of the first."""
        request = self.request
        options = ("--slots", str(request.slots), *QUEUE)
        self.found["settings"] = {
            "device": request.device,
            "options": " ".join(options),
            "leave_bytes": request.leave_bytes,
            "machine": machine.machine(),
            "versions": machine.versions(),
        }
        if not self._part("start", lambda: self._start_first(options)):
            return
        parts: dict[str, Callable[[], None]] = {
            "loads": self._run_loads,
            "slots": self._start_with_too_many_slots,
            "kill": lambda: self._kill_and_restart(options),
            "memory": self._run_out_of_memory,
            "soak": self._soak,
        }
        for name, part in parts.items():
            if name in request.parts:
                self._part(name, part)
        self._part("end", self._check_end)

    def close(self) -> None:
        """Ends the clients and the server."""
        if self.loads is not None:
            self.loads.close()
        if self.server is not None:
            self.found["end"] = self.server.stop()
            self._save()

    def _part(self, name: str, part: Callable[[], None]) -> bool:
        """Runs a part, and writes what it found or why it failed. Returns whether it succeeded."""
        started = time.monotonic()
        try:
            part()
        except OutOfTimeError:
            self.found["reasons"][name] = "out of time"
        except Exception as error:  # any failure is a reason
            self.found["reasons"][name] = f"{type(error).__name__}: {error}"
        self.found.setdefault("part_seconds", {})[name] = round(time.monotonic() - started, 1)
        self._save()
        reason = self.found["reasons"].get(name, "done")
        self.console.print(f"{name}: {reason}", highlight=False)
        return name not in self.found["reasons"]

    def _save(self) -> None:
        self.report.set("server", self.found)

    # --- the parts ----------------------------------------------------------------------------

    def _start_first(self, options: tuple[str, ...]) -> None:
        self.bundles = _unpacked(self.request.bundles, self.request.root / "served")
        self.loads = LoadProcesses()
        self._start(options)
        assert self.server is not None
        seconds = self.server.wait_until_ready(within(self.deadline, _START_SECONDS))
        self.found["seconds_until_ready"] = round(seconds, 2)
        self.found["memory"] = {"ready": self.server.memory()}
        served = self.server.models()
        self.found["models"] = states_of(served)
        found = {task: model_of_task(served, task.model_tasks[0]) for task in TASKS}
        self.models = {task: model for task, model in found.items() if model is not None}
        for task in TASKS:
            if task not in self.models:
                self.found["reasons"][f"models, {task}"] = "no model that is served has this task"

    def _run_loads(self) -> None:
        for clients in self.request.clients:
            for task in self.models:
                self._run_together({f"{task}-{clients}": self._load(task, clients)})
        self.found["memory"]["after the loads"] = self._served.memory()

    def _start_with_too_many_slots(self) -> None:
        """Another server, whose cache does not fit: what it says, and that the first goes on."""
        slots = self.request.too_many_slots
        log_path = self._log_path("too-many-slots")
        options = ("--slots", str(slots), "--memory-budget", "1000000G")
        started, found = time.monotonic(), dict[str, Any](slots=slots)
        other = Served(self.bundles, self.request.device, options, log_path)
        try:
            other.wait_until_ready(within(self.deadline, _START_SECONDS))
            found["models"] = states_of(other.models())
        except WorkerError as error:
            found["reason"] = str(error)
        finally:
            found["end"] = other.stop()
            found["log"] = other.log_lines("refused")
            found["seconds"] = round(time.monotonic() - started, 1)
            self.found["too_many_slots"] = found
        self._run_together({f"{task}-beside": self._load(task, 8) for task in self.models})

    def _kill_and_restart(self, options: tuple[str, ...]) -> None:
        assert self.loads is not None
        before = memory_requests.answers(self._served.target, self.models)
        load = self._load(next(iter(self.models)), _SOAK_CLIENTS)
        started = self.loads.start(self._served.target, load)
        time.sleep(min(load.warmup_seconds + load.seconds / 3, self.deadline.remaining_seconds()))
        self._served.kill()
        killed = time.monotonic()
        self._start(options, self._served.port)
        seconds = self._served.wait_until_ready(within(self.deadline, _START_SECONDS))
        self.found["seconds_until_ready_after_kill"] = round(seconds, 2)
        after = memory_requests.answers(self._served.target, self.models)
        self.found["killed"] = {
            "seconds_until_answered": round(time.monotonic() - killed, 2),
            "same_answers": memory_requests.are_same(before, after),
            "clients": result_of(started, load),
        }
        # gRPC in these processes may wait before it connects to the address again.
        self.loads.close()
        self.loads = LoadProcesses()

    def _run_out_of_memory(self) -> None:
        """Large requests while another process holds the GPU's memory, and after that."""
        target, found = self._served.target, dict[str, Any]()
        self.found["out_of_memory"] = found
        before = memory_requests.answers(target, self.models)
        texts = memory_requests.large_texts(target, self.models)
        with self._held_memory(found):
            found["large_requests"] = memory_requests.large_requests(target, self.models, texts)
            self._save()
            answers = memory_requests.answers(target, self.models)
            found["same_answers"] = memory_requests.are_same(before, answers)
            self._run_together({f"oom-{task}": self._load(task, 64) for task in self.models})
            found["is_alive"] = self._served.is_alive
            found["log"] = self._served.log_lines("WARNING", "ERROR", "CRITICAL")
        found["large_requests_after"] = memory_requests.large_requests(target, self.models, texts)
        after = memory_requests.answers(target, self.models)
        found["same_answers_after"] = memory_requests.are_same(before, after)
        loads = {f"after-{task}": self._load(task, _SOAK_CLIENTS) for task in self.models}
        self._run_together(loads)

    @contextmanager
    def _held_memory(self, found: dict[str, Any]) -> Iterator[None]:
        """Another process takes the GPU's free memory, for as long as the block runs."""
        device = self.request.device
        if not device.startswith("cuda"):
            found["note"] = "no memory was taken: that needs a GPU"
            yield
            return
        holder = worker("loadtest.peers.memory_holder", self.request.root)
        try:
            take = {"op": "take", "device": device, "leave": self.request.leave_bytes}
            found["taken"] = holder.call(take, within(self.deadline, _HOLDER_SECONDS))
            yield
            give_back = {"op": "give_back", "device": device}
            found["given_back"] = holder.call(give_back, within(self.deadline, _HOLDER_SECONDS))
        finally:
            holder.kill()

    def _soak(self) -> None:
        assert self.loads is not None
        left = self.deadline.remaining_seconds() - _END_SECONDS
        seconds = min(self.request.soak_seconds, left)
        if seconds < _LEAST_SOAK_SECONDS:
            raise OutOfTimeError
        loads = {
            f"soak-{task}": self._load(task, _SOAK_CLIENTS)._replace(seconds=seconds)
            for task in self.models
        }
        started = [self.loads.start(self._served.target, load) for load in loads.values()]
        begun, memory = time.monotonic(), dict[str, Any]()
        for name, part in (("start", 0.1), ("middle", 0.5), ("end", 1.0)):
            time.sleep(max(0.0, begun + part * seconds - time.monotonic()))
            memory[name] = self._served.memory()
        self.found["soak"] = {"seconds": seconds, "clients": _SOAK_CLIENTS, "memory": memory}
        for name, each, load in zip(loads, started, loads.values(), strict=True):
            self.found["runs"][name] = result_of(each, load)

    def _check_end(self) -> None:
        """That the server still answers."""
        if not self._served.is_alive:
            raise WorkerError(self._served.stop())
        self.found["answers_at_the_end"] = {
            task: not isinstance(answer, str)
            for task, answer in memory_requests.answers(self._served.target, self.models).items()
        }
        self.found["memory"]["end"] = self._served.memory()

    # --- their tools --------------------------------------------------------------------------

    @property
    def _served(self) -> Served:
        if self.server is None:
            raise WorkerError("there is no server")
        return self.server

    def _start(self, options: tuple[str, ...], port: int = 0) -> None:
        path = self._log_path("server" if not port else "restarted-server")
        self.server = Served(self.bundles, self.request.device, options, path, port)

    def _log_path(self, name: str) -> Path:
        return self.request.root / "logs" / f"{name}.log"

    def _load(self, task: Any, clients: int) -> Load:
        request = self.request
        return Load(task, self.models[task].name, clients, request.seconds, longest=request.longest)

    def _run_together(self, loads: dict[str, Load]) -> None:
        assert self.loads is not None
        self.deadline.remaining_seconds()
        rows = self.loads.run(self._served.target, list(loads.values()))
        self.found["runs"] |= dict(zip(loads, rows, strict=True))
        self._save()


def _unpacked(bundles: Path, folder: Path) -> Path:
    """``bundles``, or ``folder`` with the bundles of the skeletons in it."""
    packed = [path.parent for path in sorted(bundles.glob("*/skeleton.json"))]
    for skeleton in packed:
        if not (folder / skeleton.name / "1").exists():
            skeletons.unpack(skeleton, folder / skeleton.name / "1")
    return folder if packed else bundles
