"""The current server gives the recorded responses for bundles of an earlier version.

Replays the recorded request bytes. See README.md in this folder.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compatibility.compare import differences, report
from tests.compatibility.server import RECORDING, guarded_server, open_server, unpack
from tests.compatibility.wire import Call, Caller, Json

RESULT_KEYS = ("code", "message", "details", "responses")


def recorded() -> list[Json]:
    return [json.loads(line) for line in RECORDING.read_text(encoding="utf-8").splitlines()]


def group_of(line: Json) -> str:
    """The method, with a suffix for calls that are rejected on purpose."""
    return str(line["name"].rpartition("/")[0] or line["name"])


def is_refused_at_once(line: Json) -> bool:
    """Whether a call is refused before it takes a place in the queue."""
    name = str(line["name"])
    return name.startswith("refused/") and not name.endswith("/unwritable-choice")


LINES = recorded()
OPEN = [line for line in LINES if line["server"] == "open"]
GUARDED = [line for line in LINES if line["server"] != "open"]
GROUPS = sorted({group_of(line) for line in OPEN})


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("compatibility"))


@pytest.fixture(
    scope="module",
    params=[(1, 1), (2, 4)],
    ids=lambda param: f"{param[0]} lanes, {param[1]} calls at a time",
)
def responses(request: pytest.FixtureRequest, bundles: Path) -> Iterator[dict[str, Json]]:
    """The server's responses by call name."""
    num_lanes, num_at_a_time = request.param
    with open_server(bundles, num_lanes) as targets, Caller(targets) as caller:
        # Requests over a limit are refused for another reason while the queue has others.
        refused = [line for line in OPEN if is_refused_at_once(line)]
        others = [line for line in OPEN if line not in refused]
        received = [
            caller.send_all([Call.from_json(line) for line in lines], num_at_a_time)
            for lines in (others, refused)
        ]
        yield received[0] | received[1]


def explain(lines: list[Json], actual: dict[str, Json]) -> str:
    """A report of all differences; empty if there are none."""
    return report(
        itertools.chain.from_iterable(
            differences({key: line[key] for key in RESULT_KEYS}, actual[line["name"]], line["name"])
            for line in lines
        )
    )


@pytest.mark.parametrize("group", GROUPS)
def test_responses_match_the_recording(group: str, responses: dict[str, Json]) -> None:
    explained = explain([line for line in OPEN if group_of(line) == group], responses)
    assert not explained, f"\n{explained}"


def test_guarded_server_responses_match_the_recording(bundles: Path, tmp_path: Path) -> None:
    with guarded_server(bundles, tmp_path) as targets, Caller(targets) as caller:
        actual = caller.send_all([Call.from_json(line) for line in GUARDED])
    explained = explain(GUARDED, actual)
    assert not explained, f"\n{explained}"


def test_repeated_prompt_reuses_the_cache(bundles: Path) -> None:
    """``reused_tokens`` depends on earlier calls, so the recording omits it."""
    line = next(line for line in OPEN if line["name"] == "Generate/long-prompt")
    call = Call.from_json(line)
    with open_server(bundles, 1) as targets, Caller(targets) as caller:
        reused = [caller.num_reused_tokens(call) for _ in range(2)]
    assert reused[0] == 0
    assert reused[1] > 0
