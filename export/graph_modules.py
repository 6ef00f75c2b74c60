"""The modules that an export traces, one for each graph."""

from torch import Tensor, nn

from model.adaptive import Ponder, record_ponder
from model.bundle import GraphSpec, StateSpec
from model.config import HeadKind, Kind
from model.graph_spec import ENCODE_IMAGES
from model.kernels import Step
from model.layers import full_lengths, select_tokens
from model.mixer_state import State
from model.span_head import SpanPlaces
from model.transformer import Transformer
from model.vision import ImageVectors
from model.waveform import Waveforms


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


def wrapper_of(name: str, graph: GraphSpec, model: Transformer) -> nn.Module:
    """The module to trace as the graph ``name``."""
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
