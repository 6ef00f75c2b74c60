"""Writes a checkpoint as a bundle: graphs, parity check and hashes, all or nothing."""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from torch import Tensor

from export.adapter_graph import AdapterStage
from export.adapters import ServedAdapter
from export.apply_scheme import apply_scheme, cpu_runnable
from export.attention_graph import add_attention_graph
from export.bundle_path import bundle_path
from export.calibration_rows import calibration_samples
from export.checkpoint import Checkpoint, HeldOutSet, check_vocabulary, check_weights
from export.encoder_attention_graph import add_encoder_attention_graph
from export.fidelity.limits import check_finite, checked_fidelity
from export.fidelity.measure import measure_fidelity
from export.fidelity.subject import GraphFolder, Subject
from export.graph_files import copy_graphs
from export.graphs import export_graphs
from export.kv_cache import (
    CacheRanges,
    calibrate,
    calibration_set,
    check_kv_cache_supported,
    quantize_cache,
)
from export.offload import LARGE_BYTES, OffloadedWeights, num_bytes
from export.parity import compare_fp32, min_cosine, parity_record
from export.parity_inputs import tokenize_samples
from export.perplexity import NUM_LARGE_TEXTS, EvaluationSet, measure_perplexity
from export.precision_schemes import PrecisionScheme, scheme_for
from export.quality.measure import write_quality
from export.quantize import NO_SMOOTHING, SmoothingFactors
from export.scratch import few_threads, scratch_folder
from export.second_moments import measure_second_moments
from export.shortlist_loss import add_shortlist
from export.shortlists import ShortlistSource
from export.signatures import Signatures
from export.smooth_quant import ChannelScales, residual_smoothing_factors, smooth_activations
from export.supported import check_device_supported
from export.tokenization.fill_in_middle import fill_in_middle
from model.bundle import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    PARITY_FILE,
    TOKENIZER_FILE,
    Device,
    Dimensions,
    Dtype,
    FileRecord,
    FillInMiddle,
    GraphSpec,
    KvCache,
    Manifest,
    Parity,
    Precision,
)
from model.bundle_files import sha256_of, to_json
from model.config import Kind

ProgressCallback = Callable[[str], None]
MAX_SMOOTHING_TOKENS = 1024

# The lowest cosine to fp32 of any row with an int8 cache.
INT8_CACHE_MIN_COSINE = 0.9
# A wrong graph is near 0; random weights in int4 reach 0.7 after 22 layers.
LOSS_MIN_COSINE = 0.5
FP32_FOLDER = "fp32"  # holds the graphs before their conversion until the export ends


def _no_progress(_: str) -> None:
    return None


def write_bundle(
    checkpoint: Checkpoint,
    root: Path,
    *,
    name: str | None = None,
    version: str = "1",
    precision: Precision = Precision.FP32,
    device: Device = Device.CPU,
    kv_cache: KvCache = KvCache.FLOAT,
    shortlist: ShortlistSource | None = None,
    progress: ProgressCallback = _no_progress,
    keep_weights: bool = True,
    accept_loss: bool = False,
    held_out: HeldOutSet | None = None,
    adapters: Sequence[ServedAdapter] = (),
) -> Path:
    """Writes the bundle ``root/name/version`` and returns its folder.

    The folder appears complete, through a rename, after the parity check has passed.

    Args:
        name: the bundle's name; default: the checkpoint's.
        device: the device that will run the graphs.
        kv_cache: how the graphs store cached keys and values.
        shortlist: the lexical shortlist of an encoder-decoder.
        progress: called with the name of each stage as it starts.
        keep_weights: False lets the export remove a large model's weights from
            ``checkpoint``, to free their memory.
        accept_loss: writes the bundle even if its fidelity is below the limits of
            :mod:`export.fidelity.limits`; ``parity.json`` then lists them. The cosine of the
            parity check may be as low as ``LOSS_MIN_COSINE``.
        held_out: examples for measuring the graphs' task quality, for ``quality.json``.
        adapters: LoRA adapters that the bundle serves beside the checkpoint.

    Raises:
        ExportError: the name or the version has characters that it may not have.
        WeightsError: the weights do not fit the configuration.
        ParityError: a graph does not compute what the eager module computes.
        FidelityError: the precision loses more than its limits allow.
        BundleExistsError: a bundle of this name and version exists.
        UnsupportedError: ``device`` lacks operators, the cache cannot be ``kv_cache``, or the
            chat template does not render.
    """
    name = name or checkpoint.name
    path = bundle_path(root, name, version)
    check_weights(checkpoint.config, checkpoint.weights)
    check_vocabulary(checkpoint.config, checkpoint.tokenizer_json)
    Subject.of(checkpoint).check_chat_template()
    check_device_supported(checkpoint.config, device, precision)
    if kv_cache == KvCache.INT8:
        check_kv_cache_supported(checkpoint.config, device)
    num_parameters = sum(math.prod(w.shape) for w in checkpoint.weights.values())
    stage = AdapterStage(adapters, device)
    target = _Target(precision, device, kv_cache, accept_loss, shortlist, held_out, stage)
    with scratch_folder(root) as directory, few_threads(checkpoint.weights):
        weights: Mapping[str, Tensor] = checkpoint.weights
        if not keep_weights and num_bytes(weights) >= LARGE_BYTES:
            progress("offload the weights to disk")
            weights = OffloadedWeights(checkpoint.weights, directory / "weights")
        graphs, parity = _write_graphs(checkpoint, weights, directory, target, progress)
        check_finite(parity)
        for temporary in ("weights", FP32_FOLDER):
            shutil.rmtree(directory / temporary, ignore_errors=True)
        if shortlist is not None:
            progress("measure the shortlist")
            scheme = scheme_for(precision, device, checkpoint.config.kind)
            parity = add_shortlist(checkpoint, shortlist, scheme, directory, graphs, parity)
        progress("hash and rename")
        (directory / TOKENIZER_FILE).write_text(checkpoint.tokenizer_json, encoding="utf-8")
        _write_records(checkpoint, directory, graphs, parity, name, version, target, num_parameters)
        path.parent.mkdir(parents=True, exist_ok=True)
        directory.rename(path)
    return path


@dataclass(frozen=True)
class _Target:
    """What the bundle is for, what it gets, and whether to accept any loss."""

    precision: Precision
    device: Device
    kv_cache: KvCache
    accept_loss: bool
    shortlist: ShortlistSource | None
    held_out: HeldOutSet | None
    adapters: AdapterStage

    def min_cosine(self, scheme: PrecisionScheme) -> float:
        """The lowest cosine to the eager module of any row."""
        threshold = LOSS_MIN_COSINE if self.accept_loss else scheme.min_cosine
        return min(threshold, INT8_CACHE_MIN_COSINE) if self.kv_cache == KvCache.INT8 else threshold


def _write_graphs(
    checkpoint: Checkpoint,
    weights: Mapping[str, Tensor],
    directory: Path,
    target: _Target,
    progress: ProgressCallback,
) -> tuple[Signatures, Parity]:
    """Writes the graphs of ``target`` into ``directory`` and checks them."""
    scheme = scheme_for(target.precision, target.device, checkpoint.config.kind)
    progress("smooth activations" if scheme.smoothed else "trace the graphs")
    smoothed, smoothing_factors = dict(weights), NO_SMOOTHING
    if scheme.smoothed:
        smoothed, smoothing_factors = _smooth(checkpoint, smoothed, target.adapters.scale)
        progress("trace the graphs")
    graphs = export_graphs(checkpoint.config, smoothed, directory)
    del smoothed
    target.adapters.find_products(graphs, directory)
    progress("check parity with the eager module")
    reference = compare_fp32(checkpoint, directory, graphs, weights)
    is_large = num_bytes(weights) >= LARGE_BYTES
    evaluation = EvaluationSet.of(checkpoint, NUM_LARGE_TEXTS if is_large else None)
    fp32, final, float_cache = None, None, None
    if evaluation is not None:
        progress("measure perplexity")
        fp32 = final = measure_perplexity(evaluation, directory, graphs, is_large=is_large)
    cache_ranges: CacheRanges = {}
    if target.kv_cache == KvCache.INT8:
        progress("calibrate the int8 cache")
        rows = calibration_set(checkpoint.config, evaluation)
        cache_ranges = calibrate(rows, directory, graphs, is_large=is_large)
    progress(f"convert to {target.precision} for {target.device}")
    fp32_graphs = GraphFolder(directory / FP32_FOLDER, graphs, is_large)
    if cache_ranges and scheme.is_plain:
        copy_graphs(graphs, directory, fp32_graphs.directory)
    graphs = apply_scheme(
        checkpoint.config,
        scheme,
        graphs,
        directory,
        smoothing_factors,
        fp32_graphs.directory,
        measure_second_moments(
            checkpoint, weights, scheme, GraphFolder(directory, graphs, is_large)
        ),
    )
    progress(f"check the {target.precision} graphs")
    if cache_ranges:
        if evaluation is not None:
            with cpu_runnable(scheme, graphs, directory) as folder:
                float_cache = measure_perplexity(evaluation, folder, graphs)
        graphs = quantize_cache(graphs, directory, cache_ranges, target.device)
    graphs = target.adapters.add(graphs, directory, scheme)
    graphs = add_attention_graph(graphs, directory)
    graphs = add_encoder_attention_graph(checkpoint.config, graphs, directory)
    if cache_ranges or not scheme.is_plain:
        with cpu_runnable(scheme, graphs, directory) as folder:
            cosine = min_cosine(reference, folder, graphs, target.min_cosine(scheme))
            if evaluation is not None:
                final = measure_perplexity(evaluation, folder, graphs)
            progress("compare answers with fp32")
            fidelity = measure_fidelity(
                Subject.of(checkpoint),
                fp32_graphs,
                GraphFolder(folder, graphs),
                by_matrix=scheme.computed == Dtype.FLOAT32,
            )
            fidelity = checked_fidelity(
                fidelity, target.precision, target.kv_cache, accept_loss=target.accept_loss
            )
            write_quality(
                checkpoint, target.held_out, directory, fp32_graphs, GraphFolder(folder, graphs)
            )
    else:
        cosine, fidelity = reference.cosine, None
        write_quality(checkpoint, target.held_out, directory, GraphFolder(directory, graphs))
    parity = parity_record(reference, cosine, fp32, final, float_cache, fidelity)
    return graphs, target.adapters.check(
        parity, fp32_graphs.directory, directory, graphs, target.min_cosine(scheme)
    )


def _smooth(
    checkpoint: Checkpoint,
    weights: dict[str, Tensor],
    on_scaled: Callable[[ChannelScales], None],
) -> tuple[dict[str, Tensor], SmoothingFactors]:
    """The weights with smoothed activations, and the divisors of inputs from residual streams."""
    rows = calibration_samples(checkpoint, MAX_SMOOTHING_TOKENS) or tokenize_samples(checkpoint)
    factors = residual_smoothing_factors(checkpoint.config, weights, rows)
    smoothing_factors = {name: values.numpy() for name, values in factors.items()}
    smoothed = smooth_activations(checkpoint.config, weights, rows, on_scaled)
    return smoothed, smoothing_factors


def _write_records(
    checkpoint: Checkpoint,
    directory: Path,
    graphs: dict[str, GraphSpec],
    parity: Parity,
    name: str,
    version: str,
    target: "_Target",
    num_parameters: int,
) -> None:
    config = checkpoint.config
    (directory / PARITY_FILE).write_bytes(to_json(parity))
    files = tuple(
        FileRecord(path=path.name, size=path.stat().st_size, sha256=sha256_of(path))
        for path in sorted(directory.iterdir())
    )
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=name,
        version=version,
        kind=config.kind,
        tasks=checkpoint.tasks,
        architecture=checkpoint.architecture,
        precision=target.precision,
        device=target.device,
        kv_cache=target.kv_cache,
        license=checkpoint.license,
        source=checkpoint.source,
        dimensions=Dimensions(
            hidden_size=config.hidden_size,
            num_layers=config.num_layers,
            vocabulary_size=config.vocabulary_size,
            max_positions=config.position.max_positions,
            max_source_positions=config.position.max_source_positions,
            num_parameters=num_parameters,
        ),
        special_tokens=checkpoint.special_tokens,
        source_language=checkpoint.source_language,
        target_language=checkpoint.target_language,
        languages=checkpoint.languages,
        labels=checkpoint.labels,
        score_function=checkpoint.score_function,
        edits=checkpoint.edits,
        embedding=checkpoint.embedding,
        pair_template=checkpoint.pair_template,
        span_tagging=checkpoint.span_tagging or msgspec.UNSET,
        fill_in_middle=_fill_in_middle(checkpoint) or msgspec.UNSET,
        image=checkpoint.image,
        audio=checkpoint.audio,
        transcription=checkpoint.transcription,
        ctc=checkpoint.ctc or msgspec.UNSET,
        max_input_tokens=checkpoint.max_input_tokens,
        chat_template=checkpoint.chat_template,
        max_length_factor=checkpoint.max_length_factor,
        shortlist=None if target.shortlist is None else target.shortlist.spec,
        adapters=target.adapters.specs or msgspec.UNSET,
        graphs=graphs,
        files=files,
    )
    (directory / MANIFEST_FILE).write_bytes(to_json(manifest))


def _fill_in_middle(checkpoint: Checkpoint) -> FillInMiddle | None:
    """The tokens with which a decoder fills in the middle of a text."""
    if checkpoint.config.kind != Kind.DECODER:
        return None
    return fill_in_middle(checkpoint.tokenizer_json)
