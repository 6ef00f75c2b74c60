"""Plans a model's share of the memory budget, and the slots that fit into it.

    weights + lanes x slots x (tokens x bytes per token + source) + working memory

The sum counts the cache as if every slot were full. docs/decisions/0107-memory.md.
"""

import logging
import math
from dataclasses import dataclass

from model.bundle import BundleError, EmbeddingKind, GraphSpec, Manifest, StateRole
from server.bounds import MAX_LABELS
from server.byte_sizes import in_units
from server.config import ServerConfig
from server.engine.cache.slot_tensors import can_hold_prefixes

log = logging.getLogger(__name__)

# Estimated fp32 activations that a run holds per token, in vectors of the hidden size: queries,
# keys, values, two or three activations of a feed-forward layer (4 x hidden), residuals; doubled
# for the arenas, which grow by powers of two.
_VECTORS_PER_TOKEN = 32
# Maximum logits of one run of a sparse embedding model, whose graph computes them for every token.
_MAX_LOGIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of one model, and the slots that fit.

    Attributes:
        weight_bytes: weights of all devices' graphs, including each copy for a device or a lane.
        slot_bytes: cache of one full slot of one lane.
        working_bytes: estimate of ONNX Runtime's arenas and the logits, over all lanes.
        num_lanes: number of lanes; each has its own slots.
        num_slots: slots per lane; 0 for an encoder.
        num_prefix_slots: prefix slots per lane.
    """

    weight_bytes: int
    slot_bytes: int
    working_bytes: int
    num_lanes: int
    num_slots: int
    num_prefix_slots: int

    @property
    def cache_bytes(self) -> int:
        """Cache of all slots and prefix slots if they are full."""
        return self.num_lanes * (self.num_slots + self.num_prefix_slots) * self.slot_bytes

    @property
    def num_bytes(self) -> int:
        return self.weight_bytes + self.cache_bytes + self.working_bytes

    def __str__(self) -> str:
        cache = ""
        if self.slot_bytes:
            rows = f"{self.num_slots} slots + {self.num_prefix_slots} prefix slots"
            cache = (
                f" + cache {in_units(self.cache_bytes)} ({self.num_lanes} lanes x ({rows}) x "
                f"{in_units(self.slot_bytes)})"
            )
        return (
            f"weights {in_units(self.weight_bytes)}{cache} + working memory "
            f"{in_units(self.working_bytes)} = {in_units(self.num_bytes)}"
        )


def weight_file_bytes(manifest: Manifest) -> int:
    """Bytes of the bundle's graphs and weights."""
    return sum(record.size for record in manifest.files if ".onnx" in record.path)


def plan_memory(
    manifest: Manifest,
    max_length: int,
    max_source_length: int,
    config: ServerConfig,
    weight_bytes: int,
    available_bytes: int | None,
) -> MemoryPlan:
    """Chooses the slots of a model: the configured ones, or fewer that fit.

    Prefix slots are given up first, then slots. Memory of a GPU is not counted.

    Args:
        manifest: the bundle's manifest.
        max_length: maximum length of a sequence, in tokens.
        max_source_length: that of an encoder-decoder's source, in vectors.
        config: the configured slots and lanes.
        weight_bytes: weights of the loaded graphs.
        available_bytes: the rest of the budget; None means no limit.

    Raises:
        BundleError: not even one slot fits.
    """
    decode = manifest.graphs.get("decode")
    in_host_memory = not config.has_separate_memory
    slot_bytes = 0 if decode is None else _slot_bytes(decode, max_length, max_source_length)
    holds_prefixes = decode is not None and can_hold_prefixes(decode.states)
    wanted = MemoryPlan(
        weight_bytes=weight_bytes if in_host_memory else 0,
        slot_bytes=slot_bytes if in_host_memory else 0,
        working_bytes=_working_bytes(manifest, max_length, config) if in_host_memory else 0,
        num_lanes=config.num_lanes_total,
        num_slots=0 if decode is None else config.num_slots,
        num_prefix_slots=config.num_prefix_slots if holds_prefixes else 0,
    )
    if available_bytes is None or wanted.num_bytes <= available_bytes:
        log.info("%s: memory: %s", manifest.label, wanted)
        return wanted
    fixed = wanted.weight_bytes + wanted.working_bytes
    per_row = wanted.num_lanes * wanted.slot_bytes
    num_rows = max(available_bytes - fixed, 0) // per_row if per_row else 0
    if num_rows < 1:
        least = fixed + per_row
        raise BundleError(
            f"{manifest.label}: needs {in_units(least)} of memory with one slot ({wanted}), but "
            f"{in_units(max(available_bytes, 0))} of --memory-budget are left"
        )
    num_slots = min(wanted.num_slots, num_rows)
    plan = MemoryPlan(
        wanted.weight_bytes,
        wanted.slot_bytes,
        wanted.working_bytes,
        wanted.num_lanes,
        num_slots,
        min(wanted.num_prefix_slots, num_rows - num_slots),
    )
    log.warning(
        "%s: memory: %s; %d slots + %d prefix slots were configured, of which more than the %s "
        "left of --memory-budget would be needed",
        *(manifest.label, plan, wanted.num_slots, wanted.num_prefix_slots),
        in_units(available_bytes),
    )
    return plan


def max_padded_tokens(manifest: Manifest, config: ServerConfig) -> int:
    """Maximum tokens of an encoder's batch, padding included. A longer text runs alone."""
    if manifest.audio is not None:  # frames of samples, whose convolutions take much memory
        return min(config.max_padded_tokens, manifest.audio.num_tokens)
    if manifest.embedding_kind != EmbeddingKind.SPARSE:
        return config.max_padded_tokens
    num_tokens = _MAX_LOGIT_BYTES // (4 * manifest.dimensions.vocabulary_size)
    return min(config.max_padded_tokens, max(num_tokens, 1))


def max_source_length(manifest: Manifest, max_length: int) -> int:
    """Maximum length of an encoder-decoder's source: for speech and images, that of each of them.

    ``max_length``: the server's upper bound on texts, in tokens.
    """
    if manifest.audio is not None:
        return manifest.audio.num_tokens
    if manifest.image_source is not None:
        return manifest.image_source.num_tokens
    dimensions = manifest.dimensions
    return min(max_length, dimensions.max_source_positions or dimensions.max_positions)


def _slot_bytes(decode: GraphSpec, max_length: int, max_source_length: int) -> int:
    """Bytes of one row of all states. A recurrent state has a second row, to restore it from."""
    total, lengths = 0, {"length": max_length, "source_length": max_source_length}
    for state in decode.states:
        sizes = (lengths[size] if isinstance(size, str) else size for size in state.shape)
        copies = 2 if state.role == StateRole.RECURRENT else 1
        total += copies * math.prod(sizes) * state.dtype.num_bytes
    return total


def _working_bytes(manifest: Manifest, max_length: int, config: ServerConfig) -> int:
    """Estimates the activations of the largest run and the logits that are kept, over all lanes."""
    dimensions = manifest.dimensions
    num_tokens, logits = max_padded_tokens(manifest, config), 0
    if manifest.embedding_kind == EmbeddingKind.SPARSE:
        num_tokens = max(num_tokens, max_length)
        logits = 2 * 4 * num_tokens * dimensions.vocabulary_size
    if "decode" in manifest.graphs:
        num_tokens = config.max_batched_tokens
        # The latest runs keep logits of 2 rows for each slot, in both copies of a graph.
        logits = 4 * 4 * config.num_slots * dimensions.vocabulary_size
    if manifest.span_tagging:  # scores of spans: by width, all together, and masked
        logits = 3 * 4 * num_tokens * manifest.span_tagging.max_width * MAX_LABELS
    activations = 4 * num_tokens * dimensions.hidden_size * _VECTORS_PER_TOKEN
    if manifest.audio is not None and manifest.audio.has_frames:
        # The first convolutions have an output for every few samples: 30 seconds took 0.96 GB with
        # 512 channels and a hidden size of 768.
        activations += 8 * manifest.audio.num_samples * dimensions.hidden_size // 3
    if manifest.image is not None and manifest.image.prompt is not None:
        # A patch's vector is about as large as the patch.
        activations += 4 * manifest.image.num_bytes * _VECTORS_PER_TOKEN
    return config.num_lanes_total * (activations + logits)
