"""Builds the Dockerfile without a container engine: mmdebstrap for the base, buildah on top."""

import ast
import configparser
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# The release of the Dockerfile's default base image.
SUITE = "bookworm"
BASE_PACKAGES = ("python-is-python3", "python3-venv")
# No docs or man pages, like slim images. No fsync: the image is temporary.
DPKG_OPTIONS = ("force-unsafe-io", *(f"path-exclude=/usr/share/{n}/*" for n in ("doc", "man")))
BASE = "localhost/python"
TOOLS = ("buildah", "mmdebstrap", "unshare", "nsenter", "setpriv", "chroot", "ip")


def reason_to_skip() -> str | None:
    """Why this machine cannot build images, or None if it can."""
    if os.geteuid() != 0:
        return "building and starting an image needs root"
    return missing_tools(TOOLS)


def missing_tools(tools: Iterable[str]) -> str | None:
    """Which of ``tools`` this machine lacks, and how to install them; None if it has all."""
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        return f"{', '.join(missing)} not found: `make tools` installs what is needed"
    return None


@dataclass(frozen=True)
class Image:
    """A built image: its mounted files at ``root``, and its configuration."""

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
    """A private storage folder for buildah, shared with no other builds."""

    path: Path

    def build(self, *options: str) -> Image:
        """Builds the Dockerfile, and its base image first if missing."""
        if not self._buildah("images", "--quiet", "--filter", f"reference={BASE}"):
            self._make_base()
        command = ["build", "--isolation", "chroot", "--format", "docker", "--quiet", *options]
        command += ["--build-arg", f"PYTHON_IMAGE={BASE}", *_pip_volumes(self.path / "pip.conf")]
        name = self._buildah(*command, str(ROOT))
        inspected = json.loads(self._buildah("inspect", "--type", "image", name))
        root = self._buildah("mount", self._buildah("from", "--pull-never", name))
        return Image(Path(root), inspected["Docker"]["config"])

    def close(self) -> None:
        """Unmounts the images so that the folder can be removed."""
        self._buildah("rm", "--all")

    def _make_base(self) -> None:
        container = self._buildah("from", "scratch")
        root = self._buildah("mount", container)
        command = ["mmdebstrap", "--quiet", "--format=directory", "--variant=minbase"]
        command += [f"--include={','.join(BASE_PACKAGES)}"]
        command += [f"--dpkgopt={option}" for option in DPKG_OPTIONS]
        _output([*command, SUITE, root, *mirrors()])
        self._buildah("commit", "--quiet", "--rm", container, BASE)

    def _buildah(self, *arguments: str) -> str:
        folders = ["--root", str(self.path / "root"), "--runroot", str(self.path / "run")]
        return _output(["buildah", *folders, *arguments])


def mirrors() -> list[str]:
    """This machine's apt sources for SUITE. If there are none, mmdebstrap uses its default."""
    form = "deb $(REPO_URI) $(RELEASE) $(COMPONENT)"
    lines = _output(["apt-get", "indextargets", "--format", form, "Created-By: Packages"])
    debian = rf"deb \S+ {SUITE}(-updates|-security)? main"
    return [line for line in lines.splitlines() if re.fullmatch(debian, line)]


def _pip_volumes(path: Path) -> list[str]:
    """Volume options that give the build this machine's pip settings and local indexes."""
    settings = {"cert": ssl.get_default_verify_paths().cafile or ""}
    listed = _output([sys.executable, "-m", "pip", "config", "list"])
    for key, value in re.findall(r"^(?:global|:env:)\.(\S+?)=(.*)$", listed, re.MULTILINE):
        settings[key] = ast.literal_eval(value)
    parser = configparser.RawConfigParser()
    parser["global"] = {key: value for key, value in settings.items() if value}
    with path.open("w") as file:
        parser.write(file)
    words = [word.removeprefix("file://") for value in settings.values() for word in value.split()]
    existing = [word for word in words if word.startswith("/") and Path(word).exists()]
    # A local index refers to files in its parent folder.
    folders = {str(Path(word).parent) if word.endswith("/simple") else word for word in existing}
    volumes = [f"{folder}:{folder}:ro" for folder in sorted(folders)]
    return [f"--volume={volume}" for volume in (f"{path}:/etc/pip.conf:ro", *volumes)]


def _output(command: list[str]) -> str:
    """The command's stdout. Raises RuntimeError with all output if it fails."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{command} failed:\n{result.stdout[-2000:]}{result.stderr[-4000:]}")
    return result.stdout.strip()
