"""Runs an image's command in its own namespaces, as a container engine would."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.container.image import Image
from tests.serving import ServerProcess, wait_until_ready

# Mounts the image's root and the bundles read-only.
_SET_UP = """
root=$0 bundles=$1; shift
mount --bind "$root" "$root"
mount --bind "$bundles" "$root/bundles"
mount -o remount,bind,ro "$root/bundles"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -o remount,bind,ro "$root"
ip link set lo up
exec "$@"
"""


@dataclass(frozen=True)
class Container:
    """A running image. ``server.process`` is ``unshare``, which exits with the command's status."""

    image: Image
    server: ServerProcess

    @property
    def pid(self) -> int:
        """Host PID of the image's command, which is PID 1 in its namespace."""
        return _child(self.server.process)

    def status(self) -> dict[str, str]:
        """``/proc/PID/status`` of the image's command."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return dict(line.split(":\t", 1) for line in lines)

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Like ``docker exec``: runs a command in the container as the image's user."""
        return self._enter(["--mount", "--net", "--pid"], as_image_user(self.image, *command))

    def run_in_network(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Runs a host program in the container's network namespace."""
        return self._enter(["--net"], list(command))

    def _enter(self, kinds: list[str], command: list[str]) -> "subprocess.CompletedProcess[str]":
        enter = ["nsenter", "--target", str(self.pid), *kinds, "--", *command]
        return subprocess.run(enter, capture_output=True, text=True, check=False, timeout=60)

    def stop(self) -> int:
        """Sends the image's stop signal and returns the exit code."""
        os.kill(self.pid, signal.Signals[self.image.config["StopSignal"]])
        self.server.process.communicate(timeout=60)
        return self.server.process.returncode


def as_image_user(image: Image, *command: str) -> list[str]:
    """``command`` with only the image's files, user, environment and working directory."""
    user = ["setpriv", "--no-new-privs", "chroot", f"--userspec={image.user}", "--groups="]
    directory = f"--chdir={image.config['WorkingDir'] or '/'}"
    return [*user, str(image.root), "env", "-i", directory, *image.config["Env"], *command]


@contextmanager
def container(image: Image, bundles: Path) -> Iterator[Container]:
    """Starts the image's command with ``bundles`` mounted, waits until it is ready, kills it."""
    unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--"]
    set_up = ["sh", "-ec", _SET_UP, str(image.root), str(bundles)]
    command = [*unshare, *set_up, *as_image_user(image, *image.command)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Container(image, wait_until_ready(process))
        finally:
            # Killing PID 1 ends its namespace and then ``unshare``. The option --kill-child does
            # not work: the kernel resets it once the child changes its user.
            if process.poll() is None:
                os.kill(_child(process), signal.SIGKILL)


def _child(process: "subprocess.Popen[str]") -> int:
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(child)
