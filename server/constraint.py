"""The interface between the engine and grammars, or the rules of timestamps."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Constraint(Protocol):
    """A state after the tokens of one output so far: of a grammar, or of rules."""

    def mask(self, logits: Floats) -> None:
        """Sets the logits ``[vocabulary]`` of all tokens that may not come next to -inf.

        Raises:
            ConstraintError: the grammar became too expensive to follow.
        """

    def advance(self, token: int) -> None:
        """Takes the next token. Raises ``ConstraintError`` if the grammar does not allow it."""

    def fork(self) -> "Constraint":
        """An independent copy of the state."""


class ConstraintError(Exception):
    """A grammar that became too expensive to follow, or that allows no token."""
