"""Checks each kernel path, run by the server's engine, against fp32 PyTorch."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.compare.errors import WorkerError
from loadtest.compare.worker import Worker
from loadtest.gpu.deadline import Deadline
from loadtest.gpu.model_builder import ModelBuilder, worker
from loadtest.gpu.model_sizes import Family, ModelSize
from loadtest.gpu.parity import compare_logprobs, compare_vectors
from loadtest.gpu.plan import Check
from loadtest.gpu.report import Report

# Of prompts: ragged, some longer than a prefill chunk.
LENGTHS = (5, 37, 1, 64, 18, 50, 2, 33)
NUM_NEW_TOKENS = 12
MANIFEST_FILE = "bundle.json"
FIRST_ID = 5  # lower ids are special


class ParityChecker:
    """Compares the engine with the reference, which is one process for all checks.

    Args:
        root: folder of models, bundles and logs.
        device: of the engine and of the reference.
    """

    def __init__(self, builder: ModelBuilder, root: Path, device: str, deadline: Deadline) -> None:
        self._builder, self._root = builder, root
        self._device, self._deadline = device, deadline
        self._reference: Worker | None = None
        self._model: Path | None = None

    def run(self, checks: Sequence[Check], report: Report) -> None:
        """Runs the checks that the report lacks."""
        for check in checks:
            if report.check(check.name) is None:
                try:
                    found = self._run(check)
                except WorkerError as error:
                    self._deadline.remaining_seconds()  # raises if the deadline caused the error
                    found = {"passed": None, "reason": str(error)}
                report.add_check(check.name, found)

    def close(self) -> None:
        """Ends the reference's process."""
        if self._reference is not None:
            self._reference.close()
        self._reference = None

    def _run(self, check: Check) -> dict[str, Any]:
        bundle = self._builder.bundle(check.size, check.precision, check.kv_cache)
        is_encoder = check.size.family == Family.ENCODER
        message = {
            "op": "vectors" if is_encoder else "tokens",
            "with_logprobs": check.with_logprobs,
            "inputs": _inputs(check.size),
            "max_new_tokens": 0 if is_encoder else NUM_NEW_TOKENS,
        }
        ours = self._call_engine(bundle, check, message)
        manifest = json.loads((bundle / MANIFEST_FILE).read_text(encoding="utf-8"))
        theirs_message = {
            **message,
            "op": "vectors" if is_encoder else "logprobs",
            "start": check.size.config.get("decoder_start_token_id"),
            "suppressed": manifest["special_tokens"].get("suppressed", []),
            "tokens": ours.get("tokens"),
        }
        theirs = self._call_reference(self._builder.model(check.size), theirs_message)
        if is_encoder:
            return compare_vectors(ours["vectors"], theirs["vectors"], check.tolerance)
        return compare_logprobs(ours, theirs, check.tolerance)

    def _call_engine(
        self, bundle: Path, check: Check, message: Mapping[str, Any]
    ) -> dict[str, Any]:
        load = {
            "op": "load",
            "model": str(bundle),
            "device": self._device,
            "threads": 1,
            "lanes": 1,
            "slots": len(LENGTHS),
            "max_length": 128,
            "config": dict(check.config),
        }
        engine = worker("server.bench", self._root)
        try:
            engine.call(load, self._deadline.remaining_seconds())
            return engine.call(message, self._deadline.remaining_seconds())
        finally:
            engine.close()

    def _call_reference(self, model: Path, message: Mapping[str, Any]) -> dict[str, Any]:
        if self._reference is None or not self._reference.is_alive:
            module = "loadtest.peers.transformers_reference"
            self._reference, self._model = worker(module, self._root), None
        if self._model != model:
            load = {"op": "load", "model": str(model), "device": self._device}
            self._reference.call(load, self._deadline.remaining_seconds())
            self._model = model
        return self._reference.call(message, self._deadline.remaining_seconds())


def _inputs(size: ModelSize) -> list[list[int]]:
    random = np.random.default_rng(0)
    high = size.config["vocab_size"]
    return [random.integers(FIRST_ID, high, length).tolist() for length in LENGTHS]
