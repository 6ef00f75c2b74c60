"""Small models with LoRA adapters, as folders; and bundles that serve both, or merge an adapter."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from export.adapters import read_adapters
from export.bundle_writer import write_bundle
from export.sources import load_checkpoint
from model.bundle import Precision
from tests.export.importers.support import WORDS, randomise, save

MAX_POSITIONS = 128
ADAPTERS = ("one", "two")


def llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
    )
    model: LlamaForCausalLM = randomise(LlamaForCausalLM(config))
    return model


def t5() -> T5ForConditionalGeneration:
    config = T5Config(vocab_size=len(WORDS), d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    return T5ForConditionalGeneration(config)


def bert() -> BertForSequenceClassification:
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=MAX_POSITIONS,
    )
    config.num_labels = 3
    model: BertForSequenceClassification = randomise(BertForSequenceClassification(config))
    return model


# Linear maps of the second adapter, which has another rank; the first changes all in the layers.
SOME = {"llama": ["q_proj", "v_proj", "down_proj"], "t5": ["q", "v"], "bert": ["query", "value"]}
ALL = {
    "llama": "all-linear",
    "t5": ["q", "k", "v", "o", "wi", "wo"],
    "bert": r".*layer\.\d+\..*(query|key|value|dense)",
}
MODELS = {"llama": llama, "t5": t5, "bert": bert}


def adapt(folder: Path, out: Path, seed: int, size: float = 0.1, **options: Any) -> None:
    """Saves an adapter with random weights of about ``size`` for the model in ``folder``."""
    kind = next(kind for kind in MODELS if folder.name.startswith(kind))
    model = type(MODELS[kind]()).from_pretrained(folder)
    options = {"lora_alpha": 8, "init_lora_weights": False, **options}
    adapted = get_peft_model(model, LoraConfig(**options))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_A" in name or "lora_B" in name:
                weight.copy_(size * torch.randn(weight.shape, generator=generator))
    adapted.save_pretrained(str(out))


@dataclass(frozen=True)
class AdaptedModel:
    """A model and the adapters :data:`ADAPTERS` in folders."""

    base: Path
    adapters: dict[str, Path]

    def write(
        self, bundles: Path, name: str, precision: Precision = Precision.FP32, **options: Any
    ) -> Path:
        """Writes the bundle ``name`` of the model with its adapters."""
        checkpoint = load_checkpoint(str(self.base))
        sources = {key: str(path) for key, path in self.adapters.items()}
        adapters = read_adapters(sources, checkpoint, str(self.base))
        return write_bundle(
            checkpoint, bundles, name=name, precision=precision, adapters=adapters, **options
        )

    def write_merged(self, bundles: Path, adapter: str, name: str) -> Path:
        """Writes the fp32 bundle ``name`` of the model with a merged adapter."""
        checkpoint = load_checkpoint(str(self.adapters[adapter]), base=str(self.base))
        return write_bundle(checkpoint, bundles, name=name)


def adapted_model(root: Path, kind: str) -> AdaptedModel:
    """Saves a model of ``kind``, one of :data:`MODELS`, and its adapters below ``root``."""
    base = save(MODELS[kind](), root / kind)
    first, second = (root / f"{kind}-{name}" for name in ADAPTERS)
    adapt(base, first, 1, r=4, target_modules=ALL[kind])
    adapt(base, second, 2, r=2, use_rslora=True, target_modules=SOME[kind])
    return AdaptedModel(base, {"one": first, "two": second})
