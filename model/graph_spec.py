"""The graphs of a bundle: inputs, outputs and states. Imports no torch and no ONNX package.

Signatures (``batch`` and ``length`` are dynamic; all lengths int32, ids int64):

========================  =========================================================
``encode`` of an encoder  in: ``token_ids [batch, length]``, ``lengths [batch]`` (valid
                          tokens of each right-padded row), ``segment_ids [batch,
                          length]`` if the model has segments, ``attended_lengths
                          [batch]`` (tokens of each row that are attended to) if it may
                          be less than ``lengths``, ``logit_positions
                          [chosen]`` as below in a masked language model. If it
                          scores spans: ``word_positions [batch, words]`` (int32;
                          index of each word's first token, -1: none),
                          ``word_lengths [batch]`` (words of each right-padded row),
                          ``label_positions [batch, labels]`` (int32). Of images
                          ``pixels [batch, height, width, channels]``, uint8; without
                          the others, or one for each text. Of speech only ``samples
                          [batch, samples]``, int16, and ``num_samples [batch]`` (valid
                          ones of each right-padded row); length is then that of the
                          frames.
                          out: ``embeddings [batch, size]`` and ``token_embeddings
                          [batch, length, hidden]``, and if the model has several kinds
                          of vectors ``sparse_weights [batch, length]`` (of each token, at
                          least 0) and ``multi_vectors [batch, length, size]``; sparse
                          ``embeddings [batch,
                          vocabulary]``; for each token ``embeddings [batch, length,
                          size]``; or ``logits``: of texts ``[batch,
                          labels]``, of tokens ``[batch, length, labels]``, of an
                          answer's start and end ``[batch, length, 2]``, of masked
                          tokens ``[chosen, vocabulary]``, of spans from each word
                          ``[batch, words, max_width, labels]``, which are 0 beyond the
                          last word.
``encode`` of an          in: ``token_ids``, ``lengths``. out: one tensor for every
encoder-decoder           ``cross`` state, ``[batch, kv_heads, length, head_size]``, and
                          for every ``recurrent`` state that has a ``source``,
                          ``[batch, *shape]``; others begin with zeros. Of speech in:
                          ``samples [batch, samples]``, int16, instead; of images
                          ``pixels`` as above.
``decode``                in: ``token_ids [batch, length]``, ``logit_positions
                          [chosen]`` (int32; ``row * length + index`` of the tokens
                          to compute logits after), ``num_cached_tokens [batch]``,
                          ``num_new_tokens [batch]`` (valid ids of each right-padded
                          row), ``max_total_length []`` (the largest sum
                          of the two), for encoder-decoders ``source_lengths
                          [batch]`` and ``max_source_length []``, and every state.
                          Of a decoder that reads images in prompts also
                          ``image_vectors [vectors, hidden]``, which replace embeddings
                          of tokens, and ``image_positions [vectors]`` (int32; ``row *
                          length + index`` of those tokens); both may be empty.
                          out: ``logits [chosen, vocabulary]``, and every state,
                          updated.
``encode_images``         of such a decoder. in: ``pixels [batch, height, width,
                          channels]``, uint8. out: ``image_vectors [batch, tokens,
                          hidden]``.
``attend``                as ``decode``, and out, as softmax weights: ``cross_attention
                          [batch, layers, heads, length, source_length]`` of an
                          encoder-decoder, ``self_attention [batch, layers, heads,
                          length, total_length]``. May be missing.
``attend_encode``         as ``encode``, and in: ``head_weights [chosen, heads]``; out,
                          for each layer in the order of their runs:
                          ``encoder_attention.N [batch, chosen, length, length]``, each
                          row of ``head_weights`` times the softmax weights of the
                          layer's heads. May be missing.
========================  =========================================================

In a bundle with LoRA adapters, every graph also has the input ``adapters [batch]`` (int32): the
adapter of each row, counted from 1 in the order of the manifest; 0 for none.

With adaptive computation time, ``encode`` (``[batch, length]``) and ``decode`` (``[chosen]``) also
have the outputs ``updates`` (int32), the number of layers that each token ran before it halted, and
``remainders``, the weight of its last state (Graves 2016). They may be missing.

``decode`` accepts any lengths with an empty cache, length 1 with ragged caches, and a longer chunk
over a cache for one row at a time. ``max_chunk`` = 1 in :class:`GraphSpec` means one new token per
run. With ``chunk_within_source``, a run of more than one new token has one row, and no more tokens
than the row's source.

*Slot state* is every tensor that a running sequence owns. A state is bound as input and output on
the same memory; its shape is ``batch`` followed by the shape of a slot.
"""

import math
import re
from enum import StrEnum
from typing import Annotated

import msgspec

# Graphs that return attention weights: of the decoder, and of the encoder.
ATTEND_ENCODE = "attend_encode"
ATTEND = "attend"
# Inputs of the encoder.
PIXELS, SAMPLES, NUM_SAMPLES = "pixels", "samples", "num_samples"
# The graph of a decoder's images, its output and input of ``decode``, and the places of those.
ENCODE_IMAGES = "encode_images"
IMAGE_VECTORS, IMAGE_POSITIONS = "image_vectors", "image_positions"
ATTENDED_LENGTHS = "attended_lengths"
# Outputs of models with several kinds of vectors.
SPARSE_WEIGHTS, MULTI_VECTORS = "sparse_weights", "multi_vectors"
# Inputs of an encoder that scores spans of words for labels in the text.
WORD_POSITIONS, WORD_LENGTHS, LABEL_POSITIONS = "word_positions", "word_lengths", "label_positions"
# Outputs with adaptive computation time.
UPDATES, REMAINDERS = "updates", "remainders"

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Size = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
TokenId = Count
LargeCount = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

# A dimension is a number, or the name of a dynamic one: "batch", "length", ...
Shape = tuple[int | str, ...]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a manifest; unknown fields are errors."""


class AttentionKind(StrEnum):
    """A kind of attention in a model.

    For a decoder, the name of its output of the graph :data:`ATTEND`. For an encoder, the prefix
    of its layers' outputs of the graph :data:`ATTEND_ENCODE`, before the layer's number.
    """

    CROSS = "cross_attention"
    SELF = "self_attention"
    ENCODER = "encoder_attention"


class StateRole(StrEnum):
    """``KV`` grows by one row per token, ``CROSS`` is written once, ``RECURRENT`` is fixed-size."""

    KV = "kv"
    CROSS = "cross"
    RECURRENT = "recurrent"


class Dtype(StrEnum):
    """Element types, with the names of numpy and ``ml_dtypes``."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT8 = "uint8"

    @property
    def num_bytes(self) -> int:
        """The size of one element."""
        return int(re.sub(r"\D", "", self.value)) // 8


class TensorSpec(Record, frozen=True, kw_only=True):
    name: str
    dtype: Dtype
    shape: Shape


class StateSpec(Record, frozen=True, kw_only=True):
    """One tensor that a running sequence owns.

    Attributes:
        shape: that of one slot. The server chooses ``"length"`` of a ``KV`` state and
            ``"source_length"`` of a ``CROSS`` state.
        input: the graph's input for the state.
        output: the graph's output for the state.
        source: the output of ``encode`` that fills a ``CROSS`` state or initializes a
            ``RECURRENT`` one; None: zeros.
    """

    name: str
    role: StateRole
    dtype: Dtype
    shape: Shape
    input: str
    output: str
    source: str | None = None


class GraphSpec(Record, frozen=True, kw_only=True):
    """One ONNX file.

    Attributes:
        inputs: all but the states.
        outputs: all but the states.
        max_chunk: the most new tokens per run; None: no limit.
        chunk_within_source: see the module's docstring.
        disabled_optimizers: ONNX Runtime's graph transformations to disable, in the parity check
            too.
    """

    file: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    states: tuple[StateSpec, ...] = ()
    max_chunk: Size | None = None
    chunk_within_source: bool = False
    disabled_optimizers: tuple[str, ...] = ()

    @property
    def image_vector_size(self) -> int | None:
        """The size of an image's vectors in a prompt; None if ``decode`` takes none."""
        sizes = [tensor.shape[-1] for tensor in self.inputs if tensor.name == IMAGE_VECTORS]
        return int(sizes[0]) if sizes else None

    def output(self, name: str) -> TensorSpec:
        """The output with this name, which must exist."""
        (found,) = (tensor for tensor in self.outputs if tensor.name == name)
        return found

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes per token of one sequence, over all ``KV`` states."""
        return sum(
            math.prod(size for size in state.shape if isinstance(size, int)) * state.dtype.num_bytes
            for state in self.states
            if state.role == StateRole.KV
        )
