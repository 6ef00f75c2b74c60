"""The parity check: whether the graphs compute what the eager module computes.

The fp32 graphs must match within a tolerance and produce the same greedy tokens. The graphs of the
bundle, which may be quantized, must reach a minimum cosine.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from export.checkpoint import Checkpoint
from export.differences import worst_cosine
from export.encoding import encode_in_graph
from export.errors import ParityError
from export.float64_reference import float64_model
from export.offload import LARGE_BYTES, num_bytes
from export.parity_inputs import decoding_inputs, encoder_inputs
from export.parity_reference import ParityReference, compare_decoder, compare_encoder
from export.parity_sessions import open_sessions, run_sessions
from export.perplexity import PerplexityScore
from export.runtime import Floats, Session, onnxruntime_version
from model.bundle import Fidelity, GraphSpec, Parity
from model.config import Kind
from model.transformer import Transformer, from_weights


def compare_fp32(
    checkpoint: Checkpoint,
    directory: Path,
    graphs: dict[str, GraphSpec],
    weights: Mapping[str, Tensor] | None = None,
    adapter: int = 0,
) -> ParityReference:
    """Compares the fp32 graphs in ``directory`` with the eager module.

    Args:
        weights: default: those of the checkpoint.
        adapter: the adapter that the graphs apply, counted from 1; 0 for none.

    Raises:
        ParityError: an error exceeds the tolerance, or a greedy token differs.
    """
    reference_weights = checkpoint.weights if weights is None else weights

    def make_model(*, in_float64: bool) -> Transformer:
        make = float64_model if in_float64 else from_weights
        return make(checkpoint.config, dict(reference_weights))

    is_large = num_bytes(reference_weights) >= LARGE_BYTES
    with torch.inference_mode():
        if checkpoint.config.kind == Kind.ENCODER:
            texts = encoder_inputs(checkpoint)
            reference = compare_encoder(make_model, texts, directory, graphs, adapter)
        else:
            inputs = decoding_inputs(checkpoint, is_large=is_large)
            reference = compare_decoder(
                make_model, inputs, directory, graphs, adapter, is_large=is_large
            )
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
    reference: ParityReference,
    directory: Path,
    graphs: dict[str, GraphSpec],
    threshold: float,
    adapter: int = 0,
) -> float:
    """The worst row's cosine between the graphs in ``directory`` and ``reference``.

    Raises:
        ParityError: it is below ``threshold``.
    """
    outputs: Sequence[Floats] = ()
    if reference.encoder_inputs is not None:
        session = Session(directory, graphs["encode"], adapter=adapter)
        rows = encode_in_graph(session, reference.encoder_inputs)
        outputs = [row[0] for row in rows]
    elif reference.decoder_inputs is not None:
        inputs = reference.decoder_inputs
        sessions = open_sessions(inputs, directory, graphs, adapter=adapter)
        outputs = list(run_sessions(sessions, inputs, reference.tokens).logits)
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
    """The content of ``parity.json`` for a bundle that passed.

    Args:
        fp32: the perplexity of the fp32 graphs.
        bundle: that of the bundle's graphs.
        float_cache: that of the bundle's graphs before their cache became int8.
        fidelity: the bundle's graphs compared with the fp32 graphs.
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
