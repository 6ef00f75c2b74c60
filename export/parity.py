"""The parity check: whether the graphs compute what the eager module computes.

The fp32 graphs must match within a tolerance and produce the same greedy tokens. The graphs of the
bundle, which may be quantized, must reach a minimum cosine.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from export.checkpoint import Checkpoint
from export.decoding import (
    LOWEST_LOGIT,
    DecodingInputs,
    DecodingRun,
    cached_source_states,
    decode_eagerly,
    decode_eagerly_batched,
    decode_in_graph,
    eager_source_states,
    greedy_tokens,
    prefill_source,
)
from export.differences import largest_error, largest_relative_error, worst_cosine
from export.encoding import EncoderInputs, encode_eagerly, encode_in_graph
from export.errors import ParityError
from export.float64_reference import float64_model
from export.offload import LARGE_BYTES, num_bytes
from export.parity_inputs import decoding_inputs, encoder_inputs
from export.perplexity import PerplexityScore
from export.runtime import DecodeSession, Floats, Session, onnxruntime_version
from model.bundle import Fidelity, GraphSpec, Parity
from model.config import Kind
from model.transformer import Transformer

TOLERANCE = 1e-4  # of logits and components of embeddings up to 10; larger ones round coarser
# A spectrogram spans eight orders of magnitude, so that its smallest values round coarsely.
SPEECH_TOLERANCE = 4e-4
TIE = 1e-3  # either of two logits this close may be the greedy one
NUM_LARGE_CHUNKED_ROWS = 2  # of a large decoder
NUM_CHUNKED_STEPS = 4  # decoded after a chunked prefill


@dataclass(frozen=True)
class ParityReference:
    """The eager module's outputs for some inputs, and how the fp32 graphs compare with them.

    Attributes:
        outputs: of each row: ``[size]``, ``[length, labels]`` or ``[steps, vocabulary]``.
        cosine: of the fp32 graphs, the worst row.
        encoder_inputs: of an encoder.
        decoder_inputs: of a decoder or an encoder-decoder.
        tokens: ``[rows, steps]``, which the decoder generated.
        least_tolerance: of outputs up to 10.
    """

    outputs: Sequence[Floats]
    max_absolute_error: float
    tokens_compared: int
    tokens_equal: int
    cosine: float = 1.0
    encoder_inputs: EncoderInputs | None = None
    decoder_inputs: DecodingInputs | None = None
    tokens: NDArray[np.int64] | None = None
    least_tolerance: float = TOLERANCE

    @property
    def tolerance(self) -> float:
        """The error that is allowed: in proportion to the largest output, if that is above 10."""
        largest = max(np.abs(row[row > LOWEST_LOGIT]).max(initial=0) for row in self.outputs)
        return self.least_tolerance * max(1.0, float(largest) / 10)


def compare_fp32(
    checkpoint: Checkpoint,
    directory: Path,
    graphs: dict[str, GraphSpec],
    weights: Mapping[str, Tensor] | None = None,
) -> ParityReference:
    """Compares the fp32 graphs in ``directory`` with the eager module.

    Args:
        weights: default: the checkpoint's.

    Raises:
        ParityError: an error over the tolerance, or a greedy token that differs.
    """
    reference_weights = checkpoint.weights if weights is None else weights

    def make_model() -> Transformer:
        # In float64: the error is the rounding of the graph alone.
        return float64_model(checkpoint.config, reference_weights)

    is_large = num_bytes(reference_weights) >= LARGE_BYTES
    with torch.inference_mode():
        if checkpoint.config.kind == Kind.ENCODER:
            texts = encoder_inputs(checkpoint)
            reference = _compare_encoder(make_model(), texts, directory, graphs)
        else:
            inputs = decoding_inputs(checkpoint, is_large=is_large)
            reference = _compare_decoder(make_model, inputs, directory, graphs, is_large=is_large)
    if not reference.max_absolute_error <= reference.tolerance:
        raise ParityError(
            f"the graph differs from the eager module by {reference.max_absolute_error:.2e}, "
            f"more than {reference.tolerance:.0e}"
        )
    if reference.tokens_equal != reference.tokens_compared:
        raise ParityError(
            f"only {reference.tokens_equal} of {reference.tokens_compared} greedy tokens "
            "equal those of the eager module"
        )
    return reference


def min_cosine(
    reference: ParityReference, directory: Path, graphs: dict[str, GraphSpec], threshold: float
) -> float:
    """The worst row's cosine between the graphs in ``directory`` and ``reference``.

    Raises:
        ParityError: it is below ``threshold``.
    """
    outputs: Sequence[Floats] = ()
    if reference.encoder_inputs is not None:
        rows = encode_in_graph(Session(directory, graphs["encode"]), reference.encoder_inputs)
        outputs = [row[0] for row in rows]
    elif reference.decoder_inputs is not None:
        sessions = _sessions(reference.decoder_inputs, directory, graphs)
        outputs = list(_run(sessions, reference.decoder_inputs, reference.tokens).logits)
    worst = worst_cosine(outputs, reference.outputs)
    if not worst >= threshold:
        raise ParityError(
            f"the worst cosine of the bundle's graphs to the eager module is {worst:.4f}, "
            f"below {threshold}"
        )
    return worst


def parity_record(
    reference: ParityReference,
    cosine: float,
    fp32: PerplexityScore | None = None,
    bundle: PerplexityScore | None = None,
    float_cache: PerplexityScore | None = None,
    fidelity: Fidelity | None = None,
) -> Parity:
    """``parity.json`` of a bundle that passed.

    Args:
        fp32: the perplexity of the fp32 graphs.
        bundle: that of the bundle's graphs.
        float_cache: that of the bundle's graphs before their cache became int8.
        fidelity: how close the bundle's graphs are to the fp32 graphs.
    """
    return Parity(
        max_absolute_error=reference.max_absolute_error,
        greedy_tokens_compared=reference.tokens_compared,
        greedy_tokens_equal=reference.tokens_equal,
        min_cosine=cosine,
        tolerance=reference.tolerance,
        onnxruntime=onnxruntime_version(),
        torch=str(torch.__version__),
        evaluation_tokens=0 if bundle is None else bundle.num_tokens,
        perplexity=None if bundle is None else bundle.perplexity,
        fp32_perplexity=None if fp32 is None else fp32.perplexity,
        float_cache_perplexity=None if float_cache is None else float_cache.perplexity,
        fidelity=fidelity,
    )


@dataclass(frozen=True)
class _Sessions:
    decoder: DecodeSession
    encoder: Session | None


def _sessions(
    inputs: DecodingInputs, directory: Path, graphs: dict[str, GraphSpec], *, is_large: bool = False
) -> _Sessions:
    decoder = DecodeSession(
        directory,
        graphs["decode"],
        num_slots=len(inputs.prompts),
        capacity=inputs.capacity,
        source_capacity=inputs.source_capacity,
        is_large=is_large,
    )
    encoder = None
    if "encode" in graphs:
        encoder = Session(directory, graphs["encode"], is_large=is_large)
    return _Sessions(decoder, encoder)


def _run(
    sessions: _Sessions,
    inputs: DecodingInputs,
    tokens: NDArray[np.int64] | None,
    chunks: int = 1,
) -> DecodingRun:
    sessions.decoder.clear()
    if sessions.encoder is not None and inputs.sources is not None:
        prefill_source(sessions.encoder, sessions.decoder, inputs.sources)
    return decode_in_graph(sessions.decoder, inputs, tokens, chunks)


def _compare_decoder(
    make_model: Callable[[], Transformer],
    inputs: DecodingInputs,
    directory: Path,
    graphs: dict[str, GraphSpec],
    *,
    is_large: bool,
) -> ParityReference:
    sessions = _sessions(inputs, directory, graphs, is_large=is_large)
    run = _run(sessions, inputs, None)
    # Chunked prefill: the same prompts in three chunks must give the same logits.
    is_large_decoder = is_large and inputs.sources is None
    num_chunked = NUM_LARGE_CHUNKED_ROWS if is_large_decoder else len(inputs.prompts)
    num_steps = min(NUM_CHUNKED_STEPS, inputs.num_steps)
    short = dataclasses.replace(inputs, num_steps=num_steps, prompts=inputs.prompts[:num_chunked])
    chunked = _run(sessions, short, run.tokens[:num_chunked], chunks=3)
    graph_source_kv = None
    if inputs.sources is not None:
        if sessions.encoder is not None:  # decoding has overwritten the recurrent states
            prefill_source(sessions.encoder, sessions.decoder, inputs.sources)
        graph_source_kv = [
            cached_source_states(sessions.decoder, row, len(source))
            for row, source in enumerate(inputs.sources)
        ]
    del sessions  # a large model is in memory once: as a session or as a module
    model = make_model()
    source_kv = None
    error = 0.0
    if inputs.sources is not None and graph_source_kv is not None:
        source_kv = [eager_source_states(model, source) for source in inputs.sources]
        error = max(
            largest_error(actual[kind].numpy(), expected[kind].numpy())
            for expected_row, actual_row in zip(source_kv, graph_source_kv, strict=True)
            for expected, actual in zip(expected_row, actual_row, strict=False)
            for kind in expected
        )
    # The tolerance applies to each graph alone: the eager decoder runs over the keys and values
    # that the encoder's graph computed.
    if is_large_decoder:
        logits = decode_eagerly_batched(model, inputs, run.tokens)
    else:
        logits = decode_eagerly(model, inputs, run.tokens, graph_source_kv)
    error = max(error, largest_error(run.logits, logits))
    error = max(error, largest_error(chunked.logits, logits[:num_chunked, : short.num_steps]))
    # Greedy tokens are compared with the eager module from end to end.
    if source_kv is not None:
        logits = decode_eagerly(model, inputs, run.tokens, source_kv)
    # The graph fed back its own tokens. If each is the eager module's greedy token after the
    # same prefix, greedy decoding in the eager module gives the same sequence.
    best = greedy_tokens(logits, inputs.suppressed)
    best_logits = np.take_along_axis(logits, best[..., None], -1)
    chosen_logits = np.take_along_axis(logits, run.tokens[..., None], -1)
    equal = (best_logits - chosen_logits)[..., 0] <= TIE
    return ParityReference(
        outputs=list(logits),
        max_absolute_error=error,
        tokens_compared=int(equal.size),
        tokens_equal=int(equal.sum()),
        cosine=worst_cosine(run.logits, logits),
        decoder_inputs=inputs,
        tokens=run.tokens,
        least_tolerance=TOLERANCE if model.config.audio is None else SPEECH_TOLERANCE,
    )


def _compare_encoder(
    model: Transformer, inputs: EncoderInputs, directory: Path, graphs: dict[str, GraphSpec]
) -> ParityReference:
    expected = encode_eagerly(model, inputs)
    actual = encode_in_graph(Session(directory, graphs["encode"]), inputs)
    error = 0.0
    for rows in zip(actual, expected, strict=True):
        first, *others = zip(*rows, strict=True)
        error = max(
            error, largest_error(*first), *(largest_relative_error(*output) for output in others)
        )
    return ParityReference(
        outputs=[outputs[0] for outputs in expected],
        max_absolute_error=error,
        tokens_compared=0,
        tokens_equal=0,
        cosine=worst_cosine([row[0] for row in actual], [row[0] for row in expected]),
        encoder_inputs=inputs,
    )
