"""How close each measured model's output is to fp32, from the reports of comparisons.

Encoders: the lowest cosine of a vector to its fp32 vector. Decoders: over fp32's greedy answers,
the share of tokens that stay the likeliest, and the rms difference of log-probabilities.
Translations of texts: chrF to fp32's, and the share of the same texts. ``loadtest compare``
measures all of them for engines; the translator of other rows has random weights, so it has none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
UNKNOWN = "–"
Figures = Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fidelity:
    """``by_model``: our figures, by task and precision; the lowest cosine of all rows."""

    by_model: Mapping[tuple[str, str], Figures]

    @classmethod
    def committed(cls, rows: Sequence[Row]) -> "Fidelity":
        """From ``rows`` of comparisons."""
        by_model: dict[tuple[str, str], Figures] = {}
        for row in rows:
            key, found = (row["task"], row["precision"]), _figures(row, "ours")
            # Texts are translated by another model than the other rows; some rows name theirs.
            if found and row["level"] != "text" and "model" not in row:
                before = by_model.get(key, found)
                by_model[key] = min(found, before, key=lambda each: each.get("min_cosine", 1))
        return cls(by_model=by_model)

    def of(self, row: Row) -> str:
        """The fidelity of ``row``'s model, and of the best peer where it was measured."""
        own = _figures(row, "ours")
        if own:
            peer = _figures(row, str(row["best_peer"]))
            return _described(own) + (f" (peer {_values(peer)})" if peer else "")
        model = self.by_model.get((row["task"], row["precision"]))
        return UNKNOWN if model is None else _described(model)


def _figures(row: Row, engine: str) -> Figures:
    figures: Figures = row.get("fidelity", {}).get(engine, {})
    return figures


def _described(figures: Figures) -> str:
    """As in ``top-1 0.965, rms 0.070``."""
    if "min_cosine" in figures:
        return f"cosine ≥ {_values(figures)}"
    names = ("top-1", "rms") if "top_1" in figures else ("chrF", "identical")
    return ", ".join(map(" ".join, zip(names, _values(figures).split(", "), strict=True)))


def _values(figures: Figures) -> str:
    """As in ``0.965, 0.070``."""
    if "min_cosine" in figures:
        return _floor(figures["min_cosine"])
    if "top_1" in figures:
        return f"{figures['top_1']:.3f}, {figures['rms_nats']:.3f}"
    return f"{figures['chrf']:.1f}, {figures['identical']:.0%}"


def _floor(cosine: float) -> str:
    """Four decimals, rounded down but for errors of double precision."""
    return f"{int((cosine + 1e-9) * 1e4) / 1e4:.4f}"
