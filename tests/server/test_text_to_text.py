"""Encoder-decoders from transformers: languages, forced tokens, Generate and Translate."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, processors
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MBartConfig,
    MBartForConditionalGeneration,
)

from client.errors import TriuneError
from client.sync import Client
from export.bundle_writer import write_bundle
from export.sources import load_checkpoint
from tests.export.importers.support import WORDS, edit_json, randomise, save
from tests.families.test_bart import SMALL
from tests.serving import server_process

LANGUAGES = {"en_XX": len(WORDS), "pt_BR": len(WORDS) + 1, "fr_XX": len(WORDS) + 2}
CONFIG = SMALL | {
    "vocab_size": len(WORDS) + len(LANGUAGES),
    "encoder_layers": 1,
    "decoder_layers": 1,
}
EOS = 3
TEXT = "w7 w9 w11 w13"
NUM_TOKENS = 12


def add_special_tokens(folder: Path, *prefix: str, added: tuple[str, ...] = ()) -> None:
    """Makes the tokenizer in ``folder`` add ``prefix`` before a text and [SEP] after it."""
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.add_special_tokens([*added])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*prefix, "$A", "[SEP]"],
        special_tokens=[(t, tokenizer.token_to_id(t)) for t in (*prefix, "[SEP]")],
    )
    tokenizer.save(path)


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    own: dict[str, Any] = {"eos_token_id": EOS, "decoder_start_token_id": EOS}
    return {
        "many": randomise(MBartForConditionalGeneration(MBartConfig(**CONFIG | own))),
        "summary": randomise(BartForConditionalGeneration(BartConfig(**CONFIG | own)), seed=1),
    }


@pytest.fixture(scope="module")
def client(models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    root = tmp_path_factory.mktemp("text-to-text")
    for name, model in models.items():
        save(model, root / name)
        if name == "many":
            add_special_tokens(root / name, "en_XX", added=tuple(LANGUAGES))
        else:
            add_special_tokens(root / name)
            edit_json(root / name / "generation_config.json", forced_bos_token_id=0)
        write_bundle(load_checkpoint(str(root / name)), root / "bundles", name=name)
    with server_process(root / "bundles") as server, Client(server.target) as client:
        yield client


def reference_ids(model: Any, source: list[int], *first: int) -> tuple[int, ...]:
    """Greedy output of transformers after the start token and the forced ``first`` tokens."""
    ids = [EOS, *first]
    while len(ids) < NUM_TOKENS + 1 + len(first):
        with torch.no_grad():
            logits = model(torch.tensor([source]), decoder_input_ids=torch.tensor([ids])).logits
        logits[..., SMALL["pad_token_id"]] = -torch.inf
        ids.append(int(logits[0, -1].argmax()))
        if ids[-1] == EOS:
            break
    return tuple(ids[1 + len(first) :])


def source(language: str | None) -> list[int]:
    ids = [WORDS.index(word) for word in TEXT.split()]
    return [*([] if language is None else [LANGUAGES[language]]), *ids, EOS]


@pytest.mark.parametrize("target", ["pt_BR", "fr_XX"])
@pytest.mark.parametrize("own", ["", "fr_XX"])
def test_translates_between_languages(
    client: Client, models: dict[str, Any], own: str, target: str
) -> None:
    result = client.translate(
        "many",
        TEXT,
        source_language=own,
        target_language=target,
        max_new_tokens=NUM_TOKENS,
        token_ids=True,
    )
    expected_ids = reference_ids(models["many"], source(own or "en_XX"), LANGUAGES[target])
    assert result.outputs[0].token_ids == expected_ids


@pytest.mark.parametrize(
    ("languages", "field"),
    [
        ({}, "target_language"),
        ({"target_language": "xx_XX"}, "target_language"),
        ({"target_language": "pt_BR", "source_language": "xx_XX"}, "source_language"),
    ],
)
def test_rejects_unknown_languages(client: Client, languages: dict[str, str], field: str) -> None:
    with pytest.raises(TriuneError, match="en_XX, pt_BR, fr_XX") as error:
        client.translate("many", TEXT, **languages)  # type: ignore[arg-type]
    assert field in str(error.value)


def test_model_metadata_lists_languages(client: Client) -> None:
    assert client.get_model("many").languages == tuple(LANGUAGES)
    assert client.get_model("summary").languages == ()


def test_generate_accepts_encoder_decoders(client: Client, models: dict[str, Any]) -> None:
    expected_ids = reference_ids(models["summary"], source(None), 0)
    options: Any = {"max_new_tokens": NUM_TOKENS, "token_ids": True}
    assert client.generate("summary", TEXT, **options).outputs[0].token_ids == expected_ids
    by_ids = client.generate("summary", token_inputs=[source(None)], **options)
    assert by_ids.outputs[0].token_ids == expected_ids
    chunks = list(client.generate_stream("summary", TEXT, **options))
    assert tuple(id_ for chunk in chunks for id_ in chunk.token_ids) == expected_ids


@pytest.mark.parametrize("length", [1, 3, 5, 11])
def test_accepts_prefixes_of_any_length(
    client: Client, models: dict[str, Any], length: int
) -> None:
    """Includes prefixes longer than the source, which need several prefill runs."""
    words = [f"w{30 - index}" for index in range(length)]
    ids = [WORDS.index(word) for word in words]
    expected_ids = reference_ids(models["summary"], source(None), 0, *ids)
    output = client.generate(
        "summary",
        TEXT,
        target_prefix=" ".join(words),
        max_new_tokens=NUM_TOKENS,
        token_ids=True,
    ).outputs[0]
    assert output.token_ids[-len(expected_ids) :] == expected_ids


def test_generate_and_translate_reject_each_others_models(client: Client) -> None:
    with pytest.raises(TriuneError, match="Generate"):
        client.translate("summary", TEXT)
    with pytest.raises(TriuneError, match="Translate"):
        client.generate("many", TEXT)
