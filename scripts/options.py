"""Generates the table of the server's options from the schema."""

import sys

from scripts.generated_sections import ROOT, Section, main
from server.flags import default_text
from server.options import SETTINGS, Setting


def table() -> str:
    """Markdown: one row per visible option."""
    rows = [_row(setting) for setting in SETTINGS.values() if not setting.option.hidden]
    return "\n".join(["", "| option | default | meaning |", "|---|---|---|", *rows, ""])


def _row(setting: Setting) -> str:
    default = default_text(setting)
    return f"| `{setting.flag}` | {f'`{default}`' if default else ''} | {setting.option.help} |"


SECTIONS = [Section(document=ROOT / "docs" / "configuration.md", name="options", render=table)]

if __name__ == "__main__":
    sys.exit(main("server/config.py", SECTIONS))
