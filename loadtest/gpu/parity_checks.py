"""Checks each kernel path, run by the server's engine, against fp32 PyTorch."""

import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.compare.errors import WorkerError
from loadtest.compare.worker import Worker
from loadtest.gpu.deadline import Deadline
from loadtest.gpu.model_builder import ModelBuilder, worker
from loadtest.gpu.model_sizes import Family
from loadtest.gpu.parity import compare_logprobs, compare_totals, compare_vectors, dense
from loadtest.gpu.plan import Check
from loadtest.gpu.report import Report

# Lengths of prompts, which repeat: ragged, some beyond a prefill chunk, neighbours that share a
# run with little padding.
LENGTHS = (5, 36, 37, 1, 64, 63, 18, 2)
NUM_NEW_TOKENS = 12
MANIFEST_FILE = "bundle.json"
FIRST_ID = 5  # lower ids are special


# Engines at the same time: starting one takes far longer than its check.
_MAX_ENGINES = 6


class ParityChecker:
    """Compares the engine with the reference, which is one process for all checks.

    Several checks run at the same time, each with an engine of its own.

    Args:
        root: folder of models, bundles and logs.
        device: of the engine.
        reference_device: of the reference, if it is another one.
    """

    def __init__(
        self,
        builder: ModelBuilder,
        root: Path,
        device: str,
        deadline: Deadline,
        reference_device: str = "",
    ) -> None:
        self._builder, self._root = builder, root
        self._device, self._deadline = device, deadline
        self._reference_device = reference_device or device
        self._reference: Worker | None = None
        self._model: Path | None = None
        self._lock = threading.Lock()  # of the reference

    def run(self, checks: Sequence[Check], report: Report) -> None:
        """Runs the checks that the report lacks. Results are written in the order of checks."""
        wanted = [check for check in checks if report.check(check.name) is None]
        reasons = dict(self._build(wanted))
        self._builder.close()
        num_engines = min(_MAX_ENGINES, max(1, len(os.sched_getaffinity(0)) // 2))
        with ThreadPoolExecutor(num_engines) as pool:
            futures = {
                check.name: pool.submit(self._result, check)
                for check in wanted
                if check.name not in reasons
            }
            try:
                for check in wanted:
                    future = futures.get(check.name)
                    reason = {"passed": None, "reason": reasons.get(check.name)}
                    report.add_check(check.name, future.result() if future else reason)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _build(self, checks: Iterable[Check]) -> Iterable[tuple[str, str]]:
        """Builds bundles and models. Yields the names of checks that lack them, and reasons."""
        for check in checks:
            try:
                self._builder.bundle(check.size, check.precision, check.kv_cache)
                self._builder.model(check.size)
            except WorkerError as error:
                self._deadline.remaining_seconds()  # raises if the deadline caused the error
                yield check.name, str(error)

    def _result(self, check: Check) -> dict[str, Any]:
        try:
            return self.check(check)
        except (WorkerError, ValueError, LookupError) as error:  # also of a wrong reply
            self._deadline.remaining_seconds()  # raises if the deadline caused the error
            return {"passed": None, "reason": str(error)}

    def close(self) -> None:
        """Ends the reference's process."""
        if self._reference is not None:
            self._reference.close()
        self._reference = None

    def check(self, check: Check) -> dict[str, Any]:
        """Runs a check. The result has ``passed``.

        Raises:
            WorkerError: a process failed.
            ValueError, LookupError: a reply is wrong.
        """
        bundle = self._builder.bundle(check.size, check.precision, check.kv_cache)
        is_encoder = check.size.family == Family.ENCODER
        message = {
            "op": "vectors" if is_encoder else "tokens",
            "with_logprobs": check.with_logprobs and check.beams == 1,
            "inputs": _inputs(check),
            "max_new_tokens": 0 if is_encoder else NUM_NEW_TOKENS,
            "beams": check.beams,
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
        if check.beams > 1:
            return compare_totals(theirs["logprobs"], theirs["beam_logprobs"], check.tolerance)
        if is_encoder:
            vectors = ours["vectors"]
            if ours["indices"]:
                vectors = dense(vectors, ours["indices"], check.size.config["vocab_size"])
            return compare_vectors(vectors, theirs["vectors"], check.tolerance)
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
            "slots": check.num_rows * check.beams,
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
        with self._lock:
            return self._call_loaded(model, message)

    def _call_loaded(self, model: Path, message: Mapping[str, Any]) -> dict[str, Any]:
        if self._reference is None or not self._reference.is_alive:
            module = "loadtest.peers.transformers_reference"
            self._reference, self._model = worker(module, self._root), None
        if self._model != model:
            load = {"op": "load", "model": str(model), "device": self._reference_device}
            self._reference.call(load, self._deadline.remaining_seconds())
            self._model = model
        return self._reference.call(message, self._deadline.remaining_seconds())


def _inputs(check: Check) -> list[list[int]]:
    random = np.random.default_rng(0)
    high = check.size.config["vocab_size"]
    lengths = [LENGTHS[row % len(LENGTHS)] for row in range(check.num_rows)]
    return [random.integers(FIRST_ID, high, length).tolist() for length in lengths]
