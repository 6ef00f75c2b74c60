"""Compares the logits of recorded runs with those of the decode graph."""

import numpy as np

from server.constraint import Floats
from server.engine.decoding.sampling import log_probabilities

# In nats, between graphs that round differently: bf16 logits from 16 to 32 are 1/8 apart.
MAX_DIFFERENCE = 0.5


def check_logits(found: Floats, expected: Floats, position: int) -> None:
    """Compares the log-probabilities of logits ``[rows, vocabulary]``.

    Args:
        found: the logits of a recorded run.
        expected: the logits of the decode graph.
        position: the position of the tokens, for the message.

    Raises:
        RuntimeError: one differs by more than :data:`MAX_DIFFERENCE` nats, or is not finite.
    """
    difference = float(np.abs(log_probabilities(found) - log_probabilities(expected)).max())
    if not difference <= MAX_DIFFERENCE:  # NaN too
        raise RuntimeError(
            f"a run of {len(found)} rows at position {position} differs from the decode graph by "
            f"{difference:.3g} nats in a log-probability"
        )
