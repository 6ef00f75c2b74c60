"""Small random decoders that read images in prompts, as ``transformers`` saves them, and bundles.

Each folder has the model and its processor: an expected answer is one of ``transformers``.
"""

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedTokenizerFast,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.llava.processing_llava import LlavaProcessor

from export.bundle_writer import write_bundle
from export.sources import load_checkpoint
from model.bundle import Precision
from tests.export.importers.support import randomise

SIDE = 24
IMAGE, END, FAKE = "<image>", "</s>", "<fake_token_around_image>"
SPECIAL = (END, IMAGE)
# Images come first in a message, as in the template of LLaVA 1.5.
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | upper }}: "
    "{% for part in message['content'] if part['type'] == 'image' %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
# As the template of SmolVLM: images stay where they are.
TILES_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | capitalize }}: "
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% elif part['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
TEXT: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 0,
}
TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": 8,
}


def tokenizer(special: tuple[str, ...] = SPECIAL) -> PreTrainedTokenizerFast:
    """One token for each character, after the special tokens."""
    known = dict.fromkeys([*special, *string.printable])
    vocabulary = {token: index for index, token in enumerate(known)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, pad_token=END)


def save_llava(folder: Path) -> None:
    """Writes LLaVA and its processor: 9 tokens for each image."""
    read = tokenizer()
    config = LlavaConfig(
        text_config=TEXT | {"vocab_size": len(read)},
        vision_config=TOWER | {"model_type": "clip_vision_model"},
        image_token_index=read.get_vocab()[IMAGE],
    )
    randomise(LlavaForConditionalGeneration(config)).save_pretrained(folder)
    size = {"height": SIDE, "width": SIDE}
    LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=size),
        tokenizer=read,
        patch_size=TOWER["patch_size"],
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    ).save_pretrained(folder)


def save_idefics3(folder: Path) -> None:
    """Writes Idefics 3 and its processor: 4 tokens for each tile."""
    rows = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    read = tokenizer((*SPECIAL, FAKE, "<global-img>", "<end_of_utterance>", *rows))
    config = Idefics3Config(
        text_config=TEXT | {"vocab_size": len(read)},
        vision_config=TOWER | {"image_size": 16, "patch_size": 4},
        image_token_id=read.get_vocab()[IMAGE],
        scale_factor=2,
    )
    randomise(Idefics3ForConditionalGeneration(config)).save_pretrained(folder)
    sizes: dict[str, Any] = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 16}}
    Idefics3Processor(
        image_processor=Idefics3ImageProcessorPil(**sizes),
        tokenizer=read,
        image_seq_len=4,
        chat_template=TILES_TEMPLATE,
    ).save_pretrained(folder)


SAVE: dict[str, Callable[[Path], None]] = {"llava": save_llava, "idefics3": save_idefics3}


def write_bundle_of(path: Path, name: str) -> None:
    """Writes the source ``path/sources/NAME`` and its bundle ``path/NAME``."""
    source = path / "sources" / name
    if not source.exists():
        SAVE[name](source)
    if not (path / "bundles" / name).exists():
        checkpoint = load_checkpoint(str(source))
        write_bundle(checkpoint, path / "bundles", name=name, precision=Precision.FP32)
