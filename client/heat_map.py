"""Draws attention weights: a heat map in the terminal, and image files with matplotlib.

Rows are target tokens, columns source tokens. Every row of attention sums to 1, so colours run from
0 to the largest weight of the drawn matrix.
"""

from pathlib import Path

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from client import types

IMAGE_FORMATS = (".png", ".svg")
MAX_MATRICES = 64
"""Most matrices that fit one image."""

_SHADES = " ░▒▓█"
_CELL_WIDTH = 2
_MAX_LABEL_WIDTH = 24
_SPECIAL = str.maketrans({"▁": "·", "Ġ": "·", "Ċ": "⏎", "\n": "⏎", "\t": "⇥", "\r": "␍"})
"""Maps tokenizers' markers of word starts and line breaks to characters that every font has."""


def title_of(matrix: types.AttentionMatrix) -> str:
    """A matrix's title: its layer and head, or "mean over layers and heads"."""
    if matrix.layer < 0:
        return "mean over layers and heads"
    return f"layer {matrix.layer}, head {matrix.head}"


def write_heat_maps(attention: types.Attention, console: Console | None = None) -> None:
    """Prints a heat map for each matrix.

    Shades show the weights, so the map is readable without colours too. Columns are numbered, and
    the source tokens are listed by number. Columns that exceed the terminal's width continue in a
    further map.
    """
    console = console or Console()
    sources = [_label(token) for token in attention.source_tokens]
    targets = [_label(token) for token in attention.target_tokens]
    label_width = max(map(cell_len, targets), default=0)
    num_columns = max((console.width - label_width - 1) // _CELL_WIDTH, 1)
    for matrix in attention.matrices:
        console.print(Text(title_of(matrix), style="bold"), soft_wrap=True)
        highest = max((max(row, default=0.0) for row in matrix.weights), default=0.0)
        for start in range(0, len(sources), num_columns):
            stop = min(start + num_columns, len(sources))
            _print_columns(console, range(start, stop), " " * (label_width + 1))
            for target, row in zip(targets, matrix.weights, strict=True):
                line = Text(set_cell_size(target, label_width) + " ")
                for weight in row[start:stop]:
                    line.append(*_cell(weight, highest))
                console.print(line, soft_wrap=True)
        console.print(Text(f"darkest: {highest:.3f}", style="dim"), soft_wrap=True)
    legend = "  ".join(f"{index}:{token}" for index, token in enumerate(sources))
    console.print(Text(legend))


def _print_columns(console: Console, columns: range, margin: str) -> None:
    """The column numbers, one digit per line."""
    for digit in range(len(str(columns[-1])) - 1, -1, -1):
        numbers = (str(column)[::-1] for column in columns)
        line = "".join(f"{number[digit : digit + 1]:<{_CELL_WIDTH}}" for number in numbers)
        console.print(Text(margin + line, style="dim"), soft_wrap=True)


def _cell(weight: float, highest: float) -> tuple[str, str]:
    """The shade of one weight, and its colour: from blue to red."""
    share = weight / highest if highest > 0 else 0.0
    shade = _SHADES[round(share * (len(_SHADES) - 1))]
    return shade * _CELL_WIDTH, f"rgb({round(255 * share)},80,{round(255 * (1 - share))})"


def _label(token: str) -> str:
    """``token`` on one line, without control characters, at most 24 cells wide."""
    shown = "".join(
        each if each.isprintable() else f"\\x{ord(each):02x}" for each in token.translate(_SPECIAL)
    )
    if cell_len(shown) > _MAX_LABEL_WIDTH:
        shown = set_cell_size(shown, _MAX_LABEL_WIDTH - 1) + "…"
    return shown


def check_image_path(path: Path) -> None:
    """Raises ``ValueError`` for an ending other than ``.png`` and ``.svg``, or a missing folder.

    Raises it without matplotlib, too. Call this before sending the request.
    """
    if path.suffix.lower() not in IMAGE_FORMATS:
        raise ValueError(f"--out {path}: write {' or '.join(IMAGE_FORMATS)}")
    if not path.parent.is_dir():
        raise ValueError(f"--out {path}: {path.parent} is no folder")
    try:
        import matplotlib  # noqa: F401, PLC0415  (extra "plot")
    except ImportError as error:
        raise ValueError("images need matplotlib: pip install '.[plot]'") from error


def save_heat_maps(attention: types.Attention, path: Path) -> None:
    """Writes all matrices as one image, in the format of the path's ending.

    Raises:
        ValueError: see :func:`check_image_path`; or there are more than :data:`MAX_MATRICES`.
    """
    check_image_path(path)
    from matplotlib.figure import Figure  # noqa: PLC0415  (extra "plot")

    matrices = attention.matrices
    if len(matrices) > MAX_MATRICES:
        raise ValueError(
            f"{len(matrices)} matrices do not fit one image, at most {MAX_MATRICES}: select "
            "--layer and --head"
        )
    sources = [_plain(token) for token in attention.source_tokens]
    targets = [_plain(token) for token in attention.target_tokens]
    num_columns = min(len(matrices), 4)
    num_rows = -(-len(matrices) // num_columns)
    width, height = (min(max(0.25 * len(labels), 2), 20) for labels in (sources, targets))
    size = (min(num_columns * (width + 1), 80), min(num_rows * (height + 1), 80))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(num_rows, num_columns, squeeze=False)
    for axes, matrix in zip(grid.flat, matrices, strict=False):
        axes.imshow(matrix.weights, cmap="viridis", vmin=0.0, aspect="auto")
        axes.set_title(title_of(matrix), fontsize=8)
        axes.set_xticks(range(len(sources)), sources, rotation=90, fontsize=6)
        axes.set_yticks(range(len(targets)), targets, fontsize=6)
    for axes in grid.flat[len(matrices) :]:
        axes.set_axis_off()
    figure.savefig(path, dpi=120)


def _plain(token: str) -> str:
    """A label that matplotlib does not read as mathematics."""
    return _label(token).replace("$", r"\$")
