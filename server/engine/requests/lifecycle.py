"""The life of a sequence: one table. Every sequence ends in exactly one outcome."""

from enum import StrEnum


class Phase(StrEnum):
    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    ENDED = "ended"


class Event(StrEnum):
    ADMIT = "admit"  # a slot was given to it
    TOKEN = "token"  # the model produced a token
    END = "end"


class Outcome(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"  # the end-of-sequence token
    LENGTH = "length"
    DONE = "done"  # an encoder's only outcome of success
    TIME_LIMIT = "time_limit"  # the time that the caller gave it is over; what there is counts
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    UNSATISFIABLE = "unsatisfiable"  # what was asked for allows no token
    FAILED = "failed"


TRANSITIONS: dict[tuple[Phase, Event], Phase] = {
    (Phase.WAITING, Event.ADMIT): Phase.PREFILLING,
    (Phase.WAITING, Event.END): Phase.ENDED,
    (Phase.PREFILLING, Event.TOKEN): Phase.DECODING,
    (Phase.PREFILLING, Event.END): Phase.ENDED,
    (Phase.DECODING, Event.TOKEN): Phase.DECODING,
    (Phase.DECODING, Event.END): Phase.ENDED,
}


def advance(phase: Phase, event: Event) -> Phase:
    """The phase after ``event``. Raises ``ValueError`` if ``event`` cannot happen in ``phase``."""
    try:
        return TRANSITIONS[phase, event]
    except KeyError:
        raise ValueError(f"a {phase} sequence cannot {event}") from None
