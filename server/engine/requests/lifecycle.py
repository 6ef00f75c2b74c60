"""The lifecycle of a sequence, or of a text to encode, as one transition table.

It is the only state machine of a request: code that depends on a sequence's progress checks the
sequence's phase. Every sequence ends with exactly one outcome.

::

    WAITING ──▶ ENCODING ──▶ PREFILLING ──▶ DECODING ──▶ FINISHED or FAILED

A sequence of a decoder-only model skips ENCODING; a text to encode ends after it. A cancelled
sequence is CANCELLING until the next step, which ends it.
"""

from enum import StrEnum
from typing import NamedTuple


class Phase(StrEnum):
    """The progress of a sequence."""

    WAITING = "waiting"  # in the queue, without a slot
    ENCODING = "encoding"  # admitted; the encoder next runs over its source or text
    PREFILLING = "prefilling"  # the decoder processes its prompt
    DECODING = "decoding"  # at least one token was generated
    CANCELLING = "cancelling"  # the next step ends it
    FINISHED = "finished"
    FAILED = "failed"  # its slot may hold values that are not finite


class Event(StrEnum):
    """An event of a sequence's lifecycle."""

    ENCODE = "encode"  # it is admitted, and the encoder runs first
    PREFILL = "prefill"  # it is admitted or encoded, and its prompt is prefilled next
    TOKEN = "token"  # its next token was chosen
    CANCEL = "cancel"
    FINISH = "finish"
    FAIL = "fail"


class Outcome(StrEnum):
    """Why an output ended."""

    STOP = "stop"  # an end-of-sequence token
    LENGTH = "length"  # max_new_tokens was reached, or the slot is full
    DONE = "done"  # the text was encoded
    TIME_LIMIT = "time_limit"  # ``finish_by`` passed: the partial output is the result
    DEADLINE = "deadline"  # the client's timeout passed
    CANCELLED = "cancelled"
    UNSATISFIABLE = "unsatisfiable"  # the constraint allows no token
    NO_TOKEN = "no_token"  # the logits processors forbid every token
    OUT_OF_MEMORY = "out_of_memory"  # the device had no memory for a run
    FAILED = "failed"


class Ending(NamedTuple):
    """How an output ends. ``failure``: what went wrong, for the client; else empty."""

    outcome: Outcome
    failure: str = ""


_W, _E, _P, _D = Phase.WAITING, Phase.ENCODING, Phase.PREFILLING, Phase.DECODING

TRANSITIONS: dict[tuple[Phase, Event], Phase] = {
    (_W, Event.ENCODE): _E,
    (_W, Event.PREFILL): _P,
    (_E, Event.PREFILL): _P,
    (_P, Event.TOKEN): _D,
    (_D, Event.TOKEN): _D,
    **{(phase, Event.CANCEL): Phase.CANCELLING for phase in (_W, _E, _P, _D, Phase.CANCELLING)},
    **{(phase, Event.FINISH): Phase.FINISHED for phase in (_W, _E, _P, _D, Phase.CANCELLING)},
    **{(phase, Event.FAIL): Phase.FAILED for phase in (_W, _E, _P, _D, Phase.CANCELLING)},
}


def advance(phase: Phase, event: Event) -> Phase:
    """Returns the phase after ``event``. Raises ``ValueError`` if ``phase`` does not allow it."""
    try:
        return TRANSITIONS[phase, event]
    except KeyError:
        raise ValueError(f"a {phase} sequence cannot {event}") from None


def has_ended(phase: Phase) -> bool:
    """Whether a sequence in ``phase`` has ended: no event is possible any more."""
    return phase in {Phase.FINISHED, Phase.FAILED}


def ending_event(outcome: Outcome) -> Event:
    """Returns the event that ends a sequence with ``outcome``."""
    return Event.FAIL if outcome in {Outcome.FAILED, Outcome.OUT_OF_MEMORY} else Event.FINISH
