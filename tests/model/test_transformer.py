"""The whole model: parameters, states, and stepwise decoding."""

import subprocess
import sys

import msgspec
import pytest
import torch

from export.state_specs import decoder_states
from model.config import Branches, Kind, ModelConfig
from model.kernels import PositionEncodings, Step
from model.mixer_state import State
from model.transformer import Transformer, from_weights, parameter_shapes
from tests.architectures import ARCHITECTURES, BERT, LLAMA, SSRU, VASWANI, random_weights

WITH_DECODER = [name for name, c in ARCHITECTURES.items() if c.kind != Kind.ENCODER]


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def model_of(config: ModelConfig) -> Transformer:
    return from_weights(config, random_weights(config))


@pytest.mark.parametrize("name", WITH_DECODER)
def test_stepwise_decoding_matches_a_full_pass(name: str) -> None:
    model = model_of(ARCHITECTURES[name])
    ids = torch.tensor([[3, 14, 15, 9, 26, 5]])
    source, source_lengths = torch.tensor([[2, 7, 18, 28]]), None
    first: list[State] | None = None
    if model.config.kind == Kind.ENCODER_DECODER:
        source_lengths = i32(4)
        first = model.encode_source(source, source_lengths)
    whole = model.logits(model.decode(ids, Step.whole(i32(6), source_lengths), first).hidden)

    states = [dict(state) for state in first] if first else [{} for _ in model.decoder.order]
    for spec in decoder_states(model.config):
        name, layer = spec.name.split(".")
        if spec.source is None:
            shape = [8 if size == "length" else int(size) for size in spec.shape]
            states[int(layer)][name] = torch.zeros(1, *shape)
    for position in range(6):
        step = Step(i32(position), i32(1), i32(position + 1)[0], source_lengths, i32(4)[0])
        if source_lengths is None:
            step = Step(i32(position), i32(1), i32(position + 1)[0])
        hidden, states = model.decode(ids[:, position : position + 1], step, states)
        torch.testing.assert_close(
            model.logits(hidden)[:, 0], whole[:, position], rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("config", [BERT, ARCHITECTURES["classifier"], ARCHITECTURES["splade"]])
def test_encoder_rows_do_not_depend_on_their_batch(config: ModelConfig) -> None:
    model = model_of(config)
    rows = [[5, 6, 7, 8, 9], [11, 12], [20]]
    ids = torch.zeros(3, 5, dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
    segments = [torch.zeros_like(ids)] if config.embedding.num_segments else []
    lengths = i32(5, 2, 1)
    batched = model.pool(model.encode(ids, lengths, *segments), lengths)
    for index, row in enumerate(rows):
        one, length = torch.tensor([row]), i32(len(row))
        segments = [torch.zeros_like(one)] if config.embedding.num_segments else []
        alone = model.pool(model.encode(one, length, *segments), length)[0]
        torch.testing.assert_close(batched[index], alone, rtol=1e-4, atol=1e-5)


def test_unattended_tokens_change_no_other_token() -> None:
    model = model_of(ARCHITECTURES["colbert"])
    ids, lengths = torch.arange(24).view(2, 12), i32(12, 9)
    vectors = model.pool(model.encode(ids, lengths, None, i32(3, 9)), lengths)
    torch.testing.assert_close(vectors.norm(dim=2), torch.ones(2, 12))
    alone = model.pool(model.encode(ids[:1, :3], i32(3)), i32(3))
    torch.testing.assert_close(vectors[:1, :3], alone)
    changed = ids.clone()
    changed[0, 3:] = 60
    others = model.pool(model.encode(changed, lengths, None, i32(3, 9)), lengths)
    torch.testing.assert_close(vectors[:1, :3], others[:1, :3])
    torch.testing.assert_close(vectors[1], others[1])
    assert not torch.allclose(vectors[0, 3:], others[0, 3:])


def test_embeddings_are_normalized() -> None:
    model = model_of(BERT)
    ids = torch.arange(12).view(3, 4)
    lengths = i32(4, 2, 3)
    vectors = model.pool(model.encode(ids, lengths, torch.zeros_like(ids)), lengths)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(3))


def test_parameter_names_and_shapes() -> None:
    shapes = parameter_shapes(LLAMA)
    assert shapes["embedding.tokens.weight"] == (61, 64)
    assert shapes["decoder.layers.1.mixer.qkv.weight"] == (64, (4 + 2 * 2) * 16)
    assert shapes["decoder.layers.0.feed_forward.input.weight"] == (64, 2 * 96)
    assert "head.output.weight" not in shapes  # tied
    assert "decoder.layers.0.mixer_norm.bias" not in shapes  # RMSNorm
    assert "decoder.final_norm.weight" in shapes
    recurrent = parameter_shapes(SSRU)
    assert recurrent["decoder.layers.0.mixer.forget.bias"] == (64,)
    assert "decoder.layers.0.mixer.candidate.bias" not in recurrent
    assert recurrent["head.output.bias"] == (61,)
    assert parameter_shapes(VASWANI)["decoder.layers.1.cross_attention.key_value.weight"] == (
        64,
        128,
    )


def test_shared_layers_have_one_set_of_weights() -> None:
    config = ARCHITECTURES["classifier"]
    shapes = parameter_shapes(config)
    assert not any(name.startswith("encoder.layers.1") for name in shapes)
    assert shapes["embedding.tokens.weight"] == (61, 24)
    assert shapes["embedding.projection.weight"] == (24, 64)
    assert config.encoder is not None
    once = msgspec.structs.replace(
        config, encoder=msgspec.structs.replace(config.encoder, order=(0,))
    )
    layer = from_weights(once, random_weights(once)).encoder.layers[0]
    ids, lengths = torch.arange(12).view(2, 6), i32(6, 4)
    twice = layer(
        from_weights(once, random_weights(once)).encode(ids, lengths), lengths, PositionEncodings()
    )
    torch.testing.assert_close(model_of(config).encode(ids, lengths), twice)


def test_from_weights_does_not_copy() -> None:
    weights = random_weights(LLAMA)
    model = from_weights(LLAMA, weights)
    tensor = model.state_dict()["embedding.tokens.weight"]
    assert tensor.data_ptr() == weights["embedding.tokens.weight"].data_ptr()


def test_manifest_does_not_import_torch() -> None:
    code = "import sys, model.bundle, model.config; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert result.stdout.strip() == "False"


def test_parallel_branches_are_pre_norm() -> None:
    assert BERT.encoder is not None
    layers = [
        msgspec.structs.replace(layer, branches=Branches.PARALLEL) for layer in BERT.encoder.layers
    ]
    encoder = msgspec.structs.replace(BERT.encoder, layers=tuple(layers))
    with pytest.raises(ValueError, match="parallel branches are pre-norm, not post-norm"):
        parameter_shapes(msgspec.structs.replace(BERT, encoder=encoder))
