"""Builds models for OpenVINO. Each function imports only what it needs."""

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
    """A decoder with its tokenizer."""
    return _exporter("text-generation-with-past", precision, convert_tokenizer=True)


def translator(precision: str) -> Callable[[Path, Path], None]:
    """An encoder-decoder: a graph for the encoder and one for the decoder with its cache."""
    return _exporter("text2text-generation-with-past", precision, convert_tokenizer=False)


def _exporter(
    task: str, precision: str, *, convert_tokenizer: bool
) -> Callable[[Path, Path], None]:
    def make(source: Path, out: Path) -> None:
        import openvino as ov  # noqa: PLC0415
        from optimum.exporters.openvino import main_export  # noqa: PLC0415
        from optimum.intel import OVConfig  # noqa: PLC0415

        main_export(
            str(source),
            str(out),
            task=task,
            ov_config=OVConfig(dtype="fp32"),
            convert_tokenizer=convert_tokenizer,
        )
        for path in out.glob("openvino_*model.xml") if precision != "fp32" else ():
            small = path.with_stem(f"{path.stem}_small")
            ov.save_model(_compressed(ov.Core().read_model(path), precision), str(small))
            for suffix in (".xml", ".bin"):
                small.with_suffix(suffix).rename(path.with_suffix(suffix))

    return make


def _compressed(model: Any, precision: str) -> Any:
    """int8: a scale per output channel; int4: one per group."""
    import nncf  # noqa: PLC0415

    if precision == "int8":
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
    mode = nncf.CompressWeightsMode.INT4_ASYM
    return nncf.compress_weights(model, mode=mode, group_size=GROUP, ratio=1.0)


MAKERS: dict[str, Callable[[Path, Path], None]] = {
    f"openvino-{name}-{precision}": maker(precision)
    for name, maker in (("encoder", encoder), ("decoder", decoder), ("translator", translator))
    for precision in ("fp32", "int8", "int4")
}
