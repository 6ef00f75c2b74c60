"""Image encoders with text decoders (``VisionEncoderDecoderModel``): TrOCR, ViT-GPT2, ViT-BERT.

TrOCR (Li et al. 2021) reads a line of text, ViT-GPT2 describes a picture.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.bert_decoder import bert_decoder
from export.importers.causal import architecture_of
from export.importers.encoders import Body
from export.importers.image_to_text import encoder_table, image_to_text
from export.importers.renaming import Rename, prefixed
from export.importers.text_decoders import TextDecoder, gpt2_decoder, trocr_decoder
from export.importers.vit import CLASS_TOKEN, DISTILLATION_TOKEN, vit_body
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.readers.image_processor import ImageProcessor, read_image_processor
from export.supported import lookup

Reader = TypeVar("Reader")

TABLE = "embedding.tokens.weight"
PROJECTION = "enc_to_dec_proj"  # of the encoder's vectors, if no matrix of the decoder reads them
# Fields that are read from the whole configuration if it has them, else from the decoder's.
TOKENS = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")


def _vit(config: Fields, processor: ImageProcessor) -> Body:
    return vit_body(config, processor, "ViT", (CLASS_TOKEN,))


def _deit(config: Fields, processor: ImageProcessor) -> Body:
    return vit_body(config, processor, "DeiT", (CLASS_TOKEN, DISTILLATION_TOKEN))


# By ``model_type`` of both parts.
ENCODERS: dict[str, Callable[[Fields, ImageProcessor], Body]] = {"vit": _vit, "deit": _deit}
DECODERS: dict[str, Callable[[Fields, int], TextDecoder]] = {
    "bert": bert_decoder,
    "gpt2": gpt2_decoder,
    "trocr": trocr_decoder,
}


def import_vision_encoder_decoder(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``VisionEncoderDecoderModel`` in ``folder``, ready for a bundle.

    A linear map between encoder and decoder is multiplied into the matrices that read its output.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    whole = folder.config
    architecture = architecture_of(whole, "VisionEncoderDecoderModel")
    encoder_config, decoder_config = whole.fields("encoder"), whole.fields("decoder")
    image_folder = replace(folder, config=encoder_config)
    read_encoder = _reader(ENCODERS, encoder_config)
    read_decoder = _reader(DECODERS, decoder_config)
    processor = read_image_processor(image_folder, encoder_config.positive("num_channels", 3))
    encoder = read_encoder(encoder_config, processor)
    decoder = read_decoder(decoder_config, encoder.hidden_size)
    if _has_own_output(decoder, folder.weights):
        untied = Fields({**decoder_config, "tie_word_embeddings": False}, decoder_config.origin)
        decoder = read_decoder(untied, encoder.hidden_size)
    table = prefixed(decoder.table, "decoder.")
    if _is_projected(decoder_config, encoder.hidden_size, decoder.hidden_size):
        table = list(after_projection(table))
    tokens = {name: whole[name] for name in TOKENS if whole.get(name) is not None}
    return image_to_text(
        replace(folder, config=Fields({**decoder_config, **tokens}, whole.origin)),
        architecture,
        encoder,
        decoder,
        processor,
        [*encoder_table(encoder.table, "encoder."), *table],
        prefixes=("encoder.", "decoder."),
    )


def _reader(table: dict[str, Reader], config: Fields) -> Reader:
    return lookup(table, config.text("model_type", ""), f"{config.origin}: model_type")


def _has_own_output(decoder: TextDecoder, weights: Mapping[str, Tensor]) -> bool:
    """Whether a tied output matrix is saved too, and is not the token table.

    ``transformers`` then uses the saved one, whatever the configuration says.
    """
    (table,) = (entry.sources[0] for entry in decoder.table if entry.target == TABLE)
    copies = (f"decoder.{name}" for name, target in decoder.copies.items() if target == TABLE)
    return any(
        name in weights and not torch.equal(weights[name], weights[f"decoder.{table}"])
        for name in copies
        if f"decoder.{table}" in weights
    )


def _is_projected(decoder: Fields, encoder_size: int, decoder_size: int) -> bool:
    """Whether a linear map makes the encoder's vectors as wide as the decoder's.

    Raises:
        SourceError: the decoder's matrices read vectors of another size.
    """
    given = decoder.optional_integer("cross_attention_hidden_size")
    if given not in (None, encoder_size):
        raise SourceError(
            f"{decoder.origin}: cross_attention_hidden_size is {given}, but the encoder's vectors "
            f"have {encoder_size} numbers"
        )
    return given is None and encoder_size != decoder_size


def after_projection(table: Iterable[Rename]) -> Iterable[Rename]:
    """``table``, with the map :data:`PROJECTION` before the matrices of keys and values.

    ``(x P + b) W + c = x (P W) + (b W + c)``.
    """
    entries = {entry.target: entry for entry in table}
    for target, entry in entries.items():
        module, _, part = target.rpartition(".")
        if not module.endswith("cross_attention.key_value"):
            yield entry
            continue
        weight, sources = entries[f"{module}.weight"], entry.sources
        if part == "bias":
            sources = (*sources, *weight.sources)
        yield Rename(target, (*sources, f"{PROJECTION}.{part}"), _folded(entry, weight))


def _folded(entry: Rename, weight: Rename) -> Callable[..., Tensor]:
    """The transform of ``entry``, the matrix ``weight`` or its bias, after the projection."""
    num_own = len(entry.sources)

    def matrix(*sources: Tensor) -> Tensor:
        return _product(sources[-1].T, entry.transform(*sources[:-1]))

    def bias(*sources: Tensor) -> Tensor:
        own, others = entry.transform(*sources[:num_own]), sources[num_own:-1]
        return own + _product(sources[-1], weight.transform(*others))

    return matrix if entry is weight else bias


def _product(x: Tensor, y: Tensor) -> Tensor:
    return (x.double() @ y.double()).to(torch.float32)
