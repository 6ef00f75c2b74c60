"""How close each measured model's output is to fp32, from the committed reports.

Encoders: the worst cosine of a vector to its fp32 vector, which ``loadtest compare`` measures.
Decoders: perplexity over that of fp32, and the share of tokens of fp32's answers with the same
best token, which ``python -m export`` writes to a bundle's ``parity.json``. The translator that is
compared has random weights, so it has no such figure.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.generated_sections import ROOT

Row = dict[str, Any]
UNKNOWN = "–"
DECODER_PARITY = ROOT / "loadtest" / "results" / "compared-smollm2-int8.json"
"""``parity.json`` of the bundle that the comparisons measured; ``make bench`` copies it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fidelity:
    """``min_cosines``: of our vectors, by precision. ``parity``: of the int8 decoder's export."""

    min_cosines: Mapping[str, float]
    parity: Mapping[str, Any]

    @classmethod
    def committed(cls, rows: Sequence[Row]) -> "Fidelity":
        """From ``rows`` of comparisons and the committed parity report."""
        min_cosines: dict[str, float] = {}
        for row in rows:
            if (cosine := _cosine(row, "ours")) is not None:
                precision = row["precision"]
                min_cosines[precision] = min(cosine, min_cosines.get(precision, 1.0))
        return cls(min_cosines=min_cosines, parity=json.loads(DECODER_PARITY.read_text("utf-8")))

    def of(self, row: Row) -> str:
        """The fidelity of ``row``'s model, and of the best peer where it was measured."""
        if row["task"] == "embed" and row["precision"] in self.min_cosines:
            own = _cosine(row, "ours")
            if own is None:
                return f"cosine ≥ {_floor(self.min_cosines[row['precision']])}"
            peer = _cosine(row, row["best_peer"])
            beside = "" if peer is None else f" (peer {_floor(peer)})"
            return f"cosine ≥ {_floor(own)}{beside}"
        if row["task"] == "generate" and row["precision"] == "int8":
            ratio = self.parity["perplexity"] / self.parity["fp32_perplexity"]
            fidelity = self.parity.get("fidelity")
            agreement = f", top-1 {fidelity['top1_agreement']:.3f}" if fidelity else ""
            return f"perplexity × {ratio:.3f}{agreement}"
        if row["task"] == "generate" and row["precision"] == "fp32":
            return f"logits within {self.parity['max_absolute_error']:.0e}"
        return UNKNOWN


def _cosine(row: Row, engine: str) -> float | None:
    measured = row.get("fidelity", {}).get(engine, {})
    # Reports made before 2026-11-22 have random texts, under another name.
    before = row.get("min_cosine_to_fp32", {}).get(engine)
    cosine: float | None = measured.get("min_cosine", before)
    return cosine


def _floor(cosine: float) -> str:
    """Four decimals, rounded down but for errors of double precision."""
    return f"{int((cosine + 1e-9) * 1e4) / 1e4:.4f}"
