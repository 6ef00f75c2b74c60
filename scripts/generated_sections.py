"""Sections of Markdown documents that scripts generate.

A section lies between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One generated section: ``document`` holds it, ``render`` returns its Markdown."""

    document: Path
    name: str
    render: Callable[[], str]

    def rendered(self) -> str:
        """The whole document with this section up to date. Raises ``ValueError`` without marks."""
        return replace_section(self.document.read_text(encoding="utf-8"), self.name, self.render())

    def is_current(self) -> bool:
        """Whether the document already holds what ``render`` returns."""
        return self.document.read_text(encoding="utf-8") == self.rendered()


def replace_section(text: str, name: str, content: str) -> str:
    """``text`` with section ``name`` set to ``content``. Raises ``ValueError`` without marks."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"the document has no {begin} … {end}")
    return f"{before}{begin}\n{content}\n{end}{after}"


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first line is the head."""
    head, *body = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([head, "|" + "---|" * len(lines[0]), *body])


def main(source: str, sections: Sequence[Section], update: Callable[[], None] | None = None) -> int:
    """The command line of a script that generates ``sections``.

    Without options it runs ``update`` and rewrites the documents. With ``--check`` it changes
    nothing.

    Args:
        source: The data behind the sections, for messages.
        update: Refreshes the committed data from the latest measurements.

    Returns:
        The exit status: 1 if ``--check`` found an outdated section.
    """
    parser = argparse.ArgumentParser(description=f"Generates sections of documents from {source}.")
    parser.add_argument("--check", action="store_true", help="only report outdated sections")
    if parser.parse_args().check:
        outdated = [section for section in sections if not section.is_current()]
        for section in outdated:
            document = section.document.relative_to(ROOT)
            print(f"{document}: section {section.name} differs from {source}", file=sys.stderr)
        return 1 if outdated else 0
    if update is not None:
        update()
    for section in sections:
        section.document.write_text(section.rendered(), encoding="utf-8")
    return 0
