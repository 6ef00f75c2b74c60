"""Checks of a manifest's parts against its graphs. Imports no torch."""

from model.bundle import (
    ATTENDED_LENGTHS,
    ENCODE_IMAGES,
    IMAGE_VECTORS,
    PIXELS,
    BundleError,
    Dtype,
    Embedding,
    EmbeddingKind,
    ImagePrompt,
    ImageSpec,
    Manifest,
)
from model.config import Kind
from model.image_config import MAX_IMAGE_TOKENS


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
