"""Traces a model to ONNX: one wrapper module per graph, and the export itself."""

import contextlib
import gc
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx_ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from torch import Tensor, nn

from export.graph_files import save_graph
from export.signatures import signatures
from model.adaptive import Ponder, record_ponder
from model.bundle import Dtype, GraphSpec, Shape, StateSpec
from model.config import HeadKind, Kind, ModelConfig, WaveformConfig
from model.fused import FusedKernels
from model.graph_spec import ENCODE_IMAGES
from model.kernels import Step
from model.layers import full_lengths, select_tokens
from model.mixer_state import State
from model.span_head import SpanPlaces
from model.transformer import Transformer, from_weights
from model.vision import ImageVectors
from model.waveform import Waveforms

OPSET = 23
DTYPES = {
    Dtype.FLOAT32: torch.float32,
    Dtype.FLOAT16: torch.float16,
    Dtype.BFLOAT16: torch.bfloat16,
    Dtype.INT64: torch.int64,
    Dtype.INT32: torch.int32,
    Dtype.INT16: torch.int16,
    Dtype.INT8: torch.int8,
    Dtype.UINT8: torch.uint8,
}
# Sizes of the example inputs for tracing: all different and none 1, so that none becomes static.
EXAMPLE_SIZES = {"batch": 2, "length": 3, "source_length": 5, "chosen": 4, "vectors": 6}
EXAMPLE_SIZES |= {"words": 8, "labels": 9}  # of spans
EXAMPLE_CAPACITY = 7
EXAMPLE_HOPS = 10  # of speech


def ponder_outputs(ponders: list[Ponder]) -> list[Tensor]:
    """The outputs of :func:`export.signatures.ponder_specs`: a graph runs one stack."""
    return [tensor for ponder in ponders for tensor in (ponder.updates, ponder.remainders)]


class HeadedEncoder(nn.Module):
    """``encode`` of an encoder; returns the head's output.

    Further inputs, if the model has them: ``segment_ids``, ``attended_lengths``,
    ``logit_positions`` for a masked language model, and the tensors of :class:`SpanPlaces`.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, token_ids: Tensor, lengths: Tensor, *rest: Tensor) -> list[Tensor]:
        config = self.model.config
        inputs = list(rest)
        segment_ids = inputs.pop(0) if config.num_segments else None
        has_unattended = config.encoder is not None and config.encoder.has_unattended
        attended_lengths = inputs.pop(0) if has_unattended else None
        with record_ponder(self.model) as ponders:
            hidden = self.model.encode(token_ids, lengths, segment_ids, attended_lengths)
        if config.head.kind == HeadKind.LANGUAGE_MODEL:
            (positions,) = inputs
            outputs = [self.model.logits(select_tokens(hidden, positions))]
        elif config.head.kind == HeadKind.SPAN_CLASSIFICATION:
            outputs = [self.model.score_spans(hidden, SpanPlaces(*inputs))]
        else:
            outputs = self.model.head_outputs(hidden, lengths)
        return outputs + ponder_outputs(ponders)


class ImageEncoder(nn.Module):
    """``encode`` of a model of images; returns the head's output."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> list[Tensor]:
        hidden = self.model.encode_images(pixels)
        return self.model.head_outputs(hidden, full_lengths(hidden))


class WaveformEncoder(nn.Module):
    """``encode`` of a model of recordings; returns the head's output.

    ``num_samples`` is left out if the model reads windows of one length with their silence.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, samples: Tensor, num_samples: Tensor | None = None) -> list[Tensor]:
        whole = Waveforms.whole(samples)
        waveforms = whole if num_samples is None else Waveforms(samples, num_samples)
        encoded = self.model.encode_waveforms(waveforms)
        return [self.model.pool(encoded.hidden, encoded.lengths)]


class PromptImageEncoder(nn.Module):
    """``encode_images`` of a decoder; returns the vectors of images."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model.encode_images(pixels)


class PairEncoder(nn.Module):
    """``encode`` of a model of texts with images; returns the head's output.

    Further inputs: ``segment_ids`` if the model has segments, then ``pixels``.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, token_ids: Tensor, lengths: Tensor, *rest: Tensor) -> list[Tensor]:
        *segments, pixels = rest
        fused = self.model.encode_pairs(token_ids, lengths, pixels, *segments)
        return [self.model.pool(fused, full_lengths(fused))]


class SourceEncoder(nn.Module):
    """``encode`` of an encoder-decoder; returns every state that the source fills."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, token_ids: Tensor, lengths: Tensor) -> list[Tensor]:
        with record_ponder(self.model) as ponders:
            states = self.model.encode_source(token_ids, lengths)
        outputs = [tensor for state in states for tensor in state.values()]
        return outputs + ponder_outputs(ponders)


class ImageSourceEncoder(nn.Module):
    """The same for images."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> list[Tensor]:
        states = self.model.encode_image_source(pixels)
        return [tensor for state in states for tensor in state.values()]


class SpeechEncoder(nn.Module):
    """The same for speech."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, samples: Tensor) -> list[Tensor]:
        states = self.model.encode_audio(samples)
        return [tensor for state in states for tensor in state.values()]


class CachedDecoder(nn.Module):
    """``decode``; returns logits at ``logit_positions`` and every state."""

    def __init__(self, model: Transformer, states: tuple[StateSpec, ...]) -> None:
        super().__init__()
        self.model = model
        self.names = [state.name for state in states]

    def forward(self, token_ids: Tensor, *rest: Tensor) -> list[Tensor]:
        (positions, *lengths), tensors = rest[: -len(self.names)], rest[-len(self.names) :]
        images: ImageVectors | None = None
        if self.model.vision is not None:
            *lengths, vectors, places = lengths
            images = ImageVectors(vectors, places)
        step = Step(*lengths)
        past: list[State] = [{} for _ in self.model.decoder.order]
        for name, tensor in zip(self.names, tensors, strict=True):
            kind, layer = name.split(".")
            past[int(layer)][kind] = tensor
        with record_ponder(self.model) as ponders:
            hidden, present = self.model.decode(token_ids, step, past, positions, images)
        outputs = [self.model.logits(hidden.squeeze(0))]
        outputs += [output.squeeze(0) for output in ponder_outputs(ponders)]
        for name in self.names:
            kind, layer = name.split(".")
            outputs.append(present[int(layer)][kind])
        return outputs


def _wrapper(name: str, graph: GraphSpec, model: Transformer) -> nn.Module:
    if name in ("decode", ENCODE_IMAGES):
        is_decoder = name == "decode"
        return CachedDecoder(model, graph.states) if is_decoder else PromptImageEncoder(model)
    if model.config.image_stream is not None:
        return PairEncoder(model)
    if model.config.patches is not None:
        writes_text = model.config.kind == Kind.ENCODER_DECODER
        return ImageSourceEncoder(model) if writes_text else ImageEncoder(model)
    is_encoder = model.config.kind == Kind.ENCODER
    if model.config.reads_recordings:
        return WaveformEncoder(model) if is_encoder else SpeechEncoder(model)
    return HeadedEncoder(model) if is_encoder else SourceEncoder(model)


def _example(dtype: Dtype, shape: Shape, sizes: dict[str, int]) -> Tensor:
    dimensions = [sizes[d] if isinstance(d, str) else d for d in shape]
    return torch.ones(dimensions, dtype=DTYPES[dtype])


def _example_sizes(waveform: WaveformConfig | None) -> dict[str, int]:
    """:data:`EXAMPLE_SIZES`, and samples for several frames."""
    if waveform is None:
        return EXAMPLE_SIZES
    return EXAMPLE_SIZES | {"samples": waveform.frame_size + EXAMPLE_HOPS * waveform.hop_size}


def _dynamic(shape: Shape) -> dict[int, object]:
    auto = torch.export.Dim.DYNAMIC
    return {axis: auto for axis, size in enumerate(shape) if isinstance(size, str)}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences the exporter, which reports progress by logging, warnings and standard output."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def trace(name: str, graph: GraphSpec, model: Transformer) -> onnx_ir.Model:
    """``model`` as the ONNX graph ``name``, with the input and output names of ``graph``."""
    shapes: list[Shape] = [spec.shape for spec in graph.inputs]
    sizes = _example_sizes(model.config.waveform)
    example = [_example(spec.dtype, spec.shape, sizes) for spec in graph.inputs]
    for state in graph.states:
        shape = ("batch", *state.shape)
        shapes.append(shape)
        example.append(_example(state.dtype, shape, EXAMPLE_SIZES | {"length": EXAMPLE_CAPACITY}))
    # forward takes named parameters and *rest: dynamic_shapes needs the same nesting.
    dynamic = [_dynamic(shape) for shape in shapes]
    wrapper = _wrapper(name, graph, model).eval()
    num_named = min(2 if name == "encode" else 1, len(dynamic))
    nested = (*dynamic[:num_named], tuple(dynamic[num_named:]))
    if len(dynamic) == num_named:
        nested = tuple(dynamic)
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            wrapper,
            tuple(example),
            dynamo=True,
            dynamic_shapes=nested,
            input_names=[spec.name for spec in graph.inputs] + [s.input for s in graph.states],
            output_names=[spec.name for spec in graph.outputs] + [s.output for s in graph.states],
            opset_version=OPSET,
            optimize=True,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned nothing")
    # The tracer's metadata contain paths of this machine.
    ClearMetadataAndDocStringPass()(program.model)
    return program.model


def export_graphs(
    config: ModelConfig, weights: dict[str, Tensor], directory: Path
) -> dict[str, GraphSpec]:
    """Writes every fp32 graph of ``config`` into ``directory`` and returns their signatures.

    Weights go to ``<graph>.onnx.data`` next to each graph.
    """
    model = from_weights(config, weights, FusedKernels())
    graphs = signatures(config)
    for name, graph in graphs.items():
        traced = trace(name, graph, model)
        save_graph(traced, directory / graph.file)
        # The exporter's rewrite rules keep a reference to their last graph: free its weights.
        for value in traced.graph.initializers.values():
            value.const_value = None
    del model
    gc.collect()
    return graphs
