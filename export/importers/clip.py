"""CLIP (Radford et al. 2021), as ``transformers`` saves it: an image and a text encoder.

MetaCLIP 2 (Chuang et al. 2025) differs in the names of its classes and in its tokenizer.
"""

from msgspec import structs

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers import clip_tables, vit_tables
from export.importers.clip_tables import QUICK_GELU
from export.importers.encoders import Body, assemble
from export.importers.heads import Head, NamedDense, sequence_classifier
from export.importers.renaming import Rename, affine
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.readers.image_processor import ImageProcessor, read_image_processor
from model.bundle import Embedding, Task
from model.config import (
    DenseConfig,
    EmbeddingConfig,
    HeadConfig,
    HeadKind,
    LayerConfig,
    PoolingKind,
    StackConfig,
)
from model.position_config import PositionConfig, PositionKind

EPSILON, PATCH_SIZE = 1e-5, 32
CLIP, META_CLIP_2 = "CLIP", "MetaClip2"  # the start of the names of classes
POSITION_IDS = "embeddings.position_ids"  # a buffer of old transformers versions


def import_clip(folder: HuggingFaceFolder) -> Checkpoint:
    """A whole model: an image classifier, or the selected tower.

    Vectors of both towers have L2 norm 1 and can be compared.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    return _whole(folder, CLIP)


def import_clip_vision(folder: HuggingFaceFolder) -> Checkpoint:
    """The image encoder, with or without its projection."""
    return _images(folder, CLIP)


def import_clip_text(folder: HuggingFaceFolder) -> Checkpoint:
    """The text encoder: causal, pooled at the end-of-text token, which is the last one.

    Raises:
        SourceError: the tokenizer does not end texts with that token.
    """
    return _texts(folder, CLIP)


def import_metaclip_2(folder: HuggingFaceFolder) -> Checkpoint:
    """As :func:`import_clip`."""
    return _whole(folder, META_CLIP_2)


def import_metaclip_2_vision(folder: HuggingFaceFolder) -> Checkpoint:
    """As :func:`import_clip_vision`."""
    return _images(folder, META_CLIP_2)


def import_metaclip_2_text(folder: HuggingFaceFolder) -> Checkpoint:
    """As :func:`import_clip_text`."""
    return _texts(folder, META_CLIP_2)


def _whole(folder: HuggingFaceFolder, family: str) -> Checkpoint:
    classifier = f"{family}ForImageClassification"
    if classifier in folder.config.texts("architectures"):
        return _images(clip_tables.tower_of(folder, "image", classifier), family)
    tower = clip_tables.chosen_tower(folder, ("image", "text"))
    part = clip_tables.tower_of(folder, tower, f"{family}Model")
    return _images(part, family) if tower == "image" else _texts(part, family)


def _images(folder: HuggingFaceFolder, family: str) -> Checkpoint:
    config = folder.config
    processor = read_image_processor(folder, config.positive("num_channels", 3))
    classifier = f"{family}ForImageClassification"
    is_classifier = classifier in config.texts("architectures")  # it has no last norm
    body = image_body(config, processor, has_final_norm=not is_classifier)
    heads = {
        f"{family}VisionModel": vit_tables.image_embedder,
        f"{family}VisionModelWithProjection": _image_projection,
        classifier: _image_classifier,
        f"{family}Model": _image_tower,
    }
    return vit_tables.assemble_images(folder, body, processor, heads, f"{family}VisionModel")


def image_body(config: Fields, processor: ImageProcessor, *, has_final_norm: bool) -> Body:
    """The image encoder of ``config``."""
    patches = vit_tables.read_patches(config, processor, patch_size=PATCH_SIZE, bias=False)
    layers = clip_tables.layers(config, QUICK_GELU, EPSILON)
    norm = affine("encoder.final_norm", "post_layernorm")
    return Body(
        base="vision_model",
        hidden_size=config.positive("hidden_size"),
        position=patches.position,
        embedding=EmbeddingConfig(norm=layers[0].norm),
        patches=patches,
        encoder=StackConfig(layers=layers, final_norm=layers[0].norm if has_final_norm else None),
        table=(
            *vit_tables.patch_map("embeddings.patch_embedding", bias=False),
            vit_tables.class_tokens("embeddings.class_embedding"),
            vit_tables.position_table("embeddings.position_embedding.weight", patches),
            *affine("embedding.norm", "pre_layrnorm"),
            *clip_tables.layer_table(config, QUICK_GELU),
            *(norm if has_final_norm else []),
        ),
        ignored=(POSITION_IDS, *(source for entry in norm for source in entry.sources)),
    )


def _texts(folder: HuggingFaceFolder, family: str) -> Checkpoint:
    config = folder.config
    _check_end(folder, family)
    layers = tuple(map(_causal, clip_tables.layers(config, QUICK_GELU, EPSILON)))
    body = Body(
        base="text_model",
        hidden_size=config.positive("hidden_size"),
        position=PositionConfig(
            kind=PositionKind.LEARNED,
            max_positions=config.positive("max_position_embeddings", 77),
        ),
        embedding=EmbeddingConfig(),
        encoder=StackConfig(layers=layers, final_norm=layers[0].norm),
        table=(
            Rename("embedding.tokens.weight", ("embeddings.token_embedding.weight",)),
            Rename("embedding.positions.weight", ("embeddings.position_embedding.weight",)),
            *clip_tables.layer_table(config, QUICK_GELU),
            *affine("encoder.final_norm", "final_layer_norm"),
        ),
        ignored=(POSITION_IDS,),
    )
    heads = {
        f"{family}TextModel": _last_token,
        f"{family}TextModelWithProjection": _text_projection,
        f"{family}Model": _text_tower,
    }
    return assemble(folder, body, heads, f"{family}TextModel")


def _causal(layer: LayerConfig) -> LayerConfig:
    if layer.attention is None:
        raise ValueError("a layer of CLIP has attention")
    return structs.replace(layer, attention=structs.replace(layer.attention, is_causal=True))


def _check_end(folder: HuggingFaceFolder, family: str) -> None:
    ids = folder.tokenizer.encode("a").ids
    end = folder.config.integer("eos_token_id", 49407)
    if end == 2 and family == CLIP:
        # The first configurations have the wrong id 2 for the vocabulary's last token.
        end = folder.config.positive("vocab_size", 49408) - 1
    if not ids or ids[-1] != end:
        raise SourceError(f"{folder.path}: the tokenizer does not end texts with the token {end}")


def _image_classifier(folder: HuggingFaceFolder) -> Head:
    return sequence_classifier(folder, pooling=PoolingKind.PATCH_MEAN)


def _last_token(folder: HuggingFaceFolder) -> Head:
    return vit_tables.pooled_embedder(folder, PoolingKind.LAST)


def _image_projection(folder: HuggingFaceFolder) -> Head:
    return _projection(folder, "visual_projection", PoolingKind.CLS)


def _text_projection(folder: HuggingFaceFolder) -> Head:
    return _projection(folder, "text_projection", PoolingKind.LAST)


def _image_tower(folder: HuggingFaceFolder) -> Head:
    head = _projection(folder, "visual_projection", PoolingKind.CLS, normalize=True)
    return clip_tables.without_others(head, folder, "image")


def _text_tower(folder: HuggingFaceFolder) -> Head:
    head = _projection(folder, "text_projection", PoolingKind.LAST, normalize=True)
    return clip_tables.without_others(head, folder, "text")


def _projection(
    folder: HuggingFaceFolder, name: str, pooling: PoolingKind, *, normalize: bool = False
) -> Head:
    """The pooled vector, projected by the linear map ``name``."""
    dense = DenseConfig(size=folder.config.positive("projection_dim", 512), bias=False)
    return Head(
        config=HeadConfig(
            kind=HeadKind.EMBEDDING, pooling=pooling, normalize=normalize, dense=(dense,)
        ),
        tasks=(Task.EMBED,),
        table=NamedDense(linear=name, config=dense).table(0),
        embedding=Embedding(size=dense.size, pooling=pooling, is_normalized=normalize),
    )
