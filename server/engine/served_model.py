"""A model that the lanes of an engine serve."""

import asyncio
from dataclasses import dataclass, field

from server.engine.requests.admission import Admission


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A served model.

    ``ready`` completes when all lanes have prepared their workers. ``idle`` is set when the last
    accepted job ends.
    """

    admission: Admission
    ready: "asyncio.Future[list[None]]"
    idle: asyncio.Event = field(default_factory=asyncio.Event)
