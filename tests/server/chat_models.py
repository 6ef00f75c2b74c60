"""Small chat models, of any tokenizer and chat template."""

from pathlib import Path

from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from export.bundle_writer import write_bundle
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, randomise


def chat_bundles(root: Path, tokenizer: Tokenizer, template: str, max_positions: int) -> Path:
    """Writes a random decoder, ``model``, whose token 0 ends an output. Returns its bundles."""
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=max_positions,
        bos_token_id=None,
        eos_token_id=0,
    )
    randomise(LlamaForCausalLM(config)).save_pretrained(root / "source")
    tokenizer.save(str(root / "source" / "tokenizer.json"))
    edit_json(root / "source" / "tokenizer_config.json", chat_template=template)
    write_bundle(load_checkpoint(str(root / "source")), root / "bundles", name="model")
    return root / "bundles"
