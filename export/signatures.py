"""Inputs, outputs and states of each graph, from the configuration (:mod:`model.graph_spec`)."""

from collections.abc import Callable

import msgspec

from export.state_specs import decoder_states
from model.bundle import Dtype, GraphSpec, TensorSpec
from model.config import (
    HeadKind,
    Kind,
    MixerKind,
    ModelConfig,
    StackConfig,
    VisionConfig,
)
from model.graph_spec import (
    ATTENDED_LENGTHS,
    ENCODE_IMAGES,
    IMAGE_POSITIONS,
    IMAGE_VECTORS,
    MULTI_VECTORS,
    NUM_SAMPLES,
    PIXELS,
    REMAINDERS,
    SAMPLES,
    SPARSE_WEIGHTS,
    UPDATES,
)
from model.image_config import PatchConfig
from model.mixers import required
from model.span_tagging import SPAN_PLACES

# ONNX Runtime's fused skip and layer norm has about twice the error of the separate operators. Its
# convolution layout, which our graphs do not need, crashes with a 16-bit LSTM (1.31.1).
DISABLED_OPTIMIZERS = ("SkipLayerNormFusion", "NchwcTransformer")

LOGIT_POSITIONS = TensorSpec(name="logit_positions", dtype=Dtype.INT32, shape=("chosen",))

Signatures = dict[str, GraphSpec]


def _max_chunk(stack: StackConfig | None) -> int | None:
    """Most new tokens per run: 1 if a layer is recurrent (without a stack, all are), or None."""
    if stack is None:
        return 1
    return 1 if any(layer.mixer == MixerKind.SSRU for layer in stack.layers) else None


def _ids(name: str, length: int | str = "length") -> TensorSpec:
    return TensorSpec(name=name, dtype=Dtype.INT64, shape=("batch", length))


def _lengths(name: str) -> TensorSpec:
    return TensorSpec(name=name, dtype=Dtype.INT32, shape=("batch",))


def _scalar(name: str) -> TensorSpec:
    return TensorSpec(name=name, dtype=Dtype.INT32, shape=())


def _floats(name: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(name=name, dtype=Dtype.FLOAT32, shape=("batch", *shape))


def _pixels(patches: PatchConfig) -> TensorSpec:
    shape = ("batch", patches.height, patches.width, patches.num_channels)
    return TensorSpec(name=PIXELS, dtype=Dtype.UINT8, shape=shape)


def _recordings(config: ModelConfig) -> list[TensorSpec]:
    """Windows of samples, and their lengths unless silence fills them up for the model, too."""

    def samples(size: int | str) -> TensorSpec:
        return TensorSpec(name=SAMPLES, dtype=Dtype.INT16, shape=("batch", size))

    if config.audio is not None:
        return [samples(config.audio.num_samples)]
    if config.spectrogram is not None:
        return [samples(config.spectrogram.num_samples), _lengths(NUM_SAMPLES)]
    return [] if config.waveform is None else [samples("samples"), _lengths(NUM_SAMPLES)]


def _chosen_logits(config: ModelConfig) -> TensorSpec:
    return TensorSpec(name="logits", dtype=Dtype.FLOAT32, shape=("chosen", config.vocabulary_size))


def _vector_size(config: ModelConfig) -> int:
    return config.head.dense[-1].size if config.head.dense else config.hidden_size


def _embeddings(config: ModelConfig) -> list[TensorSpec]:
    vectors = config.head.multi_vector
    return [
        _floats("embeddings", _vector_size(config)),
        _floats("token_embeddings", "length", config.hidden_size),
        *([_floats(SPARSE_WEIGHTS, "length")] if config.head.sparse else []),
        *([] if vectors is None else [_floats(MULTI_VECTORS, "length", vectors.size)]),
    ]


def _span_logits(config: ModelConfig) -> list[TensorSpec]:
    return [_floats("logits", "words", required(config.head.spans).max_width, "labels")]


HEAD_OUTPUTS: dict[HeadKind, Callable[[ModelConfig], list[TensorSpec]]] = {
    HeadKind.EMBEDDING: _embeddings,
    HeadKind.SPARSE_EMBEDDING: lambda config: [_floats("embeddings", config.vocabulary_size)],
    HeadKind.MULTI_VECTOR_EMBEDDING: lambda x: [_floats("embeddings", "length", _vector_size(x))],
    HeadKind.CLASSIFICATION: lambda config: [_floats("logits", config.head.num_labels)],
    HeadKind.TOKEN_CLASSIFICATION: lambda config: [
        _floats("logits", "length", config.head.num_labels)
    ],
    HeadKind.SPAN_CLASSIFICATION: _span_logits,
    HeadKind.LANGUAGE_MODEL: lambda config: [_chosen_logits(config)],
}


def ponder_specs(stack: StackConfig | None, *shape: int | str) -> tuple[TensorSpec, ...]:
    """The outputs added by adaptive computation time: see :mod:`model.graph_spec`."""
    if stack is None or stack.halting is None:
        return ()
    return (
        TensorSpec(name=UPDATES, dtype=Dtype.INT32, shape=shape),
        TensorSpec(name=REMAINDERS, dtype=Dtype.FLOAT32, shape=shape),
    )


def _source_length(config: ModelConfig) -> int | str:
    """The number of vectors of an encoder-decoder's source."""
    if config.patches is not None:
        return config.patches.num_tokens
    return "length" if config.audio is None else config.audio.num_tokens


def _encode(config: ModelConfig) -> GraphSpec:
    inputs = [_ids("token_ids"), _lengths("lengths")] if config.reads_texts else []
    if config.num_segments:
        inputs.append(_ids("segment_ids"))
    if config.encoder is not None and config.encoder.has_unattended:
        inputs.append(_lengths(ATTENDED_LENGTHS))
    if config.patches is not None:
        inputs.append(_pixels(config.patches))
    inputs += _recordings(config)
    source_length = _source_length(config)
    outputs = [
        TensorSpec(
            name=state.name,
            dtype=state.dtype,
            shape=("batch", *(source_length if d == "source_length" else d for d in state.shape)),
        )
        for state in decoder_states(config)
        if state.source is not None
    ]
    if config.kind == Kind.ENCODER:
        outputs = HEAD_OUTPUTS[config.head.kind](config)
        if config.head.kind == HeadKind.LANGUAGE_MODEL:
            inputs.append(LOGIT_POSITIONS)
        elif config.head.kind == HeadKind.SPAN_CLASSIFICATION:
            inputs += SPAN_PLACES
    return GraphSpec(
        file="encode.onnx",
        inputs=tuple(inputs),
        outputs=(*outputs, *ponder_specs(config.encoder, "batch", "length")),
        disabled_optimizers=DISABLED_OPTIMIZERS,
    )


def _decode(config: ModelConfig, stack: StackConfig | None) -> GraphSpec:
    max_chunk = _max_chunk(stack)
    inputs = [
        _ids("token_ids", max_chunk or "length"),
        LOGIT_POSITIONS,
        _lengths("num_cached_tokens"),
        _lengths("num_new_tokens"),
        _scalar("max_total_length"),
    ]
    if config.kind == Kind.ENCODER_DECODER:
        inputs += [_lengths("source_lengths"), _scalar("max_source_length")]
    if config.vision is not None:
        vectors = ("vectors", config.hidden_size)
        inputs.append(TensorSpec(name=IMAGE_VECTORS, dtype=Dtype.FLOAT32, shape=vectors))
        inputs.append(TensorSpec(name=IMAGE_POSITIONS, dtype=Dtype.INT32, shape=("vectors",)))
    return GraphSpec(
        file="decode.onnx",
        inputs=tuple(inputs),
        outputs=(_chosen_logits(config), *ponder_specs(stack, "chosen")),
        states=decoder_states(config),
        max_chunk=max_chunk,
        # Cross-attention binds the source's keys and values as the past. With a past,
        # GroupQueryAttention takes several tokens only for one row, and no more than the past has.
        chunk_within_source=max_chunk is None
        and stack is not None
        and any(layer.cross_attention is not None for layer in stack.layers),
        disabled_optimizers=DISABLED_OPTIMIZERS,
    )


def _encode_images(config: ModelConfig, vision: VisionConfig) -> GraphSpec:
    return GraphSpec(
        file="encode_images.onnx",
        inputs=(_pixels(vision.patches),),
        outputs=(_floats(IMAGE_VECTORS, vision.num_tokens, config.hidden_size),),
        disabled_optimizers=DISABLED_OPTIMIZERS,
    )


def signatures(config: ModelConfig) -> Signatures:
    """The graphs of a bundle for ``config``, by name."""
    graphs: Signatures = {}
    if config.vision is not None:
        graphs[ENCODE_IMAGES] = _encode_images(config, config.vision)
    if config.kind != Kind.DECODER:
        graphs["encode"] = _encode(config)
    if config.kind != Kind.ENCODER:
        graphs["decode"] = _decode(config, config.decoder)
    return graphs


def with_float_states(graphs: Signatures, dtype: Dtype) -> Signatures:
    """``graphs`` with states, and the outputs that fill them, in ``dtype``; the rest stays fp32."""
    sources = {state.source for graph in graphs.values() for state in graph.states}

    def changed(graph: GraphSpec) -> GraphSpec:
        states = tuple(msgspec.structs.replace(state, dtype=dtype) for state in graph.states)
        outputs = tuple(
            msgspec.structs.replace(output, dtype=dtype) if output.name in sources else output
            for output in graph.outputs
        )
        return msgspec.structs.replace(graph, states=states, outputs=outputs)

    return {name: changed(graph) for name, graph in graphs.items()}
