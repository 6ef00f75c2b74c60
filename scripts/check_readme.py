"""Finds what the documents name but the repository lacks: part of ``make check``.

Checked in every committed Markdown file: relative links, ``make`` targets, ``python -m``
modules, and inline code that looks like a path of the repository.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)")
_MAKE = re.compile(r"(?:^\s*|`)make ((?:[a-z]+ ?)+)", re.MULTILINE)
_MODULE = re.compile(r"python3? -m ([a-z_.]+)")
_CODE = re.compile(r"`([\w./-]+/[\w./-]*)`")
_TARGET = re.compile(r"^([a-z]+):", re.MULTILINE)
_NOT_OURS = {"venv", "pip", "pytest"}
_MADE = ("bundles", "build", ".venv")
"""Folders that commands make; nothing in them is committed."""


def problems(text: str, folder: Path, root: Path) -> Iterator[str]:
    """What the document ``text``, which lies in ``folder``, names in vain."""
    for link in _LINK.findall(text):
        if not (folder / link).exists():
            yield f"link to {link}"
    targets = set(_TARGET.findall((root / "Makefile").read_text(encoding="utf-8")))
    for names in _MAKE.findall(text):
        yield from (f"make {name}" for name in names.split() if name not in targets)
    for module in _MODULE.findall(text):
        path = root / module.replace(".", "/")
        if module.partition(".")[0] in _NOT_OURS:
            continue
        if not path.with_suffix(".py").exists() and not (path / "__main__.py").exists():
            yield f"python -m {module}"
    tops = {path.name for path in root.iterdir() if path.is_dir()} - set(_MADE)
    for code in _CODE.findall(text):
        if code.partition("/")[0] in tops and not (root / code).exists():
            yield f"path {code}"


def main() -> None:
    """Prints every problem; exit status 1 if there is any."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    found = [
        f"{name}: {problem} does not exist"
        for name in listed.stdout.splitlines()
        for problem in problems(
            (ROOT / name).read_text(encoding="utf-8"), (ROOT / name).parent, ROOT
        )
    ]
    print("\n".join(found) if found else "documents name nothing that is missing")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
