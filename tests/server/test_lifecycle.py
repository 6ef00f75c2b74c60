"""The sequence state machine: every path ends, exactly once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.requests.lifecycle import (
    TRANSITIONS,
    Event,
    Outcome,
    Phase,
    advance,
    ending_event,
    has_ended,
)

ENDED = {Phase.FINISHED, Phase.FAILED}
LIVE = set(Phase) - ENDED


def test_all_live_phases_can_be_cancelled_and_ended() -> None:
    for phase in LIVE:
        assert advance(phase, Event.CANCEL) == Phase.CANCELLING
        assert advance(phase, Event.FINISH) == Phase.FINISHED
        assert advance(phase, Event.FAIL) == Phase.FAILED
        assert not has_ended(phase)


@pytest.mark.parametrize("phase", sorted(ENDED))
@pytest.mark.parametrize("event", Event)
def test_no_transition_leaves_the_final_phase(phase: Phase, event: Event) -> None:
    assert has_ended(phase)
    with pytest.raises(ValueError, match=f"a {phase} sequence cannot {event}"):
        advance(phase, event)


def test_all_phases_are_reachable() -> None:
    assert {phase for phase, _ in TRANSITIONS} == LIVE
    assert set(TRANSITIONS.values()) == set(Phase) - {Phase.WAITING}


@given(st.lists(st.sampled_from(Event), max_size=30))
def test_phases_advance_in_order(events: list[Event]) -> None:
    """A sequence never returns to an earlier phase."""
    order = list(Phase)
    phase = Phase.WAITING
    for event in events:
        if (phase, event) not in TRANSITIONS:
            continue
        after = advance(phase, event)
        assert order.index(after) >= order.index(phase)
        phase = after


def test_only_a_failure_ends_as_failed() -> None:
    failed = {outcome for outcome in Outcome if ending_event(outcome) == Event.FAIL}
    assert failed == {Outcome.FAILED, Outcome.OUT_OF_MEMORY}
