"""The head of GLiNER (Zaratiana et al. 2023): see :class:`model.span_head.SpanHead`."""

from collections.abc import Iterator

import torch
from torch import Tensor

from export.errors import SourceError
from export.importers.heads import Head
from export.importers.renaming import Rename, Transform, linear
from export.importers.support import MAX_LAYERS
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from model.bundle import SpanTagging, Task
from model.config import DenseConfig, HeadConfig, HeadKind, SpanConfig
from model.span_tagging import MAX_SPAN_WORDS

ARCHITECTURE = "GLiNER"
# The field of the encoder's configuration with that of the whole model.
GLINER_FIELD = "gliner"
_SPANS = "span_rep_layer.span_rep_layer"
_NETWORKS = {
    "head.start": f"{_SPANS}.project_start",
    "head.end": f"{_SPANS}.project_end",
    "head.label": "prompt_rep_layer",
}


def is_span_classifier(folder: HuggingFaceFolder) -> bool:
    """Whether :mod:`export.importers.gliner` has read the folder."""
    return bool(folder.config.fields(GLINER_FIELD))


def span_classifier(folder: HuggingFaceFolder) -> Head:
    """The head of a folder of the package ``gliner``.

    Raises:
        SourceError: a size is wrong, or the tokenizer lacks a token.
    """
    config = folder.config.fields(GLINER_FIELD)
    size, encoder_size = config.positive("hidden_size", 512), folder.config.positive("hidden_size")
    is_projected = size != encoder_size
    num_layers = config.integer("num_rnn_layers", 1, maximum=MAX_LAYERS)
    max_width = config.positive("max_width", 12, maximum=MAX_SPAN_WORDS)
    if num_layers and size % 2:
        raise SourceError(f"{config.origin}: an LSTM in two directions needs an even hidden_size")
    projection = linear("head.dense.0.linear", "token_rep_layer.projection", bias=True)
    return Head(
        config=HeadConfig(
            kind=HeadKind.SPAN_CLASSIFICATION,
            dense=(DenseConfig(size=size),) if is_projected else (),
            spans=SpanConfig(max_width=max_width, num_recurrent_layers=num_layers),
        ),
        tasks=(Task.TAG,),
        table=(
            *(projection if is_projected else ()),
            *_recurrent_table(num_layers),
            *_network_table(),
            *_span_table(size),
        ),
        span_tagging=SpanTagging(
            marker=_marker(folder, config),
            separator=_token(folder, config.text("sep_token", "<<SEP>>")),
            reads_marker=config.flag("embed_ent_token", True),
            max_width=max_width,
            max_words=config.positive("max_len", 384),
        ),
    )


def _marker(folder: HuggingFaceFolder, config: Fields) -> int:
    """The id of the token before a label. Raises ``SourceError`` if the files disagree."""
    id_ = _token(folder, config.text("ent_token", "<<ENT>>"))
    saved = config.get("class_token_index")
    if saved not in (None, -1, id_):
        raise SourceError(
            f"{config.origin}: class_token_index is {saved}, but the tokenizer has the id {id_}"
        )
    return id_


def _token(folder: HuggingFaceFolder, token: str) -> int:
    id_ = folder.tokenizer.token_to_id(token)
    if id_ is None:
        raise SourceError(f"{folder.path}: the tokenizer has no token {token!r}")
    return int(id_)


def _recurrent_table(num_layers: int) -> Iterator[Rename]:
    for layer in range(num_layers):
        for index, direction in enumerate(("", "_reverse")):
            for target, kind in (("input", "ih"), ("recurrent", "hh")):
                ours = f"head.recurrent.{layer}.{index}.{target}"
                end = f"{kind}_l{layer}{direction}"
                yield Rename(f"{ours}.weight", (f"rnn.lstm.weight_{end}",), _transposed)
                yield Rename(f"{ours}.bias", (f"rnn.lstm.bias_{end}",))


def _network_table() -> Iterator[Rename]:
    for ours, theirs in _NETWORKS.items():
        yield from linear(f"{ours}.input", f"{theirs}.0", bias=True)
        yield from linear(f"{ours}.output", f"{theirs}.3", bias=True)


def _span_table(size: int) -> Iterator[Rename]:
    """The network of spans, as the head divides it."""
    weight, bias = f"{_SPANS}.out_project.0.weight", f"{_SPANS}.out_project.0.bias"
    yield Rename("head.from_start.weight", (weight,), _columns(0, size))
    yield Rename("head.from_end.weight", (weight,), _columns(size, 2 * size))
    yield Rename("head.from_end.bias", (bias,))
    yield Rename("head.key.weight", (f"{_SPANS}.out_project.3.weight",))
    yield Rename("head.offset.weight", (f"{_SPANS}.out_project.3.bias",), lambda x: x[:, None])


def _transposed(weight: Tensor) -> Tensor:
    return weight.T


def _columns(start: int, stop: int) -> Transform:
    """The columns of a matrix ``[outputs, inputs]``, transposed."""

    def select(weight: Tensor) -> Tensor:
        return torch.narrow(weight, 1, start, stop - start).T

    return select
