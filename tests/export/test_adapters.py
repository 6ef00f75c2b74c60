"""Bundles with LoRA adapters: factors, parity for each adapter, and what cannot be served."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from export.adapter_graph import stacked
from export.adapters import Factors, factors_of, low_rank, parse_adapters, read_adapters
from export.bundle_writer import write_bundle
from export.errors import ExportError, SourceError, UnsupportedError
from export.sources import load_checkpoint
from model.adapters import ADAPTERS as INPUT
from model.bundle import Device, Manifest, Precision
from model.bundle_files import read_manifest, read_parity
from tests.adapter_models import AdaptedModel, adapt, adapted_model, llama
from tests.export.importers.support import edit_json

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning"),
    pytest.mark.filterwarnings("ignore:Model (with|has) .tie_word_embeddings:UserWarning"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> AdaptedModel:
    return adapted_model(tmp_path_factory.mktemp("adapters"), "llama")


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.INT8])
@pytest.mark.parametrize(
    "kind", ["llama", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("t5", "bert"))]
)
def test_graphs_with_an_adapter_equal_its_merged_model(
    kind: str, precision: Precision, tmp_path: Path
) -> None:
    path = adapted_model(tmp_path, kind).write(tmp_path / "bundles", "model", precision)
    manifest, parity = read_manifest(path), read_parity(path)
    assert [(one.name, one.rank) for one in manifest.adapters or ()] == [("one", 4), ("two", 2)]
    assert all(INPUT in [x.name for x in graph.inputs] for graph in manifest.graphs.values())
    # write_bundle fails beyond the tolerance: these are the figures that it has compared.
    found = parity.adapters or ()
    assert [one.name for one in found] == ["one", "two"]
    for one in found:
        assert one.max_absolute_error <= parity.tolerance * 10
        assert one.greedy_tokens_equal == one.greedy_tokens_compared
        assert (one.greedy_tokens_compared > 0) == (kind != "bert")
        assert one.min_cosine >= 0.95


def test_a_bundle_without_adapters_lacks_the_fields(model: AdaptedModel, tmp_path: Path) -> None:
    path = write_bundle(load_checkpoint(str(model.base)), tmp_path, name="plain")
    for file in ("bundle.json", "parity.json"):
        assert "adapters" not in (path / file).read_text()
    assert read_manifest(path).adapters is msgspec.UNSET


def test_older_manifests_load(model: AdaptedModel, tmp_path: Path) -> None:
    path = model.write(tmp_path, "model")
    content = json.loads((path / "bundle.json").read_text())
    del content["adapters"]
    assert msgspec.convert(content, Manifest).adapters is msgspec.UNSET


def test_low_rank_finds_the_factors_of_a_change() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 160, generator=generator)
    a, b = torch.randn(96, 5, generator=generator), torch.randn(5, 160, generator=generator)
    found = low_rank(weight, weight + a @ b, max_rank=12)
    assert found is not None
    assert found.a.shape == (96, 5)
    torch.testing.assert_close(found.a @ found.b, a @ b, rtol=1e-5, atol=1e-5)
    assert low_rank(weight, weight + a @ b, max_rank=4) is None
    assert low_rank(weight, weight + torch.randn(96, 160, generator=generator), 12) is None


def test_factors_are_padded_to_the_largest_rank() -> None:
    small = Factors(torch.ones(3, 1), torch.ones(1, 2))
    large = Factors(torch.full((3, 2), 2.0), torch.full((2, 2), 2.0))
    a, b = stacked([(small,), (), (large,)], 2)
    assert (a.shape, b.shape) == ((4, 3, 2), (4, 2, 2))
    products = a @ b
    assert not products[[0, 2]].any()
    np.testing.assert_array_equal(products[1], np.ones((3, 2)))
    np.testing.assert_array_equal(products[3], np.full((3, 2), 8.0))


def test_factors_of_the_same_columns_have_adjacent_ranks() -> None:
    def factors(start: int, rank: int, width: int, value: float) -> Factors:
        return Factors(torch.ones(3, rank), torch.full((rank, width), value), start)

    first = (factors(0, 1, 2, 1.0), factors(2, 2, 3, 2.0))
    second = (factors(0, 2, 2, 3.0),)
    a, b = stacked([first, second], 5)
    assert (a.shape, b.shape) == ((3, 3, 4), (3, 4, 5))
    products = (a @ b)[:, 0]
    np.testing.assert_array_equal(products, [[0] * 5, [1, 1, 4, 4, 4], [6, 6, 0, 0, 0]])
    assert not b[:, :2, 2:].any()
    assert not b[:, 2:, :2].any()


@pytest.mark.parametrize(("is_shared", "num_parts"), [(False, 3), (True, 1)])
def test_parts_of_a_matrix_have_factors_of_their_own_if_those_are_smaller(
    is_shared: bool, num_parts: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 96, generator=generator)
    a = torch.randn(3, 64, 4, generator=generator)
    b = torch.randn(3, 4, 32, generator=generator)
    change = torch.cat([(a[0] if is_shared else a[i]) @ b[i] for i in range(3)], dim=1)
    found = factors_of(weight, weight + change, (0, 32, 64), 4)
    assert len(found) == num_parts
    whole = torch.zeros(64, 96)
    for each in found:
        whole[:, each.start : each.start + each.b.shape[1]] += each.a @ each.b
    torch.testing.assert_close(whole, change, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_dora": True}, "not of a low rank"),
        ({"modules_to_save": ["embed_tokens"]}, "it changes embedding.tokens.weight"),
        ({"modules_to_save": ["lm_head"]}, "it changes head.output.weight"),
        ({"target_modules": ["lm_head"]}, "it changes head.output.weight"),
        ({"modules_to_save": ["norm"]}, "it changes decoder.final_norm.weight"),
    ],
)
def test_what_cannot_be_served_is_refused(
    model: AdaptedModel, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    options = {"r": 2, "target_modules": ["q_proj"], **options}
    _save_changed(model.base, tmp_path / "adapter", options)
    checkpoint = load_checkpoint(str(model.base))
    with pytest.raises(UnsupportedError, match=message) as error:
        read_adapters({"bad": str(tmp_path / "adapter")}, checkpoint, str(model.base))
    assert "export the adapter alone" in str(error.value)
    assert "--adapter bad" in str(error.value)


def _save_changed(base: Path, folder: Path, options: dict[str, Any]) -> None:
    """An adapter whose trained weights all differ from the model's."""
    adapted = get_peft_model(
        type(llama()).from_pretrained(base), LoraConfig(init_lora_weights=False, **options)
    )
    with torch.no_grad():
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight), alpha=0.1)
    adapted.save_pretrained(str(folder))


def test_another_tokenizer_is_refused(model: AdaptedModel, tmp_path: Path) -> None:
    adapt(model.base, tmp_path / "adapter", 1, r=2, target_modules=["q_proj"])
    tokenizer = json.loads((model.base / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["w0"], tokenizer["model"]["vocab"]["w1"] = 5, 4
    (tmp_path / "adapter" / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UnsupportedError, match="not as in the base: tokenizer"):
        read_adapters(
            {"bad": str(tmp_path / "adapter")}, load_checkpoint(str(model.base)), str(model.base)
        )


def test_a_whole_model_is_no_adapter(model: AdaptedModel) -> None:
    with pytest.raises(SourceError, match=r"is no adapter: no adapter_config\.json"):
        read_adapters({"bad": str(model.base)}, load_checkpoint(str(model.base)), str(model.base))


def test_another_device_is_refused(model: AdaptedModel, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="not for --device cuda"):
        model.write(tmp_path, "model", device=Device.CUDA)
    assert not (tmp_path / "model").exists()


def test_an_own_chat_template_is_kept(model: AdaptedModel, tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    adapt(model.base, tmp_path / "adapter", 1, r=2, target_modules=["q_proj"])
    tokenizer = (model.base / "tokenizer.json").read_text()
    (tmp_path / "adapter" / "tokenizer.json").write_text(tokenizer)
    edit_json(tmp_path / "adapter" / "tokenizer_config.json", chat_template=template)
    (adapter,) = read_adapters(
        {"own": str(tmp_path / "adapter")}, load_checkpoint(str(model.base)), str(model.base)
    )
    assert adapter.spec.chat_template == template


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["support"], "write NAME=FOLDER"),
        (["support="], "write NAME=FOLDER"),
        (["a:b=folder"], "does not match"),
        (["a=x", "a=y"], "two adapters have this name"),
    ],
)
def test_malformed_options_are_refused(given: list[str], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        parse_adapters(given)
    assert parse_adapters(["a=x", "b=hf:me/y"]) == {"a": "x", "b": "hf:me/y"}
