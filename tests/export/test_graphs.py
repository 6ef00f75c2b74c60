"""What the graphs of a model are besides correct."""

from pathlib import Path

import pytest
import torch

from export.graphs import export_graphs
from model.kernels import Step
from model.transformer import from_weights
from tests import architectures


@pytest.mark.parametrize("name", ["llama", "gpt"])
def test_chosen_tokens_are_those_of_all(name: str) -> None:
    """The last feed-forward reads them alone."""
    checkpoint = architectures.checkpoint(name)
    model = from_weights(checkpoint.config, checkpoint.weights)
    ids = torch.arange(2 * 5).reshape(2, 5) + 3
    step = Step.whole(torch.tensor([5, 5], dtype=torch.int32))
    every = model.decode(ids, step).hidden.reshape(10, -1)
    chosen = torch.tensor([9, 4, 4], dtype=torch.int32)
    torch.testing.assert_close(
        model.decode(ids, step, logit_positions=chosen).hidden[0], every[chosen]
    )


def test_graphs_say_nothing_of_the_machine_that_made_them(tmp_path: Path) -> None:
    checkpoint = architectures.checkpoint("llama")
    for graph in export_graphs(checkpoint.config, checkpoint.weights, tmp_path).values():
        written = (tmp_path / graph.file).read_bytes()
        assert b"decode" in written or b"token_ids" in written
        assert b"site-packages" not in written
        assert str(Path(__file__).parents[2]).encode() not in written
