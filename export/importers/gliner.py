"""GLiNER (Zaratiana et al. 2023), as the package ``gliner`` saves it: an encoder with a span head.

The folder has ``gliner_config.json``, safetensors and the tokenizer. The encoder is read by the
importer of its family.
"""

from dataclasses import replace
from pathlib import Path

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
from export.importers.encoder_families import ENCODERS
from export.importers.span_heads import ARCHITECTURE, GLINER_FIELD
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder, read_folder
from export.readers.renamed_weights import RenamedWeights
from export.supported import check_supported, lookup
from export.tokenization.hugging_face import read_fields
from model.config import HeadKind

GLINER_FILE = "gliner_config.json"
BACKBONE = "token_rep_layer.bert_layer.model."
# Architectures of the package other than the uni-encoder, by the field that only they have.
OTHERS = {
    "labels_encoder": "a bi-encoder",
    "labels_encoder_config": "a bi-encoder",
    "labels_decoder": "a decoder of labels",
    "relations_layer": "relation extraction",
}


def is_gliner(path: Path) -> bool:
    """Whether ``path`` is a folder in this format."""
    return (path / GLINER_FILE).is_file()


def import_gliner(path: Path) -> Checkpoint:
    """The model in the folder ``path``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = read_fields(path / GLINER_FILE)
    _check(config)
    encoder = config.fields("encoder_config")
    if not encoder:
        raise SourceError(
            f"{path / GLINER_FILE}: no encoder_config: save the model again with the package "
            "gliner: GLiNER.from_pretrained(SOURCE).save_pretrained(FOLDER, "
            "safe_serialization=True)"
        )
    importer = lookup(ENCODERS, encoder.text("model_type"), f"{config.origin}: model_type")
    checkpoint = importer(_backbone(read_folder(path, GLINER_FILE), encoder))
    if checkpoint.config.head.kind != HeadKind.SPAN_CLASSIFICATION:
        raise UnsupportedError(
            f"{config.origin}: encoders of the family {encoder.text('model_type')} are not "
            "supported in GLiNER"
        )
    return checkpoint


def _check(config: Fields) -> None:
    """Raises ``UnsupportedError`` for another architecture, which it names, or another variant."""
    for name, architecture in OTHERS.items():
        if config.get(name):
            raise UnsupportedError(
                f"{config.origin}: {name}: {architecture} is not supported; supported: models "
                "that find entities with one encoder"
            )
    check_supported(
        config,
        span_mode=("markerV0",),
        subtoken_pooling=("first",),
        words_splitter_type=("whitespace",),
        fuse_layers=(False,),
        post_fusion_schema=("",),
        precomputed_prompts_mode=(False,),
        span_encoder_config=(),
    )


def _backbone(folder: HuggingFaceFolder, encoder: Fields) -> HuggingFaceFolder:
    """``folder`` as its encoder's importer reads it: with the encoder's fields and names."""
    names = {name.removeprefix(BACKBONE): name for name in folder.weights}
    config = {**encoder, "architectures": [ARCHITECTURE], GLINER_FIELD: dict(folder.config)}
    return replace(
        folder,
        config=Fields(config, folder.config.origin),
        weights=RenamedWeights(folder.weights, names),
    )
