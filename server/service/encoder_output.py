"""What an encoder returns for one window of a text, or for one image."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from server.engine.requests.update import JobUpdate
from server.errors import InternalError
from server.service.encoder_options import Floats


@dataclass(frozen=True, slots=True)
class EncoderOutput:
    """The model's output for one window, as in :class:`JobUpdate`."""

    vector: Floats
    token_vectors: Floats | None
    attention: Floats | None = None
    indices: npt.NDArray[np.int32] | None = None

    @classmethod
    def of(cls, update: JobUpdate) -> "EncoderOutput":
        """The output in the update of a job that succeeded."""
        if update.vector is None:
            raise InternalError
        return cls(update.vector, update.token_vectors, update.attention, update.indices)
