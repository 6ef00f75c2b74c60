"""Llama from GGUF files written by the gguf package, against transformers."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from export.errors import ExportError, SourceError, UnsupportedError, WeightsError
from export.sources import load_checkpoint
from model.mixers import required
from model.position_config import LinearScaling
from tests.export.importers.support import logits, random_ids, randomise

NUM_HEADS, NUM_KV_HEADS = 4, 2
# A byte-level vocabulary: "Ġ" stands for a space.
TOKENS = ["<unk>", "<s>", "</s>", "<tool>", *"abcdefghijklmnopqrstuvwxyz0123456789", "Ġ", "ab"]
MERGES = ["a b"]
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers.": "blk.",
}


def llama(*, tied: bool = False) -> Any:
    shape: dict[str, Any] = {"attn_implementation": "eager"}
    config = LlamaConfig(
        **shape,
        vocab_size=len(TOKENS),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        intermediate_size=96,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 5e4},
        tie_word_embeddings=tied,
    )
    return randomise(LlamaForCausalLM(config))


def interleave(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Row ``i`` of the first half of each head beside row ``i`` of its second half."""
    first, second = np.split(weight.reshape(num_heads, -1, weight.shape[-1]), 2, axis=1)
    return np.stack([first, second], 2).reshape(weight.shape)


def write(
    path: Path,
    model: Any,
    *,
    family: str = "llama",
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    without: tuple[str, ...] = (),
    tensors: dict[str, np.ndarray] | None = None,
    **values: Any,
) -> Path:
    """Writes ``model`` as llama.cpp would. ``values`` override metadata; "__" stands for "."."""
    writer = gguf.GGUFWriter(path, family)
    metadata: dict[str, Any] = {
        "general.license": "apache-2.0",
        "llama.block_count": 2,
        "llama.context_length": 64,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": NUM_HEADS,
        "llama.attention.head_count_kv": NUM_KV_HEADS,
        "llama.rope.freq_base": 5e4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.token_type": [3, 3, 3, 4] + [1] * (len(TOKENS) - 4),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }
    metadata = {name.replace("llama.", f"{family}."): value for name, value in metadata.items()}
    metadata |= {name.replace("__", "."): value for name, value in values.items()}
    add: dict[type, Any] = {bool: writer.add_bool, int: writer.add_uint32}
    add |= {float: writer.add_float32, str: writer.add_string, list: writer.add_array}
    for name, value in metadata.items():
        if value is not None:
            add[type(value)](name, value)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        values_ = weight.numpy()
        if family == "llama" and ("q_proj" in name or "k_proj" in name):
            values_ = interleave(values_, NUM_HEADS if "q_proj" in name else NUM_KV_HEADS)
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)  # noqa: PLW2901
        if name not in without:
            add_tensor(writer, name, values_, kind if weight.ndim == 2 else None)
    for name, extra in (tensors or {}).items():
        add_tensor(writer, name, extra, None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tensor(
    writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: gguf.GGMLQuantizationType | None
) -> None:
    if kind in (None, gguf.GGMLQuantizationType.F32):
        writer.add_tensor(name, np.ascontiguousarray(values))
    else:
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)


@pytest.mark.parametrize("tied", [False, True])
def test_logits_match_the_original_model(tmp_path: Path, tied: bool) -> None:
    model = llama(tied=tied)
    checkpoint = load_checkpoint(str(write(tmp_path / "model.gguf", model)))
    ids = random_ids(3, 19) % len(TOKENS)
    with torch.no_grad():
        expected = model(ids).logits
    torch.testing.assert_close(logits(checkpoint, ids), expected, rtol=0, atol=1e-4)
    assert checkpoint.config.head.tied == tied


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "BF16", "F16"])
def test_quantized_weights_are_dequantized(tmp_path: Path, kind: str) -> None:
    model, type_ = llama(), gguf.GGMLQuantizationType[kind]
    checkpoint = load_checkpoint(str(write(tmp_path / "model.gguf", model, kind=type_)))
    weight = model.model.layers[1].mlp.down_proj.weight.detach().numpy()
    expected = gguf.dequantize(gguf.quantize(weight, type_), type_)
    actual = checkpoint.weights["decoder.layers.1.feed_forward.output.weight"]
    np.testing.assert_array_equal(actual.numpy(), expected.T)


def test_metadata_is_imported(tmp_path: Path) -> None:
    path = write(tmp_path / "Tiny.Q4.gguf", llama(), tokenizer__ggml__eot_token_id=3)
    checkpoint = load_checkpoint(str(path))
    assert checkpoint.name == "tiny.q4"
    assert checkpoint.license == "apache-2.0"
    assert checkpoint.chat_template == "{{ messages[0].content }}"
    assert checkpoint.special_tokens.eos == (2, 3)
    assert checkpoint.special_tokens.pad == 2
    assert checkpoint.special_tokens.bos == 1


def test_folder_must_have_one_gguf_file(tmp_path: Path) -> None:
    write(tmp_path / "one.gguf", llama())
    assert load_checkpoint(str(tmp_path)).name == "one"
    write(tmp_path / "two.gguf", llama())
    with pytest.raises(SourceError, match=r"several GGUF files, name one: one.gguf, two.gguf"):
        load_checkpoint(str(tmp_path))


def test_tokenizer_merges_splits_digits_and_parses_special_tokens(tmp_path: Path) -> None:
    checkpoint = load_checkpoint(str(write(tmp_path / "model.gguf", llama())))
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)
    encoding = tokenizer.encode("<s>abc 42<tool></s>")
    assert encoding.tokens == ["<s>", "ab", "c", "Ġ", "4", "2", "<tool>", "</s>"]
    assert tokenizer.decode(encoding.ids) == "abc 42<tool>"
    assert tokenizer.decode(encoding.ids, skip_special_tokens=False) == "<s>abc 42<tool></s>"


def test_add_bos_token_prepends_bos(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", llama(), tokenizer__ggml__add_bos_token=True)
    tokenizer = Tokenizer.from_str(load_checkpoint(str(path)).tokenizer_json)
    assert tokenizer.encode("ab").tokens == ["<s>", "ab"]
    assert tokenizer.encode("ab", add_special_tokens=False).tokens == ["ab"]


@pytest.mark.parametrize(("adds", "tokens"), [(None, ["<s>", "ab"]), (False, ["ab"])])
def test_llama_3_adds_bos_unless_the_file_forbids_it(
    tmp_path: Path, adds: bool | None, tokens: list[str]
) -> None:
    path = write(
        tmp_path / "model.gguf",
        llama(),
        tokenizer__ggml__pre="llama-bpe",
        tokenizer__ggml__add_bos_token=adds,
    )
    tokenizer = Tokenizer.from_str(load_checkpoint(str(path)).tokenizer_json)
    assert tokenizer.encode("ab").tokens == tokens


def test_tokens_that_end_an_output_are_named_or_found_by_their_text(tmp_path: Path) -> None:
    tokens = [*TOKENS]
    # As Qwen 2.5 Coder, whose file names <|im_end|> alone, and which ends code with the others.
    ends = {10: "<|im_end|>", 20: "<|endoftext|>", 21: "<|file_sep|>"}
    for id_, token in ends.items():
        tokens[id_] = token
    values: dict[str, Any] = {"tokenizer__ggml__tokens": tokens, "tokenizer__ggml__merges": []}
    path = write(tmp_path / "found.gguf", llama(), **values, tokenizer__ggml__eos_token_id=10)
    assert load_checkpoint(str(path)).special_tokens.eos == (10, 20, 21)
    path = write(tmp_path / "named.gguf", llama(), **values, tokenizer__ggml__eot_token_id=3)
    assert load_checkpoint(str(path)).special_tokens.eos == (2, 3, 10, 20, 21)


@pytest.mark.parametrize(
    ("values", "factor"),
    [
        ({"scale_linear": 4.0}, 4.0),
        ({"scaling__factor": 4.0}, 4.0),
        ({"scaling__type": "linear", "scale_linear": 4.0}, 4.0),
        ({"scaling__factor": 2.0, "scale_linear": 4.0}, 2.0),
        ({"scale_linear": 1.0}, None),
        ({"scaling__type": "none", "scale_linear": 4.0}, None),
    ],
)
def test_a_factor_without_a_type_is_linear(
    tmp_path: Path, values: dict[str, Any], factor: float | None
) -> None:
    named = {f"llama__rope__{name}": value for name, value in values.items()}
    checkpoint = load_checkpoint(str(write(tmp_path / "model.gguf", llama(), **named)))
    decoder = checkpoint.config.decoder
    assert decoder is not None
    rotary = required(decoder.layers[0].attention).rotary
    assert rotary is not None
    assert rotary.scaling == (factor and LinearScaling(factor=factor))


def test_all_missing_and_unexpected_weights_are_listed(tmp_path: Path) -> None:
    missing = ("blk.0.attn_k.weight", "output_norm.weight")
    extra = {name: np.zeros(4, np.float32) for name in ("blk.1.odd.weight", "extra")}
    path = write(tmp_path / "model.gguf", llama(), without=missing, tensors=extra)
    with pytest.raises(WeightsError) as caught:
        load_checkpoint(str(path))
    lines = str(caught.value).splitlines()[1:]
    assert sorted(lines) == sorted(
        [f"missing: {name}" for name in missing] + [f"unexpected: {name}" for name in extra]
    )


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        (
            {"general__architecture": "mamba"},
            UnsupportedError,
            "'mamba' is not supported; supported: command-r, falcon",
        ),
        ({"llama__rope__scaling__type": "yarn"}, UnsupportedError, "scaling.type 'yarn'"),
        ({"llama__rope__scaling__type": "linear"}, SourceError, "scaling.factor is missing"),
        ({"llama__rope__dimension_count": 8}, UnsupportedError, "dimension_count 8"),
        ({"llama__expert_count": 8}, UnsupportedError, "llama: expert_count 8"),
        (
            {"tokenizer__ggml__model": "bert"},
            UnsupportedError,
            "'bert' is not supported",
        ),
        ({"tokenizer__ggml__pre": "tekken"}, UnsupportedError, "pre-tokenizer 'tekken'"),
        ({"llama__block_count": 10**6}, SourceError, "block_count is 1000000, not in 0 to 1024"),
        ({"llama__embedding_length": None}, SourceError, "llama: embedding_length is missing"),
        ({"tokenizer__ggml__merges": ["a zz"]}, SourceError, "the tokenizer's merges"),
        ({"tokenizer__ggml__merges": ["ab"]}, SourceError, "merge 'ab' is not a pair"),
        ({"tokenizer__ggml__tokens": ["a"] * len(TOKENS)}, SourceError, "duplicate tokens"),
        ({"tokenizer__ggml__token_type": [1]}, SourceError, "1 token types for"),
    ],
)
def test_unsupported_or_invalid_metadata_is_rejected(
    tmp_path: Path, values: dict[str, Any], kind: type[ExportError], message: str
) -> None:
    path = write(tmp_path / "model.gguf", llama(), **values)
    with pytest.raises(kind) as caught:
        load_checkpoint(str(path))
    assert message in str(caught.value)


def test_rope_frequency_factors_of_the_wrong_size_are_rejected(tmp_path: Path) -> None:
    extra = {"rope_freqs.weight": np.ones(7, np.float32)}
    path = write(tmp_path / "model.gguf", llama(), tensors=extra)
    with pytest.raises(SourceError, match=r"rope_freqs.weight does not fit"):
        load_checkpoint(str(path))
