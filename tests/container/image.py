"""The Dockerfile, built without a container engine: mmdebstrap makes its base, buildah the rest."""

import ast
import configparser
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# As in the base image that the Dockerfile names by default.
SUITE = "bookworm"
BASE_PACKAGES = ("python-is-python3", "python3-venv")
# As slim images are: no pages to read. And what is soon removed need not reach the disk.
DPKG_OPTIONS = ("force-unsafe-io", *(f"path-exclude=/usr/share/{n}/*" for n in ("doc", "man")))
BASE = "localhost/python"
TOOLS = ("buildah", "mmdebstrap", "unshare", "nsenter", "setpriv", "chroot", "ip")


def why_not_here() -> str | None:
    """Why images cannot be built on this machine, or None where they can."""
    if os.geteuid() != 0:
        return "building and starting an image needs root"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"{', '.join(missing)} not found: `make tools` installs what is needed"
    return None


@dataclass(frozen=True)
class Image:
    """What is in it, below ``root``, and what it says of how to run it."""

    root: Path
    config: dict[str, Any]

    @property
    def command(self) -> list[str]:
        command: list[str] = [*self.config["Entrypoint"], *self.config["Cmd"]]
        return command

    @property
    def health_command(self) -> list[str]:
        test: list[str] = self.config["Healthcheck"]["Test"]
        assert test[0] == "CMD"
        return test[1:]

    @property
    def user(self) -> str:
        """``uid:gid``."""
        return str(self.config["User"])


@dataclass(frozen=True)
class Storage:
    """A folder of buildah's own: nothing is shared with what the machine builds otherwise."""

    path: Path

    def build(self, *options: str) -> Image:
        """The Dockerfile, on a base image that is made if this storage has none."""
        if not self._buildah("images", "--quiet", "--filter", f"reference={BASE}"):
            self._make_base()
        command = ["build", "--isolation", "chroot", "--format", "docker", "--quiet", *options]
        command += ["--build-arg", f"PYTHON_IMAGE={BASE}", *_pip_volumes(self.path / "pip.conf")]
        name = self._buildah(*command, str(ROOT))
        about = json.loads(self._buildah("inspect", "--type", "image", name))
        root = self._buildah("mount", self._buildah("from", "--pull-never", name))
        return Image(Path(root), about["Docker"]["config"])

    def close(self) -> None:
        """Unmounts the images' files, so that the folder can be removed."""
        self._buildah("rm", "--all")

    def _make_base(self) -> None:
        container = self._buildah("from", "scratch")
        root = self._buildah("mount", container)
        command = ["mmdebstrap", "--quiet", "--format=directory", "--variant=minbase"]
        command += [f"--include={','.join(BASE_PACKAGES)}"]
        command += [f"--dpkgopt={option}" for option in DPKG_OPTIONS]
        _output([*command, SUITE, root, *_mirrors()])
        self._buildah("commit", "--quiet", "--rm", container, BASE)

    def _buildah(self, *arguments: str) -> str:
        folders = ["--root", str(self.path / "root"), "--runroot", str(self.path / "run")]
        return _output(["buildah", *folders, *arguments])


def _mirrors() -> list[str]:
    """Where this machine's apt finds SUITE; nothing, which is mmdebstrap's default, if nowhere."""
    form = "deb $(REPO_URI) $(RELEASE) $(COMPONENT)"
    lines = _output(["apt-get", "indextargets", "--format", form, "Created-By: Packages"])
    debian = rf"deb \S+ {SUITE}(-updates|-security)? main"
    return [line for line in lines.splitlines() if re.fullmatch(debian, line)]


def _pip_volumes(path: Path) -> list[str]:
    """Lets pip in the build find what this machine's pip finds, with its settings and folders."""
    settings = {"cert": ssl.get_default_verify_paths().cafile or ""}
    listed = _output([sys.executable, "-m", "pip", "config", "list"])
    for key, value in re.findall(r"^(?:global|:env:)\.(\S+?)=(.*)$", listed, re.MULTILINE):
        settings[key] = ast.literal_eval(value)
    parser = configparser.RawConfigParser()
    parser["global"] = {key: value for key, value in settings.items() if value}
    with path.open("w") as file:
        parser.write(file)
    words = [word.removeprefix("file://") for value in settings.values() for word in value.split()]
    found = [word for word in words if word.startswith("/") and Path(word).exists()]
    # An index refers to files beside it.
    folders = {str(Path(word).parent) if word.endswith("/simple") else word for word in found}
    volumes = [f"{folder}:{folder}:ro" for folder in sorted(folders)]
    return [f"--volume={volume}" for volume in (f"{path}:/etc/pip.conf:ro", *volumes)]


def _output(command: list[str]) -> str:
    """What it writes; what it complains of is in the error."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout.strip()
