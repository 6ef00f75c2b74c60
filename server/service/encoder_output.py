"""The output of an encoder for one window of a text, or for one image."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from server.engine.requests.update import JobUpdate
from server.errors import InternalError
from server.service.encoder_options import Floats


@dataclass(frozen=True, slots=True)
class EncoderOutput:
    """The model's output for one window or image; the fields are those of :class:`JobUpdate`."""

    vector: Floats
    token_vectors: Floats | None
    attention: Floats | None = None
    indices: npt.NDArray[np.int32] | None = None

    @classmethod
    def of(cls, update: JobUpdate) -> "EncoderOutput":
        """Takes the output from the update of a successful job."""
        if update.vector is None:
            raise InternalError
        return cls(update.vector, update.token_vectors, update.attention, update.indices)
