"""jina-embeddings-v3 (Sturua et al. 2024), as ``transformers`` saves it.

XLM-RoBERTa with rotary positions. An adapter for a task must be merged into the weights.
"""

from export.checkpoint import Checkpoint
from export.errors import UnsupportedError
from export.importers.encoders import assemble
from export.importers.head_tables import FAIRSEQ_CLASSIFIER, FAIRSEQ_MASKED, five_classes
from export.importers.rotary_bert import (
    NATIVE,
    RotaryBertFamily,
    RotaryBertNames,
    rotary_body,
    without_gate,
)
from export.readers.hugging_face import HuggingFaceFolder
from export.readers.lora import ADAPTER_FILE

_LAYER = "encoder.layers.{n}"
FAMILY = RotaryBertFamily(
    base="roberta",
    names=RotaryBertNames(
        embedding_norm="emb_ln",
        qkv=(f"{_LAYER}.mixer.Wqkv",),
        attention_output=f"{_LAYER}.mixer.out_proj",
        attention_norm=f"{_LAYER}.norm1",
        feed_forward_input=(f"{_LAYER}.mlp.fc1",),
        feed_forward_output=f"{_LAYER}.mlp.fc2",
        feed_forward_norm=f"{_LAYER}.norm2",
    ),
    native=without_gate(NATIVE, "layers.{n}.mlp.fc1", "layers.{n}.mlp.fc2"),
    gated=False,
    attention_bias=True,
    input_bias=True,
    output_bias=True,
    act="gelu",
    epsilon=1e-5,
    theta=20_000.0,
    num_segments=1,
)


def import_jina_embeddings_v3(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    adapters = sorted(file.parent.name for file in folder.path.glob(f"*/{ADAPTER_FILE}"))
    if adapters:
        raise UnsupportedError(
            f"{folder.path}: adapters for tasks are not supported: {', '.join(adapters)}; "
            "supported: one that peft's merge_and_unload has merged into the weights"
        )
    body = rotary_body(folder.config, folder.weights, FAMILY)
    return assemble(folder, body, HEADS, "JinaEmbeddingsV3Model")


HEADS = five_classes("JinaEmbeddingsV3", classifier=FAIRSEQ_CLASSIFIER, masked=FAIRSEQ_MASKED)
