"""Properties of graphs besides parity."""

from pathlib import Path

import pytest
import torch

from export.graphs import export_graphs
from model.kernels import Step
from model.transformer import from_weights
from tests import architectures


@pytest.mark.parametrize("name", ["llama", "gpt"])
def test_selected_tokens_equal_those_of_a_full_run(name: str) -> None:
    """Although the last feed-forward runs on them alone."""
    checkpoint = architectures.checkpoint(name)
    model = from_weights(checkpoint.config, checkpoint.weights)
    ids = torch.arange(2 * 5).reshape(2, 5) + 3
    step = Step.whole(torch.tensor([5, 5], dtype=torch.int32))
    full = model.decode(ids, step).hidden.reshape(10, -1)
    positions = torch.tensor([9, 4, 4], dtype=torch.int32)
    torch.testing.assert_close(
        model.decode(ids, step, logit_positions=positions).hidden[0], full[positions]
    )


def test_graphs_contain_no_paths_of_the_machine(tmp_path: Path) -> None:
    checkpoint = architectures.checkpoint("llama")
    for graph in export_graphs(checkpoint.config, checkpoint.weights, tmp_path).values():
        written = (tmp_path / graph.file).read_bytes()
        assert b"decode" in written or b"token_ids" in written
        assert b"site-packages" not in written
        assert str(Path(__file__).parents[2]).encode() not in written
