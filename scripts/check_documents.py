"""Reports names in the documents that do not exist in the repository: part of ``make check``.

It checks relative links, ``make`` targets, ``python -m`` modules and inline code that looks like
a path of the repository, in every Markdown file.
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
_EXTERNAL_MODULES = {"venv", "pip", "pytest"}
_BUILD_FOLDERS = ("bundles", "build", ".venv")
"""Folders that commands create. Nothing in them is committed."""


def missing_names(text: str, folder: Path, root: Path) -> Iterator[str]:
    """The names in ``text``, a document in ``folder``, that do not exist below ``root``."""
    for link in _LINK.findall(text):
        if not (folder / link).exists():
            yield f"link to {link}"
    targets = set(_TARGET.findall((root / "Makefile").read_text(encoding="utf-8")))
    for names in _MAKE.findall(text):
        yield from (f"make {name}" for name in names.split() if name not in targets)
    for module in _MODULE.findall(text):
        path = root / module.replace(".", "/")
        if module.partition(".")[0] in _EXTERNAL_MODULES:
            continue
        if not path.with_suffix(".py").exists() and not (path / "__main__.py").exists():
            yield f"python -m {module}"
    folders = {path.name for path in root.iterdir() if path.is_dir()} - set(_BUILD_FOLDERS)
    for code in _CODE.findall(text):
        if code.partition("/")[0] in folders and not (root / code).exists():
            yield f"path {code}"


def main() -> None:
    """Prints every missing name; exits with status 1 if there is one."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    documents = [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    missing = [
        f"{document.relative_to(ROOT)}: {name} does not exist"
        for document in documents
        for name in missing_names(document.read_text(encoding="utf-8"), document.parent, ROOT)
    ]
    print("\n".join(missing) if missing else "every name in the documents exists")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
