"""Checkpoint to bundle: graphs, parity, hashes; all of it or nothing."""

import math
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from export.apply_recipe import apply_recipe, runnable
from export.attention_graph import add_attention_graph
from export.checkpoint import Checkpoint, check_weights
from export.errors import BundleExistsError, ExportError
from export.graphs import export_graphs
from export.kv_cache import Largest, calibration, check_supported, observe, quantize_cache
from export.offload import LARGE_BYTES, SpilledWeights, num_bytes
from export.parity import certificate, compare_fp32, min_cosine, tokenized_samples
from export.perplexity import NUM_LARGE_TEXTS, Evaluation, score
from export.quantize import NO_DIVISORS
from export.recipes import RECIPES, Recipe
from export.signatures import Signatures
from export.smooth_quant import divisors, equalized
from model.bundle import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    NAME_PATTERN,
    PARITY_FILE,
    TOKENIZER_FILE,
    Device,
    Dimensions,
    FileRecord,
    Graph,
    KvCache,
    Manifest,
    Parity,
    Precision,
)
from model.bundle_files import sha256_of, to_json

Progress = Callable[[str], None]

# To fp32, of the worst row, where the cache is held in eight bits.
CACHE_MIN_COSINE = 0.9


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
    progress: Progress = _no_progress,
    keep_weights: bool = True,
) -> Path:
    """Writes the bundle ``root/name/version`` and returns its folder.

    The folder appears whole, by a rename, after the parity check passed.

    Args:
        name: default: the checkpoint's own.
        device: that the graphs are for.
        kv_cache: what keys and values of earlier tokens are held in.
        progress: is told the name of each stage as it begins.
        keep_weights: False lets the export take those of a large model out of
            ``checkpoint``, so that its memory is free.

    Raises:
        WeightsError: the weights do not fit the configuration.
        ParityError: a graph does not compute what the eager module computes.
        BundleExistsError: there is one of this name and version.
        UnsupportedError: the model has no cache that can be held so.
    """
    name = name or checkpoint.name
    for value in (name, version):
        if not re.match(NAME_PATTERN, value):
            raise ExportError(f"{value!r} is no name for a bundle: it must match {NAME_PATTERN}")
    target = root / name / version
    if target.exists():
        raise BundleExistsError(f"{target} exists: delete it, or choose another version")
    check_weights(checkpoint.config, checkpoint.weights)
    if kv_cache == KvCache.INT8:
        check_supported(checkpoint.config, device)
    num_parameters = sum(math.prod(w.shape) for w in checkpoint.weights.values())
    form = _Form(precision, device, kv_cache)
    with _scratch(root) as directory, _threads(checkpoint.weights):
        weights: Mapping[str, Tensor] = checkpoint.weights
        if not keep_weights and num_bytes(weights) >= LARGE_BYTES:
            progress("put the weights aside")
            weights = SpilledWeights(checkpoint.weights, directory / "weights")
        graphs, parity = _write_graphs(checkpoint, weights, directory, form, progress)
        shutil.rmtree(directory / "weights", ignore_errors=True)
        progress("hash and rename")
        (directory / TOKENIZER_FILE).write_text(checkpoint.tokenizer_json, encoding="utf-8")
        _write_records(checkpoint, directory, graphs, parity, name, version, form, num_parameters)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            directory.rename(target)
        except OSError as error:
            raise ExportError(f"cannot write {target}: {error.strerror}") from error
    return target


@dataclass(frozen=True)
class _Form:
    """What the graphs become."""

    precision: Precision
    device: Device
    kv_cache: KvCache

    @property
    def recipe(self) -> Recipe:
        return RECIPES[self.precision, self.device]


def _write_graphs(
    checkpoint: Checkpoint,
    weights: Mapping[str, Tensor],
    directory: Path,
    form: _Form,
    progress: Progress,
) -> tuple[Signatures, Parity]:
    """Writes graphs into ``directory`` that hold what ``form`` says, and checks them."""
    recipe = form.recipe
    progress("even out activations" if recipe.evened else "trace the graphs")
    evened, divided = dict(weights), NO_DIVISORS
    if recipe.evened:
        samples = tokenized_samples(checkpoint)
        found = divisors(checkpoint.config, evened, samples)
        divided = {name: values.numpy() for name, values in found.items()}
        evened = equalized(checkpoint.config, evened, samples)
        progress("trace the graphs")
    graphs = export_graphs(checkpoint.config, evened, directory)
    del evened
    progress("check parity with the eager module")
    reference = compare_fp32(checkpoint, directory, graphs, weights)
    is_large = num_bytes(weights) >= LARGE_BYTES
    evaluation = Evaluation.of(checkpoint, NUM_LARGE_TEXTS if is_large else None)
    before, after, float_cache = None, None, None
    if evaluation is not None:
        progress("measure perplexity")
        before = after = score(evaluation, directory, graphs, is_large=is_large)
    largest: Largest = {}
    if form.kv_cache == KvCache.INT8:
        progress("look at what the cache holds")
        rows = calibration(checkpoint.config, evaluation)
        largest = observe(rows, directory, graphs, is_large=is_large)
    progress(f"turn into {form.precision} for {form.device}")
    graphs = apply_recipe(checkpoint.config, recipe, graphs, directory, divided)
    progress(f"check the {form.precision} graphs")
    if largest:
        if evaluation is not None:
            with runnable(recipe, graphs, directory) as folder:
                float_cache = score(evaluation, folder, graphs)
        graphs = quantize_cache(graphs, directory, largest, form.device)
    graphs = add_attention_graph(graphs, directory)
    if largest or not recipe.is_plain:
        floor = min(recipe.min_cosine, CACHE_MIN_COSINE) if largest else recipe.min_cosine
        with runnable(recipe, graphs, directory) as folder:
            cosine = min_cosine(reference, folder, graphs, floor)
            if evaluation is not None:
                after = score(evaluation, folder, graphs)
    else:
        cosine = reference.cosine
    return graphs, certificate(reference, cosine, before, after, float_cache)


@contextmanager
def _threads(weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Keeps PyTorch to one thread, unless the model is large.

    The matrices are small then, and where other work shares the cores, threads that wait for
    each other made a check of 8 seconds one of 37.
    """
    num_threads = torch.get_num_threads()
    if num_bytes(weights) < LARGE_BYTES:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


@contextmanager
def _scratch(root: Path) -> Iterator[Path]:
    """A folder inside ``root``, so that a rename can move it; gone afterwards if it was not."""
    root.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=".export-", dir=root))
    try:
        directory.chmod(0o755)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _write_records(
    checkpoint: Checkpoint,
    directory: Path,
    graphs: dict[str, Graph],
    parity: Parity,
    name: str,
    version: str,
    form: "_Form",
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
        precision=form.precision,
        device=form.device,
        kv_cache=form.kv_cache,
        license=checkpoint.license,
        dimensions=Dimensions(
            hidden_size=config.hidden_size,
            num_layers=sum(len(s.applied) for s in (config.encoder, config.decoder) if s),
            vocabulary_size=config.vocabulary_size,
            max_positions=config.position.max_positions,
            num_parameters=num_parameters,
        ),
        special_tokens=checkpoint.special_tokens,
        source_language=checkpoint.source_language,
        target_language=checkpoint.target_language,
        languages=checkpoint.languages,
        labels=checkpoint.labels,
        score_function=checkpoint.score_function,
        embedding=checkpoint.embedding,
        max_input_tokens=checkpoint.max_input_tokens,
        chat_template=checkpoint.chat_template,
        max_length_factor=checkpoint.max_length_factor,
        graphs=graphs,
        files=files,
    )
    (directory / MANIFEST_FILE).write_bytes(to_json(manifest))
