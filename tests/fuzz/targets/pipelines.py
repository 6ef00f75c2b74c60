"""Bodies of Hugging Face's inference API: JSON with the fields of all pipelines, and files."""

import json
from collections.abc import Iterator
from typing import Any

from tests.fuzz.draw import Draw
from tests.fuzz.service import service

SIZE = 256
PATH = "/{model}"
MODELS = (
    *("tiny-decoder", "dates", "embedder", "splade", "sorter", "entailer", "tagger", "filler"),
    *("answerer", "corrector", "vit", "speech", "nothing"),
)
INPUTS: tuple[Any, ...] = (
    *("1,", "", "a [MASK] cat", "[MASK][MASK]", "iVBORw0KGgo="),
    *(["a", "b"], [], ["a [MASK]"], 3, None),
    *({"question": "a", "context": "b"}, {"question": "a"}, {"sentences": ["a"]}),
    {"source_sentence": "a", "sentences": ["b", ""]},
)
GENERATION: dict[str, tuple[Any, ...]] = {
    "do_sample": (True, False),
    "temperature": (0, 2, -1, 1e308),
    "top_k": (0, 2, -1, 2**40),
    "top_p": (0.5, 0, 2),
    "seed": (1, -1, 2**70),
    "max_new_tokens": (1, 3, 0, 2**40),
    "num_beams": (2, 0, 99),
    "length_penalty": (1, 1e9),
    "repetition_penalty": (1.2, 0),
    "language": ("en", "xx"),
    "task": ("translate", "x"),
}
FIELDS: dict[str, tuple[Any, ...]] = {
    **GENERATION,
    "function_to_apply": ("softmax", "none", "x"),
    "candidate_labels": (["a", "b"], [], [""]),
    "hypothesis_template": ("It is {}.", "{}{}", ""),
    "multi_label": (True,),
    "aggregation_strategy": ("none", "max", "x"),
    "ignore_labels": (["O"], []),
    "stride": (1, -1, 10**6),
    "targets": (["cat"], [""]),
    "doc_stride": (1, -1),
    "handle_impossible_answer": (True,),
    "max_answer_len": (1, 0, 10**6),
    "max_seq_len": (8, 0),
    "return_timestamps": (True, "word", "x"),
    "src_lang": ("en", "xx"),
    "tgt_lang": ("en", "xx"),
    "stop": (["1"], [""], ["1"] * 20),
    "return_full_text": (True,),
    "details": (True,),
    "decoder_input_details": (True,),
    "top_n_tokens": (2, 0, -1, 10**6),
    "grammar": ({"type": "regex", "value": "[0-9]"}, {"type": "json", "value": {}}, {}),
    "best_of": (1, 2),
    "truncate": (3,),
}
GROUPS = ("generate_parameters", "generate_kwargs", "generation_parameters")
ROOT: dict[str, tuple[Any, ...]] = {
    "stream": (True, False),
    "normalize": (True, False),
    "prompt_name": ("query",),
    "truncate": (True,),
    "truncation_direction": ("left", "x"),
    "dimensions": (8, 0),
    "options": ({"wait_for_model": True},),
}


def run(data: bytes) -> None:
    """Bytes that choose the model and the fields; or the rest is the body, such as a file."""
    draw = Draw(data)
    running = service()
    route = next(route for route in running.routes if route.path == PATH)
    model, content_type = draw.choice(MODELS), ""
    if draw.below(4) == 0:
        body = draw.rest()
    else:
        content_type = "application/json"
        fields: dict[str, Any] = {"inputs": draw.choice(INPUTS)}
        fields |= _some(draw, ROOT, 2)
        parameters = _some(draw, FIELDS, 4)
        if draw.flag():
            parameters[draw.choice(GROUPS)] = _some(draw, GENERATION, 3)
        body = json.dumps({**fields, "parameters": parameters}).encode()
    status, answer = running.post(route, body, model, content_type)
    assert status < 500, (model, body, answer)
    assert status == 200 or json.loads(answer)["error"]


def _some(draw: Draw, fields: dict[str, tuple[Any, ...]], most: int) -> dict[str, Any]:
    """Up to ``most`` fields with one of their values."""
    names = tuple(fields)
    chosen = [draw.choice(names) for _ in range(draw.below(most + 1))]
    return {name: draw.choice(fields[name]) for name in chosen}


def _numbers(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(2, "little") for number in numbers)


def seeds() -> Iterator[bytes]:
    """Each model with a body of its own, a file, and drawn fields."""
    for model in range(len(MODELS)):
        yield _numbers(model, 0) + b'{"inputs": "1,"}'
        yield _numbers(model, 0) + b"RIFF"
        for index in range(len(INPUTS)):
            yield _numbers(model, 1, index, 0, model % 5) + _numbers(*range(index, index + 12))
