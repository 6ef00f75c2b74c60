"""A real server in a separate process."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_READY = re.compile(
    r"gRPC on port (\d+), metrics on port (\d+)(?:.*HTTP on (?:port (\d+)|no port))?"
)


@dataclass
class ServerProcess:
    """A running server. ``log``: its stderr up to the ready message. ``http_port``: 0 for none."""

    process: "subprocess.Popen[str]"
    port: int
    metrics_port: int
    log: list[str]
    http_port: int = 0

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.metrics_port}/metrics"


def wait_until_ready(process: "subprocess.Popen[str]") -> ServerProcess:
    """Waits for the server's ready message on stderr, which must be a pipe."""
    assert process.stderr is not None
    log: list[str] = []
    for line in process.stderr:
        log.append(line)
        if ready := _READY.search(line):
            return ServerProcess(process, int(ready[1]), int(ready[2]), log, int(ready[3] or 0))
    raise RuntimeError("the server did not start:\n" + "".join(log))


@contextmanager
def server_process(
    bundles: Path,
    *options: str,
    module: str = "server",
    wrapper: Sequence[str] = (),
    python: Sequence[str] = (sys.executable,),
    folder: str = ".",
    **environment: str,
) -> Iterator[ServerProcess]:
    """Starts ``python -m server`` on free ports, waits until it is ready, terminates it at exit.

    ``module``: another program with the same options. ``wrapper``: a command that runs it.
    ``python``: the command of another interpreter. ``folder``: where it starts.
    """
    command = [*wrapper, *python, "-m", module, "--bundles", str(bundles)]
    command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    command += ["--http", "127.0.0.1:0", *options]
    variables = {**os.environ, **environment}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=variables, cwd=folder
    ) as process:
        try:
            yield wait_until_ready(process)
        finally:
            process.terminate()
            process.communicate(timeout=60)
