"""Log-probabilities of given tokens, from the logits of a peer."""

from typing import Any

import numpy as np


def score(logits: Any, tokens: list[int], start: int) -> dict[str, list[Any]]:
    """Scores ``tokens[start:]``, each given all tokens before it.

    Args:
        logits: ``[T, V]``; row ``t`` predicts token ``t + 1``.

    Returns:
        ``logprobs``, natural, and ``top``, the likeliest token in each place.
    """
    rows = np.asarray(logits[start - 1 : len(tokens) - 1], np.float64)
    rows = rows - rows.max(1, keepdims=True)
    normalizers = np.log(np.exp(rows).sum(1))
    chosen = rows[np.arange(len(rows)), tokens[start:]]
    return {"logprobs": (chosen - normalizers).tolist(), "top": rows.argmax(1).tolist()}


def score_all(message: dict[str, Any], logits_of: Any) -> dict[str, Any]:
    """The reply to ``score``. ``logits_of`` maps token ids to logits ``[T, V]``."""
    rows = [
        score(logits_of(ids), ids, start)
        for ids, start in zip(message["inputs"], message["starts"], strict=True)
    ]
    return {key: [row[key] for row in rows] for key in ("logprobs", "top")}
