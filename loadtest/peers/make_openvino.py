"""Builds models for OpenVINO. Each function imports only what it needs."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.peers.openvino_properties import GROUP

_DATA = Path(__file__).resolve().parents[1] / "data"


def encoder(precision: str) -> Callable[[Path, Path], None]:
    """A BERT with mean pooling and normalization. int8: static, calibrated on our texts."""

    def make(source: Path, out: Path) -> None:
        import openvino as ov  # noqa: PLC0415
        from optimum.intel import OVModelForFeatureExtraction  # noqa: PLC0415

        exported: Any = OVModelForFeatureExtraction.from_pretrained(
            str(source), export=True, compile=False, load_in_8bit=False
        )
        model = _with_mean_pooling(exported.model)
        if precision == "int8":
            model = _quantized(model, source)
        out.mkdir()
        ov.save_model(model, str(out / "model.xml"), compress_to_fp16=False)

    return make


def _with_mean_pooling(model: Any) -> Any:
    """Replaces ``[N, T, H]`` states by normalized means over the tokens of each text."""
    import numpy as np  # noqa: PLC0415
    import openvino as ov  # noqa: PLC0415
    from openvino import opset13 as ops  # noqa: PLC0415

    states = model.output(0).get_node().input_value(0)
    mask: Any = next(
        node for node in model.get_parameters() if node.output(0).get_any_name() == "attention_mask"
    )
    weights = ops.unsqueeze(ops.convert(mask, "f32"), np.array([2]))
    total = ops.reduce_sum(ops.multiply(states, weights), np.array([1]))
    mean = ops.divide(total, ops.reduce_sum(weights, np.array([1])))
    vectors = ops.normalize_l2(mean, np.array([1]), 1e-12, "max")
    return ov.Model([vectors], model.get_parameters(), "encoder")


def _quantized(model: Any, source: Path) -> Any:
    import nncf  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415
    from tokenizers import Tokenizer  # noqa: PLC0415

    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.no_padding()
    files = ("prompts.txt", "questions.txt", "sentences.txt")
    texts = [line for name in files for line in (_DATA / name).read_text("utf-8").splitlines()]
    names = {node.output(0).get_any_name() for node in model.get_parameters()}

    def feeds(text: str) -> dict[str, Any]:
        ids = np.array([tokenizer.encode(text).ids])
        every = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        }
        return {name: value for name, value in every.items() if name in names}

    return nncf.quantize(
        model,
        nncf.Dataset(texts, feeds),
        subset_size=len(texts),
        model_type=nncf.ModelType.TRANSFORMER,
    )


def decoder(precision: str) -> Callable[[Path, Path], None]:
    """A decoder with its tokenizer. int8: a scale per channel; int4: one per group."""

    def make(source: Path, out: Path) -> None:
        from optimum.exporters.openvino import main_export  # noqa: PLC0415

        main_export(
            str(source),
            str(out),
            task="text-generation-with-past",
            ov_config=_ov_config(precision),
            convert_tokenizer=True,
        )

    return make


def translator(precision: str) -> Callable[[Path, Path], None]:
    """An encoder-decoder as one graph for the encoder and one for the decoder with its cache."""

    def make(source: Path, out: Path) -> None:
        from optimum.exporters.openvino import main_export  # noqa: PLC0415

        main_export(
            str(source),
            str(out),
            task="text2text-generation-with-past",
            ov_config=_ov_config(precision),
            convert_tokenizer=False,
        )
        shutil.copyfile(source / "generation_config.json", out / "generation_config.json")

    return make


def _ov_config(precision: str) -> Any:
    from optimum.intel import OVConfig, OVWeightQuantizationConfig  # noqa: PLC0415

    quantizations: dict[str, Any] = {
        "fp32": lambda: None,
        "int8": lambda: OVWeightQuantizationConfig(bits=8, sym=True),
        "int4": lambda: OVWeightQuantizationConfig(bits=4, sym=False, group_size=GROUP),
    }
    quantization = quantizations[precision]()
    if quantization is None:
        return OVConfig(dtype="fp32")
    return OVConfig(quantization_config=quantization)


MAKERS: dict[str, Callable[[Path, Path], None]] = {
    f"openvino-{name}-{precision}": maker(precision)
    for name, maker in (("encoder", encoder), ("decoder", decoder), ("translator", translator))
    for precision in ("fp32", "int8", "int4")
}
