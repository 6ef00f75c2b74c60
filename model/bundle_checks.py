"""Checks of a manifest's parts against its graphs. Imports no torch."""

from collections.abc import Sequence

from model.adapters import ADAPTERS
from model.bundle import (
    ATTENDED_LENGTHS,
    ENCODE_IMAGES,
    IMAGE_VECTORS,
    NUM_SAMPLES,
    PIXELS,
    SAMPLES,
    AudioSpec,
    BundleError,
    Dtype,
    Embedding,
    EmbeddingKind,
    ImagePrompt,
    ImageSpec,
    Manifest,
    Shape,
    Task,
    TensorSpec,
)
from model.config import Kind
from model.graph_spec import MULTI_VECTORS, SPARSE_WEIGHTS
from model.image_config import MAX_IMAGE_TOKENS
from model.span_tagging import SPAN_PLACES


def check_embedding(manifest: Manifest, embedding: Embedding, label: str) -> None:
    """Rejects a bundle whose graphs return other vectors than the manifest states."""
    if embedding.default_prompt not in (None, *embedding.prompts):
        raise BundleError(f"{label}: default_prompt {embedding.default_prompt!r} is not in prompts")
    size, kind, spec = manifest.dimensions.vocabulary_size, embedding.kind, embedding.multi_vector
    if kind == EmbeddingKind.SPARSE and embedding.size != size:
        raise BundleError(f"{label}: {embedding.size} weights for a vocabulary of {size} tokens")
    if (kind == EmbeddingKind.MULTI_VECTOR) != (spec is not None):
        raise BundleError(f"{label}: embedding.multi_vector does not fit the kind {kind}")
    graph = manifest.graphs.get("encode")
    inputs = () if graph is None else tuple(tensor.name for tensor in graph.inputs)
    outputs = () if graph is None else tuple(tensor.shape for tensor in graph.outputs)
    _check_other_kinds(embedding, size, () if graph is None else graph.outputs, label)
    static = manifest.static_tokens
    if static is not None and max(static.blank, static.ignored or 0) >= size:
        raise BundleError(f"{label}: static_tokens: a token is beyond the vocabulary of {size}")
    expected = ("batch", *(() if spec is None else ("length",)), embedding.size)
    if kind != EmbeddingKind.DENSE and outputs[:1] != (expected,):
        raise BundleError(f"{label}: the graph encode does not return {kind} vectors")
    if spec is None:
        return
    if spec.filler is not None and not spec.attends_to_filler and ATTENDED_LENGTHS not in inputs:
        raise BundleError(f"{label}: the graph encode has no input {ATTENDED_LENGTHS}")
    longest = max(spec.query_length, spec.document_length)
    if longest > manifest.dimensions.max_positions:
        raise BundleError(f"{label}: texts of {longest} tokens are beyond the model's positions")
    for id_ in (spec.query_marker, spec.document_marker, spec.filler, *spec.skipped):
        if id_ is not None and not 0 <= id_ < size:
            raise BundleError(f"{label}: token {id_} is beyond the vocabulary of {size}")


def _check_other_kinds(
    embedding: Embedding, vocabulary_size: int, outputs: Sequence[TensorSpec], label: str
) -> None:
    """Rejects kinds of vectors beside the first one that the graph does not return."""
    weights, vectors = embedding.token_weights or None, embedding.token_vectors or None
    if embedding.kind != EmbeddingKind.DENSE and len(embedding.kinds) > 1:
        raise BundleError(f"{label}: {embedding.kind} vectors have no others beside them")
    expected: dict[str, Shape] = {}
    if weights is not None:
        expected[SPARSE_WEIGHTS] = ("batch", "length")
        if any(id_ >= vocabulary_size for id_ in weights.excluded):
            raise BundleError(f"{label}: token_weights: a token is beyond the vocabulary")
    if vectors is not None:
        expected[MULTI_VECTORS] = ("batch", "length", vectors.size)
    names = (SPARSE_WEIGHTS, MULTI_VECTORS)
    returned = {x.name: x.shape for x in outputs if x.name in names and x.dtype == Dtype.FLOAT32}
    if returned != expected:
        raise BundleError(f"{label}: the graph encode does not return {', '.join(names)} as stated")


def check_image(manifest: Manifest, image: ImageSpec, label: str) -> None:
    """Rejects a bundle whose graphs take other images than the manifest describes."""
    if (manifest.kind == Kind.DECODER) != (image.prompt is not None):
        raise BundleError(f"{label}: image.prompt: decoders that read images have one")
    name = "encode" if image.prompt is None else ENCODE_IMAGES
    shape = ("batch", image.height, image.width, image.num_channels)
    inputs = manifest.graphs[name].inputs if name in manifest.graphs else ()
    pixels = [(x.name, x.shape) for x in inputs if x.dtype == Dtype.UINT8]
    if pixels != [(PIXELS, shape)]:
        raise BundleError(f"{label}: image: the graph {name} does not take {image}")
    if image.prompt is not None:
        _check_image_prompt(manifest, image, image.prompt, label)


def check_speech(manifest: Manifest, audio: AudioSpec, label: str) -> None:
    """Rejects an encoder of recordings whose graph takes or returns something else."""
    transcribes = Task.TRANSCRIBE in manifest.tasks
    if transcribes and not (audio.hop_size and manifest.ctc):
        raise BundleError(f"{label}: an encoder of speech needs audio.hop_size and ctc")
    if bool(audio.frame_size) != bool(audio.hop_size):
        raise BundleError(f"{label}: audio: only one of frame_size and hop_size is given")
    if audio.num_samples < (audio.frame_size or 0):
        raise BundleError(f"{label}: audio: a window is shorter than a frame")
    if audio.tokens_of(audio.num_samples) != audio.num_tokens:
        raise BundleError(f"{label}: audio: a window does not have {audio.num_tokens} frames")
    graph = manifest.graphs.get("encode")
    inputs = () if graph is None else tuple((x.name, x.dtype, x.shape) for x in graph.inputs)
    size = "samples" if audio.has_frames else audio.num_samples
    samples = (SAMPLES, Dtype.INT16, ("batch", size))
    lengths = (NUM_SAMPLES, Dtype.INT32, ("batch",))
    if inputs != (samples, lengths) and (audio.has_frames or inputs != (samples,)):
        raise BundleError(f"{label}: audio: the graph encode does not take {audio}")
    outputs = () if graph is None else tuple(x.shape for x in graph.outputs)
    if transcribes and outputs != (("batch", "length", manifest.dimensions.vocabulary_size),):
        raise BundleError(f"{label}: ctc: the graph encode does not return tokens of frames")
    if not transcribes and outputs != (("batch", len(manifest.labels)),):
        raise BundleError(f"{label}: labels: the graph encode does not return their logits")


_SPAN_INPUTS = {spec.name: (spec.dtype, spec.shape) for spec in SPAN_PLACES}


def check_span_tagging(manifest: Manifest, label: str) -> None:
    """Rejects a graph that scores spans otherwise than ``span_tagging`` states, or without it."""
    spec, graph = manifest.span_tagging or None, manifest.graphs.get("encode")
    inputs = {} if graph is None else {x.name: (x.dtype, x.shape) for x in graph.inputs}
    expected = {} if spec is None else _SPAN_INPUTS
    if {name: x for name, x in inputs.items() if name in _SPAN_INPUTS} != expected:
        raise BundleError(f"{label}: the graph encode does not take {', '.join(_SPAN_INPUTS)}")
    if spec is None:
        return
    if manifest.kind != Kind.ENCODER or manifest.tasks != (Task.TAG,) or manifest.labels:
        raise BundleError(f"{label}: span_tagging: only encoders that tag, without labels, have it")
    known = {"token_ids", "lengths", "segment_ids", ADAPTERS, *_SPAN_INPUTS}
    if not known.issuperset(inputs):
        raise BundleError(f"{label}: span_tagging: the graph encode takes other inputs")
    outputs = () if graph is None else tuple((x.dtype, x.shape) for x in graph.outputs)
    if outputs != ((Dtype.FLOAT32, ("batch", "words", spec.max_width, "labels")),):
        raise BundleError(f"{label}: span_tagging: the graph encode does not return these spans")
    size = manifest.dimensions.vocabulary_size
    if max(spec.marker, spec.separator) >= size or spec.marker == spec.separator:
        raise BundleError(f"{label}: span_tagging: not two tokens of the vocabulary of {size}")


def _check_image_prompt(
    manifest: Manifest, image: ImageSpec, prompt: ImagePrompt, label: str
) -> None:
    """Rejects a decoder that takes other vectors than the graph of images returns."""
    size = manifest.dimensions.vocabulary_size
    if image.tiling is not None and {image.width, *image.resize} != {image.height}:
        raise BundleError(f"{label}: image.tiling: tiles must be square")
    if image.max_tokens > MAX_IMAGE_TOKENS:
        raise BundleError(f"{label}: image: {image.max_tokens} tokens, at most {MAX_IMAGE_TOKENS}")
    if prompt.token >= size:
        raise BundleError(f"{label}: image.prompt: token {prompt.token} is beyond {size} tokens")
    decode = manifest.graphs.get("decode")
    taken = None if decode is None else decode.image_vector_size
    returned = [(x.name, x.shape) for x in manifest.graphs[ENCODE_IMAGES].outputs]
    if taken is None or returned != [(IMAGE_VECTORS, ("batch", image.num_tokens, taken))]:
        raise BundleError(f"{label}: the graph decode does not take the vectors of {ENCODE_IMAGES}")
