"""An encoder-decoder whose sources may be longer than its targets, as in LED."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from client.errors import TriuneError
from client.sync import Client
from client.types import FinishReason
from export.bundle_writer import write_bundle
from model.bundle import Task
from model.config import EmbeddingConfig
from model.position_config import PositionConfig, PositionKind
from tests import architectures
from tests.server.clients import connected

TARGET, SOURCE = 24, 80
NAME = "long-sources"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = msgspec.structs.replace(
        architectures.VASWANI,
        position=PositionConfig(
            kind=PositionKind.LEARNED, max_positions=TARGET, max_source_positions=SOURCE
        ),
        embedding=EmbeddingConfig(separate_target=True),
    )
    checkpoint = dataclasses.replace(
        architectures.checkpoint("vaswani"),
        config=config,
        weights=architectures.random_weights(config),
        tasks=(Task.GENERATE, Task.TRANSLATE),
    )
    root = tmp_path_factory.mktemp("bundles")
    write_bundle(checkpoint, root, name=NAME)
    return root


@pytest.fixture(scope="module")
def client(bundles: Path) -> Iterator[Client]:
    with connected(bundles, "--threads", "1", "--slots", "2") as client:
        yield client


def text(num_tokens: int) -> str:
    """Each character is a token; the source has no special tokens."""
    return "".join(chr(40 + index % 50) for index in range(num_tokens))


@pytest.mark.parametrize("call", ["generate", "translate"])
def test_sources_and_targets_have_their_own_limits(client: Client, call: str) -> None:
    run = getattr(client, call)
    output = run(NAME, text(SOURCE), ignore_eos=True, token_ids=True).outputs[0]
    assert output.finish_reason == FinishReason.LENGTH
    assert len(output.token_ids) == TARGET - 1  # after the decoder's start token
    with pytest.raises(TriuneError, match=f"inputs.*at most {SOURCE} are accepted"):
        run(NAME, text(SOURCE + 1))


def test_the_model_tells_both_limits(client: Client) -> None:
    model = client.get_model(NAME)
    assert (model.max_length, model.max_source_length) == (TARGET, SOURCE)


def test_scores_long_sources_only(client: Client) -> None:
    assert client.score(NAME, [(text(SOURCE), "AB")]).outputs[0].score < 0
    for source, target in ((SOURCE + 1, 2), (SOURCE, TARGET)):
        with pytest.raises(TriuneError, match="tokens"):
            client.score(NAME, [(text(source), text(target))])


def test_the_server_limits_sources_too(bundles: Path) -> None:
    with connected(bundles, "--threads", "1", "--slots", "2", "--max-length", "40") as client:
        assert client.generate(NAME, text(40), max_new_tokens=2).outputs
        with pytest.raises(TriuneError, match="at most 40 are accepted"):
            client.generate(NAME, text(41), max_new_tokens=2)
