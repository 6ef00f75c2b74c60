"""LLaVA 1.5 (Liu et al. 2023, arXiv 2310.03744), as ``transformers`` saves it."""

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
from export.importers import clip, siglip
from export.importers.activations import activation
from export.importers.bert_tables import num_layers
from export.importers.language_models import Wrapper, import_language_model
from export.importers.llama import import_llama
from export.importers.mistral import import_mistral
from export.importers.qwen import import_qwen2
from export.importers.renaming import linear
from export.importers.vision import Connector, image_token_text, part_of, with_vision
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.readers.image_processor import read_image_processor
from export.supported import lookup
from model.config import DenseConfig
from model.image_config import ImagePrompt, PatchConfig

LLAVA = Wrapper(
    architecture="LlavaForConditionalGeneration",
    importers={"llama": import_llama, "mistral": import_mistral, "qwen2": import_qwen2},
    defaults={
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
)
TOWERS = {"clip_vision_model": clip.image_body, "siglip_vision_model": siglip.image_body}
TOWER, PROJECTOR = "vision_tower.", "multi_modal_projector."
# Defaults of the configuration's class: CLIP's largest tower.
TOWER_DEFAULTS = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}


def import_llava(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    decoder = import_language_model(folder, LLAVA)
    tower = config.fields("vision_config").with_defaults(**TOWER_DEFAULTS)
    num_channels, total = tower.positive("num_channels", 3), num_layers(tower)
    depth = _depth(config, total)
    processor = read_image_processor(folder, num_channels)
    image_body = lookup(TOWERS, tower.text("model_type"), f"{tower.origin}: model_type")
    body = image_body(
        Fields({**tower, "num_hidden_layers": depth}, tower.origin),
        processor,
        has_final_norm=False,
    )
    weights = part_of(folder, (TOWER, f"model.{TOWER}"), "vision_model.")
    unused = ("head.", *(f"encoder.layers.{layer}." for layer in range(depth, total)))
    return with_vision(
        decoder,
        body,
        weights,
        _projector(config, decoder.config.hidden_size, body.patches),
        part_of(folder, (PROJECTOR, f"model.{PROJECTOR}")),
        processor,
        _image_prompt(folder),
        [name for name in weights if name.startswith(unused)],
    )


def _depth(config: Fields, num_layers: int) -> int:
    """How many of the tower's layers run before the vectors that the projector reads.

    ``hidden_states`` has one more item than layers: its first are the embeddings.
    """
    layer = config.get("vision_feature_layer", -2)
    if not isinstance(layer, int) or isinstance(layer, bool):
        raise UnsupportedError(
            f"{config.origin}: vision_feature_layer {layer!r} is not supported; supported: one"
        )
    depth = layer if layer >= 0 else num_layers + 1 + layer
    if not 0 < depth <= num_layers:
        raise SourceError(
            f"{config.origin}: vision_feature_layer is {layer}, of {num_layers} layers"
        )
    return depth


def _projector(config: Fields, size: int, patches: PatchConfig | None) -> Connector:
    """Two linear maps with an activation between them (section 3.1)."""
    strategy = config.text("vision_feature_select_strategy", "default")
    what = f"{config.origin}: vision_feature_select_strategy"
    keeps_first = lookup({"default": False, "full": True}, strategy, what)
    if not keeps_first and (patches is None or patches.num_class_tokens != 1):
        raise UnsupportedError(f"{what} {strategy!r} is for towers with a class token")
    bias = config.flag("multimodal_projector_bias", True)
    first = activation(config, "projector_hidden_act", "gelu")
    return Connector(
        dense=(
            DenseConfig(size=size, activation=first, bias=bias),
            DenseConfig(size=size, bias=bias),
        ),
        table=(
            *linear("dense.0.linear", "linear_1", bias=bias),
            *linear("dense.1.linear", "linear_2", bias=bias),
        ),
        keeps_class_tokens=keeps_first,
    )


def _image_prompt(folder: HuggingFaceFolder) -> ImagePrompt:
    """The token that the processor repeats for an image, which the template writes once."""
    config = folder.config
    token = config.integer("image_token_index", config.integer("image_token_id", 32000))
    return ImagePrompt(placeholder=image_token_text(folder, token), token=token)
