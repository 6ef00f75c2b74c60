"""The interface through which grammars and timestamp rules constrain the engine's output."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Constraint(Protocol):
    """The state of a grammar, or of timestamp rules, after one output's tokens so far."""

    def mask(self, logits: Floats) -> None:
        """Sets the logits ``[vocabulary]`` of all tokens that may not come next to -inf.

        Raises:
            ConstraintError: the grammar became too expensive to follow.
        """

    def advance(self, token: int) -> None:
        """Consumes the next token. Raises ``ConstraintError`` if the grammar does not allow it."""

    def fork(self) -> "Constraint":
        """An independent copy of the state."""


class ConstraintError(Exception):
    """A grammar became too expensive to follow, or allows no token."""
