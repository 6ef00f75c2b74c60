"""BLIP (Li et al. 2022): texts about images, as ``transformers`` saves it."""

from dataclasses import replace

from export.checkpoint import Checkpoint
from export.importers import vit_tables
from export.importers.activations import activation
from export.importers.bert_decoder import decoder_like_bert
from export.importers.bert_tables import POSITIONS, num_layers, two_maps
from export.importers.causal import architecture_of
from export.importers.encoders import Body
from export.importers.image_to_text import encoder_table, image_to_text
from export.importers.renaming import affine, linear, per_layer, prefixed
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.readers.image_processor import ImageProcessor, read_image_processor
from export.supported import check_supported
from model.config import EmbeddingConfig, StackConfig

VISION, TEXT = "vision_model.", "text_decoder."
IMAGE_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 384,
}
TEXT_DEFAULTS = {**IMAGE_DEFAULTS, "num_attention_heads": 8, "vocab_size": 30524}
BOS, SEPARATOR = 30522, 102  # defaults; a text ends with the separator
_ENCODER, _SOURCE = "encoder.layers.{n}", "encoder.layers.{n}"
IMAGE_LAYER = (
    *linear(f"{_ENCODER}.mixer.qkv", f"{_SOURCE}.self_attn.qkv", bias=True),
    *linear(f"{_ENCODER}.mixer.output", f"{_SOURCE}.self_attn.projection", bias=True),
    *affine(f"{_ENCODER}.mixer_norm", f"{_SOURCE}.layer_norm1"),
    *linear(f"{_ENCODER}.feed_forward.input", f"{_SOURCE}.mlp.fc1", bias=True),
    *linear(f"{_ENCODER}.feed_forward.output", f"{_SOURCE}.mlp.fc2", bias=True),
    *affine(f"{_ENCODER}.feed_forward_norm", f"{_SOURCE}.layer_norm2"),
)


def import_blip(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``BlipForConditionalGeneration`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    whole = folder.config
    check_supported(whole, tie_word_embeddings=(True,))
    architecture = architecture_of(whole, "BlipForConditionalGeneration")
    images = whole.fields("vision_config").with_defaults(**IMAGE_DEFAULTS)
    texts = whole.fields("text_config").with_defaults(**TEXT_DEFAULTS)
    processor = read_image_processor(replace(folder, config=whole), 3)
    encoder = _encoder(images, processor)
    check_supported(texts, encoder_hidden_size=(encoder.hidden_size,))
    decoder = decoder_like_bert(texts, encoder.hidden_size, POSITIONS)
    # Its class starts and ends texts with these tokens, whatever generation_config.json says.
    tokens = {
        "decoder_start_token_id": texts.integer("bos_token_id", BOS),
        "eos_token_id": texts.integer("sep_token_id", SEPARATOR),
        "pad_token_id": texts.integer("pad_token_id", 0),
    }
    generation = Fields({**folder.generation_config, **tokens}, folder.generation_config.origin)
    table = [*encoder_table(encoder.table, VISION), *prefixed(decoder.table, TEXT)]
    folder = replace(folder, config=Fields({**texts, **tokens}, whole.origin))
    folder = replace(folder, generation_config=generation)
    prefixes = (VISION, TEXT)
    return image_to_text(
        folder, architecture, encoder, decoder, processor, table, prefixes=prefixes
    )


def _encoder(config: Fields, processor: ImageProcessor) -> Body:
    patches = vit_tables.read_patches(config, processor)
    layer = vit_tables.pre_norm_layer(
        config, two_maps(config, activation(config, "hidden_act", "gelu")), epsilon=1e-5
    )
    layers = (layer,) * num_layers(config)
    return Body(
        base="vision_model",
        hidden_size=config.positive("hidden_size"),
        position=patches.position,
        embedding=EmbeddingConfig(),
        patches=patches,
        encoder=StackConfig(layers=layers, final_norm=layer.norm),
        table=(
            *vit_tables.patch_map("embeddings.patch_embedding"),
            vit_tables.class_tokens("embeddings.class_embedding"),
            vit_tables.position_table("embeddings.position_embedding", patches),
            *per_layer(IMAGE_LAYER, len(layers)),
            *affine("encoder.final_norm", "post_layernorm"),
        ),
    )
