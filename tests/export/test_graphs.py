"""Properties of exported graphs besides parity."""

from pathlib import Path

import pytest
import torch

from export.graphs import export_graphs
from model.kernels import Step
from model.transformer import from_weights
from tests import architectures


@pytest.mark.parametrize("name", ["llama", "gpt"])
def test_logit_positions_select_the_outputs_of_a_full_run(name: str) -> None:
    """The last feed-forward runs on the selected positions only."""
    checkpoint = architectures.checkpoint(name)
    model = from_weights(checkpoint.config, checkpoint.weights)
    ids = torch.arange(2 * 5).reshape(2, 5) + 3
    step = Step.whole(torch.tensor([5, 5], dtype=torch.int32))
    full = model.decode(ids, step).hidden.reshape(10, -1)
    positions = torch.tensor([9, 4, 4], dtype=torch.int32)
    torch.testing.assert_close(
        model.decode(ids, step, logit_positions=positions).hidden[0], full[positions]
    )


def test_graphs_contain_no_local_paths(tmp_path: Path) -> None:
    checkpoint = architectures.checkpoint("llama")
    for graph in export_graphs(checkpoint.config, checkpoint.weights, tmp_path).values():
        content = (tmp_path / graph.file).read_bytes()
        assert b"decode" in content or b"token_ids" in content
        assert b"site-packages" not in content
        assert str(Path(__file__).parents[2]).encode() not in content
