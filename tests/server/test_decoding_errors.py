"""Errors for invalid decoding options name the protobuf field."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import grpc
import pytest

from client.errors import TriuneError
from client.sync import Client
from client.types import (
    AttentionKind,
    AttentionOptions,
    Choices,
    Lark,
    Regex,
    TranslationOptions,
)
from server.errors import InvalidArgumentError
from server.service.caller import Caller
from server.service.generation_request import GenerateRequest, Message
from server.service.service import Service
from tests.pictures import picture
from tests.server.clients import connected
from tests.server.in_process_service import service_context

DECODER, DATES = "tiny-decoder", "dates"
DATE = "3 March 2021"


@pytest.fixture(scope="module")
def client(tiny_bundles: Path) -> Iterator[Client]:
    with connected(tiny_bundles, "--threads", "1", "--slots", "8") as client:
        yield client


def invalid_field(call: Callable[..., object], *arguments: object, **options: object) -> str:
    """Expects INVALID_ARGUMENT; returns the one field that it names."""
    with pytest.raises(TriuneError) as caught:
        call(*arguments, **options)
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
    (violation,) = caught.value.violations
    return violation.field


@pytest.mark.parametrize(
    ("model", "options", "field"),
    [
        (DATES, AttentionOptions(layers=(0, 99)), "response.attention.layers[1]"),
        (DATES, AttentionOptions(heads=(-1,)), "response.attention.heads[0]"),
        (DECODER, AttentionOptions(kind=AttentionKind.CROSS), "response.attention.kind"),
        (DECODER, AttentionOptions(alignments=True), "response.attention.alignments"),
    ],
)
def test_errors_name_invalid_attention_options(
    client: Client, model: str, options: AttentionOptions, field: str
) -> None:
    call = client.translate if model == DATES else client.generate
    assert invalid_field(call, model, "7", attention=options) == field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"beam_size": 0}, "decoding.beam_size"),
        ({"beam_size": 9}, "decoding.beam_size"),
        ({"beam_size": 65}, "decoding.beam_size"),
        ({"beam_size": 2, "temperature": 1.0}, "decoding.beam_size"),
        ({"beam_size": 2, "alternatives": True}, "decoding.alternatives"),
        ({"beam_size": 2, "num_hypotheses": 3}, "decoding.num_hypotheses"),
        ({"num_hypotheses": 2}, "decoding.num_hypotheses"),
        ({"num_hypotheses": 9, "temperature": 1.0}, "decoding.num_hypotheses"),
        ({"length_penalty": float("nan")}, "decoding.length_penalty"),
        ({"no_repeat_ngram_size": -1}, "decoding.no_repeat_ngram_size"),
        ({"encoder_no_repeat_ngram_size": 129}, "decoding.encoder_no_repeat_ngram_size"),
        ({"target_prefix": ["a", "b", "c"]}, "decoding.target_prefix"),
        ({"bad_words": [" "]}, "decoding.bad_words[0]"),
        ({"min_p": 1.5}, "sampling.min_p"),
        ({"typical_p": 0.0}, "sampling.typical_p"),
        ({"repetition_penalty": 0.0}, "sampling.repetition_penalty"),
        ({"presence_penalty": 3.0}, "sampling.presence_penalty"),
        ({"frequency_penalty": float("inf")}, "sampling.frequency_penalty"),
        ({"logit_bias": {10**6: 1.0}}, "sampling.logit_bias"),
        ({"logit_bias": {1: 101.0}}, "sampling.logit_bias[1]"),
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "stopping.min_new_tokens"),
        ({"stop_token_ids": [-1]}, "stopping.stop_token_ids"),
        ({"top_logprobs": 101, "logprobs": True}, "response.top_logprobs"),
        ({"top_logprobs": 1}, "response.top_logprobs"),
        ({"top_logprobs": 1, "logprobs": True, "beam_size": 2}, "response.top_logprobs"),
        ({"priority": 101}, "priority"),
        ({"grammar": Choices(())}, "decoding.grammar.choices"),
        ({"grammar": Choices(("a", ""))}, "decoding.grammar.choices"),
        ({"grammar": Lark("start: a"), "ignore_eos": True}, "stopping.ignore_eos"),
        ({"grammar": Lark("x" * 70_000)}, "decoding.grammar.lark"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else value,
)
def test_errors_name_the_invalid_option(
    client: Client, options: dict[str, object], field: str
) -> None:
    for call, text in ((client.generate, (DECODER, "7,")), (client.translate, (DATES, DATE))):
        assert invalid_field(call, *text, **options) == field


def test_score_errors_name_the_invalid_field(client: Client) -> None:
    for model, pair, field in (
        (DECODER, ("7,", ""), "inputs[0].target"),
        (DATES, ("", "2021"), "inputs[0].context"),
        ("tiny-classifier", ("a", "b"), "model"),
    ):
        assert invalid_field(client.score, model, [pair]) == field


def test_translate_has_no_echo_option(client: Client) -> None:
    assert invalid_field(client.translate, DATES, DATE, echo=True) == "response.echo"


def test_the_error_of_a_long_target_prefix_names_its_index(client: Client) -> None:
    long = "2" * 200
    for prefixes, index in ((("2", long), 1), ((long, "2"), 0), ((long,), 0)):
        field = invalid_field(client.translate, DATES, [DATE, DATE], target_prefix=prefixes)
        assert field == f"decoding.target_prefix[{index}]"


def test_a_prefix_that_the_grammar_does_not_allow(client: Client) -> None:
    grammar = Regex("[0-9-]+x")
    for prefixes, index in ((["20", "2,"], 1), (["2,"], 0)):
        options = TranslationOptions(target_prefix=prefixes, grammar=grammar)
        field = invalid_field(client.translate, DATES, [DATE, DATE], **options)
        assert field == f"decoding.target_prefix[{index}]"


@pytest.mark.parametrize(("sizes", "field"), [((300,), "messages[0]"), ((2, 298), "messages")])
async def test_the_error_of_a_long_conversation(
    tiny_bundles: Path, tmp_path: Path, sizes: Sequence[int], field: str
) -> None:
    shutil.copytree(tiny_bundles / DECODER, tmp_path / DECODER)
    path = tmp_path / DECODER / "1" / "bundle.json"
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    messages = tuple(Message("user", "7" * size) for size in sizes)
    request = GenerateRequest(model=DECODER, messages=messages)
    async with service_context(tmp_path, num_threads=1, num_slots=1) as context:
        with pytest.raises(InvalidArgumentError, match="has 300 tokens") as caught:
            await Service(context).generate(request, Caller("", None))
    assert caught.value.field == field


async def test_images_for_a_model_of_texts_are_refused(tiny_bundles: Path) -> None:
    request = GenerateRequest(model=DECODER, images=(picture(),))
    both = GenerateRequest(model=DECODER, inputs=("7",), images=(picture(),))
    async with service_context(tiny_bundles, num_threads=1, num_slots=1) as context:
        for wrong, reason in ((request, "texts, not images"), (both, "exactly one of inputs")):
            with pytest.raises(InvalidArgumentError, match=reason) as caught:
                await Service(context).generate(wrong, Caller("", None))
            assert caught.value.field == "images"
