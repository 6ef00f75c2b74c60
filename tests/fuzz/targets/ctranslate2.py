"""CTranslate2's model files: settings, shapes and all weights."""

from collections.abc import Iterator

import torch

from export.errors import ExportError
from export.readers.ctranslate2 import is_ctranslate2, read_ctranslate2
from tests.export.importers.ctranslate2_files import SETTINGS, quantized, write_model
from tests.fuzz.files import content_of, rewrite, scratch

SIZE = 1024


def run(data: bytes) -> None:
    path = rewrite(scratch("ctranslate2") / "model.bin", data)
    is_ctranslate2(path)
    try:
        model = read_ctranslate2(path)
        num_values = 0
        for name, weight in model.weights.items():
            assert tuple(weight.shape) == model.weights.shape(name)
            num_values += weight.numel()
        # An int8 is the smallest type; aliases repeat each byte at most once on average.
        assert num_values <= 2 * len(data), "weights are no larger than the file allows"
    except ExportError as error:
        str(error).encode()
        return
    for name in model.settings:
        for read in (model.settings.integer, model.settings.number, model.settings.text):
            try:
                read(name)
            except ExportError as error:
                str(error).encode()


def seeds() -> Iterator[bytes]:
    matrix = torch.arange(12.0).reshape(4, 3) + 1
    weights = {"decoder/embeddings/weight": matrix, "encoder/conv1/weight": matrix[..., None]}
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int32):
        converted = {name: x.to(dtype) for name, x in weights.items()}
        yield content_of("model.bin", lambda path, x=converted: write_model(path, x))
    integers = {**SETTINGS, **quantized(weights)}
    yield content_of("model.bin", lambda path: write_model(path, integers))
    short = {"decoder/embeddings/weight": matrix.to(torch.int16)}
    short["decoder/embeddings/weight_scale"] = torch.tensor(2.0)
    yield content_of("model.bin", lambda path: write_model(path, short))
