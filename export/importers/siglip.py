"""SigLIP's image encoder (Zhai et al. 2023), as ``transformers`` saves it."""

import torch
from torch import Tensor

from export.checkpoint import Checkpoint
from export.importers import clip_tables, vit_tables
from export.importers.encoders import Body
from export.importers.heads import Head, sequence_classifier
from export.importers.renaming import Rename, Transform, affine, linear
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.readers.image_processor import ImageProcessor, read_image_processor
from export.supported import check_supported
from model.bundle import Embedding, Task
from model.config import EmbeddingConfig, HeadConfig, HeadKind, PoolingKind, StackConfig

EPSILON, ACTIVATION = 1e-6, "gelu_pytorch_tanh"
CLASSIFIER = "SiglipForImageClassification"
POOLER = "vision_model.head"


def import_siglip(folder: HuggingFaceFolder) -> Checkpoint:
    """A whole model: an image classifier, or the image tower.

    The text tower is not supported: it attends to padding.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    if CLASSIFIER in folder.config.texts("architectures"):
        return import_siglip_vision(clip_tables.tower_of(folder, "image", CLASSIFIER))
    tower = clip_tables.chosen_tower(folder, ("image",))
    return import_siglip_vision(clip_tables.tower_of(folder, tower, "SiglipModel"))


def import_siglip_vision(folder: HuggingFaceFolder) -> Checkpoint:
    """The image encoder with its attention pooling."""
    config = folder.config
    processor = read_image_processor(folder, config.positive("num_channels", 3))
    body = image_body(config, processor, has_final_norm=True)
    heads = {
        "SiglipVisionModel": _pooled,
        CLASSIFIER: _classifier,
        "SiglipModel": _tower,
    }
    return vit_tables.assemble_images(folder, body, processor, heads, "SiglipVisionModel")


def image_body(config: Fields, processor: ImageProcessor, *, has_final_norm: bool) -> Body:
    """The image encoder of ``config``, without its pooling."""
    patches = vit_tables.read_patches(config, processor, num_class_tokens=0)
    layers = clip_tables.layers(config, ACTIVATION, EPSILON)
    norm = affine("encoder.final_norm", "post_layernorm")
    return Body(
        base="vision_model",
        hidden_size=config.positive("hidden_size"),
        position=patches.position,
        embedding=EmbeddingConfig(),
        patches=patches,
        encoder=StackConfig(layers=layers, final_norm=layers[0].norm if has_final_norm else None),
        table=(
            *vit_tables.patch_map("embeddings.patch_embedding"),
            vit_tables.no_class_tokens("embeddings.patch_embedding.bias"),
            vit_tables.position_table("embeddings.position_embedding.weight", patches),
            *clip_tables.layer_table(config, ACTIVATION),
            *(norm if has_final_norm else []),
        ),
        ignored=(
            "embeddings.position_ids",
            *(() if has_final_norm else (source for entry in norm for source in entry.sources)),
        ),
    )


def _classifier(folder: HuggingFaceFolder) -> Head:
    head = sequence_classifier(folder, pooling=PoolingKind.PATCH_MEAN)
    return clip_tables.without_others(head, folder, "image", unused=f"{POOLER}.")


def _tower(folder: HuggingFaceFolder) -> Head:
    return clip_tables.without_others(_pooled(folder, normalize=True), folder, "image")


def _pooled(folder: HuggingFaceFolder, *, normalize: bool = False) -> Head:
    """Attention with one learned query, then a feed-forward (Lee et al. 2019, section 3.2)."""
    config = folder.config
    check_supported(config, vision_use_head=(True,))
    prefix = POOLER if any(name.startswith(f"{POOLER}.") for name in folder.weights) else "head"
    attention, target = f"{prefix}.attention", "head.pool"
    packed = tuple(f"{attention}.in_proj_{kind}" for kind in ("weight", "bias"))
    num_heads, size = config.positive("num_attention_heads"), config.positive("hidden_size")
    return Head(
        config=HeadConfig(
            kind=HeadKind.EMBEDDING, pooling=PoolingKind.ATTENTION, normalize=normalize
        ),
        tasks=(Task.EMBED,),
        table=(
            Rename(f"{target}.scores.weight", (f"{prefix}.probe", *packed), _scores(num_heads)),
            Rename(f"{target}.values.weight", packed[:1], _values),
            Rename(f"{target}.values.bias", packed[1:], _values),
            *linear(f"{target}.output", f"{attention}.out_proj", bias=True),
            *affine(f"{target}.norm", f"{prefix}.layernorm"),
            *linear(f"{target}.feed_forward.input", f"{prefix}.mlp.fc1", bias=True),
            *linear(f"{target}.feed_forward.output", f"{prefix}.mlp.fc2", bias=True),
        ),
        embedding=Embedding(size=size, pooling=PoolingKind.ATTENTION, is_normalized=normalize),
    )


def _scores(num_heads: int) -> Transform:
    """Keys times the only query: one vector per head. The keys' bias cancels in the softmax."""

    def transform(probe: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
        query_matrix, key_matrix, _ = matrix.chunk(3)
        query = query_matrix @ probe.flatten() + bias.chunk(3)[0]
        by_head = query.reshape(num_heads, -1) * (len(query) / num_heads) ** -0.5
        keys = key_matrix.reshape(num_heads, -1, matrix.shape[1])
        return torch.einsum("hds,hd->sh", keys, by_head)

    return transform


def _values(packed: Tensor) -> Tensor:
    return packed.chunk(3)[2].T if packed.ndim > 1 else packed.chunk(3)[2]
