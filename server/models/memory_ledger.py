"""Accounts for the memory budget: the models' shares, and the rest for the next model."""

import logging
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from model.bundle import BundleError
from model.bundle_files import read_manifest
from server.byte_sizes import in_units
from server.config import ServerConfig
from server.models.cache_memories import CacheMemories
from server.models.memory_budget import MemoryPlan, plan_memory, weight_file_bytes
from server.models.registry import Model
from server.runtime.contract import Backend
from server.runtime.process_memory import resident_bytes

log = logging.getLogger(__name__)


class MemoryLedger:
    """Accounts for the memory of every model until it is freed. The loading thread uses it.

    Args:
        config: the budget, and the configured slots of each model.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        # Memory outside the plans: the interpreter, libraries, tokenizers. Each load measures it
        # again, because what calls in progress hold meanwhile is counted, too.
        self._first_bytes = self._base_bytes = resident_bytes()
        # An entry disappears when the model's memory is freed.
        self._plans: weakref.WeakKeyDictionary[CacheMemories, MemoryPlan] = (
            weakref.WeakKeyDictionary()
        )
        # Caches of models that take no new calls.
        self._leaving: weakref.WeakSet[CacheMemories] = weakref.WeakSet()
        # Weight bytes of the bundles that remain to be loaded at startup.
        self._pending: Sequence[int] = ()
        if config.memory_budget is not None:
            log.info(
                "memory budget: %s, of which %s are in use before a model is loaded",
                *(in_units(config.memory_budget), in_units(self._base_bytes)),
            )

    def expect(self, weight_bytes: Sequence[int]) -> None:
        """Reserves a part of the budget for bundles that are loaded after the next one.

        ``weight_bytes``: those of each bundle, as :func:`num_weight_bytes` returns them.
        """
        self._pending = weight_bytes

    def leave(self, model: Model) -> None:
        """From now on, counts only the resident part of a replaced or unloaded model's cache."""
        self._leaving.add(model.caches)

    def check_weights(self, directory: Path, replaced: Model | None) -> None:
        """Raises ``BundleError`` if a bundle's weights do not fit. Does not read the weights."""
        self._measure_base(0)
        available, needed = self._available_bytes(replaced), num_weight_bytes(directory)
        if available is not None and needed > available:
            raise BundleError(
                f"{directory.parent.name}/{directory.name}: needs {in_units(needed)} of memory for "
                f"its weights, but {in_units(max(available, 0))} of --memory-budget are left"
            )

    def plan(self, model: Model, backends: Sequence[Backend], replaced: Model | None) -> Model:
        """Returns the loaded model with its share of the budget, which it keeps until it is freed.

        ``replaced`` is the model that stops taking calls when this one starts.

        Raises:
            BundleError: not even one slot fits.
        """
        weights = sum(_copied_bytes(model, backend, self._config) for backend in backends)
        self._measure_base(weights)
        available = self._available_bytes(replaced)
        if available is not None and self._pending:
            # Each cache gets an equal part of the budget that remains after all weights.
            rest = max(available - sum(self._pending) - weights, 0)
            available = weights + rest // (1 + len(self._pending))
        plan = plan_memory(
            model.manifest,
            model.max_length,
            model.max_source_length,
            self._config,
            weights,
            available,
        )
        self._warn_of_leaving(model, plan, available, replaced)
        self._plans[model.caches] = plan
        return replace(model, memory=plan)

    def _warn_of_leaving(
        self, model: Model, plan: MemoryPlan, available: int | None, replaced: Model | None
    ) -> None:
        """Warns if the model gets fewer slots because replaced or unloaded ones hold memory."""
        leaving = [
            caches.measure()
            for caches in list(self._plans)
            if caches in self._leaving or (replaced is not None and caches is replaced.caches)
        ]
        row_bytes = plan.num_lanes * plan.slot_bytes
        if available is None or not row_bytes or sum(leaving) < row_bytes:
            return
        if available - plan.num_bytes < row_bytes:  # no other row fits
            log.warning(
                "%s: caches that are about to be freed hold %s of --memory-budget; if that is why "
                "it has fewer slots, load it again",
                *(model.manifest.label, in_units(sum(leaving))),
            )

    def _measure_base(self, weights: int) -> None:
        """Measures the memory without caches and weights; ``weights`` are those of a new model.

        Beyond what was in use at first, this is the overhead of sessions and tokenizers.
        """
        plans = list(self._plans.items())
        planned = weights + sum(caches.measure() + plan.weight_bytes for caches, plan in plans)
        self._base_bytes = max(self._first_bytes, resident_bytes() - planned)

    def _available_bytes(self, replaced: Model | None) -> int | None:
        if self._config.memory_budget is None:
            return None
        used = self._base_bytes
        for caches, plan in list(self._plans.items()):
            used += plan.weight_bytes + plan.working_bytes
            is_leaving = caches in self._leaving or (
                replaced is not None and caches is replaced.caches
            )
            used += caches.measure() if is_leaving else plan.cache_bytes
        return self._config.memory_budget - used


def with_planned_slots(config: ServerConfig, model: Model) -> ServerConfig:
    """Returns the configuration with the planned slots of this model."""
    if model.memory is None or not model.memory.num_slots:
        return config
    return replace(
        config,
        num_slots=model.memory.num_slots,
        num_prefix_slots=model.memory.num_prefix_slots,
    )


def num_weight_bytes(directory: Path) -> int:
    """The weight bytes of a bundle, from its manifest; 0 if it is damaged."""
    try:
        return weight_file_bytes(read_manifest(directory))
    except BundleError:
        return 0  # loading refuses the bundle later


def _copied_bytes(model: Model, backend: Backend, config: ServerConfig) -> int:
    """Weight bytes on one device. Weights that its two sessions cannot share count twice."""
    total = weight_file_bytes(model.manifest)
    if config.num_lanes > 1:
        for name, graph in model.manifest.graphs.items():
            unshared = backend.unshared_bytes(
                model.directory / graph.file,
                takes_candidates=name == "decode" and model.manifest.shortlist is not None,
            )
            total += unshared if unshared <= config.max_duplicated_bytes else 0
    return total
