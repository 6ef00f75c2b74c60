"""Phi-3 against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Phi3Config, Phi3ForCausalLM

from tests.families.gated import AXES, SMALL, WINDOWS
from tests.families.harness import check_eager, check_graphs, imported


def parameters(fraction: float, *, long: bool, size: int = 16) -> dict[str, Any]:
    """RoPE parameters that rotate ``fraction`` of each head. ``long``: LongRoPE."""
    common = {"rope_theta": 10_000.0, "partial_rotary_factor": fraction}
    if not long:
        return common | {"rope_type": "default"}
    factors = [1 + 0.1 * index for index in range(int(size * fraction) // 2)]
    return common | {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": [4.0 * factor for factor in factors],
    }


LONG = {"max_position_embeddings": 384, "original_max_position_embeddings": 96}


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        AXES
        | {
            "sliding_window": st.none() | WINDOWS,
            "rope_parameters": st.builds(
                parameters, st.sampled_from((0.25, 0.75, 1.0)), long=st.booleans()
            ),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(Phi3ForCausalLM(Phi3Config(**SMALL | LONG | changes)))


def test_graphs_match_transformers() -> None:
    changes = LONG | {"rope_parameters": parameters(0.75, long=True), "sliding_window": 40}
    check_graphs("Phi-3", Phi3ForCausalLM(Phi3Config(**SMALL | changes)))


def test_longrope_limits_positions_to_the_original_context() -> None:
    config = Phi3Config(**SMALL | LONG | {"rope_parameters": parameters(1.0, long=True)})
    with imported(Phi3ForCausalLM(config)) as checkpoint:
        assert checkpoint.config.position.max_positions == 96
