"""An image's command in namespaces of its own, as a container engine would start it."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.container.image import Image
from tests.serving import ServerProcess, until_ready

# The image's root becomes a mount that nothing can be written to, and nor can the bundles.
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
    """``server.process`` is ``unshare``, which ends as the image's command does."""

    image: Image
    server: ServerProcess

    @property
    def pid(self) -> int:
        """Of the image's command, which is process 1 in its namespace."""
        return _child(self.server.process)

    def status(self) -> dict[str, str]:
        """What the kernel says of the image's command."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return dict(line.split(":\t", 1) for line in lines)

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Like ``docker exec``: inside, as the image's user."""
        return self._enter(["--mount", "--net", "--pid"], as_the_image(self.image, *command))

    def run_beside(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """A program of this machine, on the container's network."""
        return self._enter(["--net"], list(command))

    def _enter(self, kinds: list[str], command: list[str]) -> "subprocess.CompletedProcess[str]":
        enter = ["nsenter", "--target", str(self.pid), *kinds, "--", *command]
        return subprocess.run(enter, capture_output=True, text=True, check=False, timeout=60)

    def stop(self) -> int:
        """Sends the image's stop signal and returns the exit code."""
        os.kill(self.pid, signal.Signals[self.image.config["StopSignal"]])
        self.server.process.communicate(timeout=60)
        return self.server.process.returncode


def as_the_image(image: Image, *command: str) -> list[str]:
    """``command`` with the image's files, user, environment and folder, and none of ours."""
    user = ["setpriv", "--no-new-privs", "chroot", f"--userspec={image.user}", "--groups="]
    place = f"--chdir={image.config['WorkingDir'] or '/'}"
    return [*user, str(image.root), "env", "-i", place, *image.config["Env"], *command]


@contextmanager
def container(image: Image, bundles: Path) -> Iterator[Container]:
    """Starts the image's command with ``bundles`` mounted, waits until it serves, and ends it."""
    unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--"]
    set_up = ["sh", "-ec", _SET_UP, str(image.root), str(bundles)]
    command = [*unshare, *set_up, *as_the_image(image, *image.command)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Container(image, until_ready(process))
        finally:
            # With process 1 its namespace ends, and with its child ``unshare``. What the latter
            # offers instead, --kill-child, is void once the child changes its user.
            if process.poll() is None:
                os.kill(_child(process), signal.SIGKILL)


def _child(process: "subprocess.Popen[str]") -> int:
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(child)
