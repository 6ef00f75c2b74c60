"""Parts of the README that a program writes, each between two marks with its name."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def replaced(readme: str, name: str, content: str) -> str:
    """``readme`` with ``content`` as its part ``name``. Raises ``ValueError`` if it has none."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = readme.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"README.md has no {begin} … {end}")
    return f"{before}{begin}\n{content}\n{end}{after}"


def main(
    name: str,
    source: str,
    rendered: Callable[[str], str],
    update: Callable[[], None] = lambda: None,
) -> int:
    """A program that writes the part, after ``update``; with ``--check`` it only compares.

    Args:
        source: where its content is from, for the message that it is not.
        rendered: the README with the part as it should be.

    Returns:
        The exit status: 1 if ``--check`` found a difference.
    """
    parser = argparse.ArgumentParser(description=f"Writes the README's {name} from {source}.")
    parser.add_argument("--check", action="store_true", help="change nothing, only compare")
    is_check = parser.parse_args().check
    if not is_check:
        update()
    readme = README.read_text(encoding="utf-8")
    wanted = rendered(readme)
    if not is_check:
        README.write_text(wanted, encoding="utf-8")
    elif readme != wanted:
        print(f"README.md: {name} are not those of {source}", file=sys.stderr)
        return 1
    return 0
