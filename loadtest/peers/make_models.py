"""Builds models for the peers: ``python -m loadtest.peers.make_models KIND SOURCE OUT``.

It runs in a peer's environment; each function imports only what it needs. ``OUT`` is created
atomically.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from loadtest.peers import make_openvino

VOCABULARY = 32_000


def hugging_face_from_gguf(source: Path, out: Path) -> None:
    """Dequantises weights to fp32; copies the tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    folder = str(source.parent)
    read = AutoModelForCausalLM.from_pretrained(folder, gguf_file=source.name, dtype="float32")
    # A model loaded from GGUF is marked as quantised, which cannot be saved.
    if hasattr(read.config, "quantization_config"):
        del read.config.quantization_config
    make: Any = AutoModelForCausalLM.from_config
    model = make(read.config)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(folder, gguf_file=source.name).save_pretrained(out)


def ctranslate2(source: Path, out: Path) -> None:
    """Converts a Hugging Face folder in fp32; CTranslate2 quantises when loading."""
    from ctranslate2.converters import TransformersConverter  # noqa: PLC0415

    TransformersConverter(str(source)).convert(str(out))


def marian_transformer_base(source: Path, out: Path) -> None:
    """A random Transformer-base (Vaswani et al. 2017) like OPUS-MT's; ``source`` is unused."""
    del source
    _marian_transformer_base().save_pretrained(out)


def _marian_transformer_base() -> Any:
    from transformers import MarianConfig, MarianMTModel  # noqa: PLC0415

    sides: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        sides |= {f"{side}_layers": 6, f"{side}_attention_heads": 8, f"{side}_ffn_dim": 2048}
    config = MarianConfig(
        vocab_size=VOCABULARY,
        d_model=512,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=VOCABULARY - 1,
        decoder_start_token_id=VOCABULARY - 1,
        eos_token_id=0,
        **sides,
    )
    model: Any = MarianMTModel(config)
    return model.eval()


def ctranslate2_transformer_base(source: Path, out: Path) -> None:
    """The same for CTranslate2; ``source`` is unused."""
    del source
    from ctranslate2.converters import transformers as loaders  # noqa: PLC0415

    words = ["</s>", "<unk>", *(f"w{index}" for index in range(2, VOCABULARY - 1)), "<pad>"]
    tokenizer = SimpleNamespace(
        bos_token="</s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        get_vocab=lambda: {word: index for index, word in enumerate(words)},
    )

    class Converter(loaders.TransformersConverter):  # type: ignore[misc]
        def _load(self) -> object:
            return loaders.MarianMTLoader()(_marian_transformer_base(), tokenizer)

    Converter("").convert(str(out))


def gguf(ftype: str) -> Callable[[Path, Path], None]:
    """Requantises a GGUF file."""

    def make(source: Path, out: Path) -> None:
        import llama_cpp  # noqa: PLC0415

        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = getattr(llama_cpp, ftype)
        params.allow_requantize = True
        status = llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), params)
        if status:
            raise RuntimeError(f"llama_model_quantize returned {status}")

    return make


def onnx_encoder(source: Path, out: Path) -> None:
    """Exports an encoder to ``model.onnx`` in optimum's folder layout."""
    import torch  # noqa: PLC0415
    from transformers import AutoModel  # noqa: PLC0415

    shutil.copytree(source, out)
    model: Any = AutoModel.from_pretrained(str(source), attn_implementation="eager")
    ids = torch.ones((2, 8), dtype=torch.long)
    dynamic = {0: "batch_size", 1: "sequence_length"}
    names = ["input_ids", "attention_mask", "token_type_ids"]
    torch.onnx.export(
        model.eval(),
        (ids, ids, torch.zeros_like(ids)),
        str(out / "model.onnx"),
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_axes=dict.fromkeys([*names, "last_hidden_state"], dynamic),
        opset_version=17,
        dynamo=False,
    )


def genai(precision: str) -> Callable[[Path, Path], None]:
    """Runs the model builder of onnxruntime-genai on a Hugging Face folder."""

    def make(source: Path, out: Path) -> None:
        builder = (sys.executable, "-m", "onnxruntime_genai.models.builder")
        cache = out.with_name(f"{out.name}.cache")
        arguments = ("-i", str(source), "-o", str(out), "-c", str(cache))
        subprocess.run([*builder, *arguments, "-p", precision, "-e", "cpu"], check=True)

    return make


def copy(source: Path, out: Path) -> None:
    """Copies a model that a peer loads unchanged."""
    if source.is_dir():
        shutil.copytree(source, out)
    else:
        shutil.copyfile(source, out)


MAKERS: dict[str, Callable[[Path, Path], None]] = {
    **make_openvino.MAKERS,
    "hugging-face-from-gguf": hugging_face_from_gguf,
    "copy": copy,
    "onnx-encoder": onnx_encoder,
    "genai-fp32": genai("fp32"),
    "genai-int8": genai("int8"),
    "genai-int4": genai("int4"),
    "ctranslate2": ctranslate2,
    "marian-transformer-base": marian_transformer_base,
    "ctranslate2-transformer-base": ctranslate2_transformer_base,
    "gguf-f32": gguf("LLAMA_FTYPE_ALL_F32"),
    **{
        f"gguf-{kind}": gguf(f"LLAMA_FTYPE_MOSTLY_{kind}")
        for kind in ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_1", "Q4_0")
    },
}


def main(kind: str, source: Path, out: Path) -> None:
    """Builds a model beside ``out``, then renames it."""
    partial = out.with_name(f"{out.name}.partial")
    if partial.is_dir():
        shutil.rmtree(partial)
    out.parent.mkdir(parents=True, exist_ok=True)
    MAKERS[kind](source, partial)
    partial.rename(out)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
