"""Correct, with a model whose edit of each word is known: ``tests.heads.EDITS``."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from client.encoder_types import Correction, LongInput, TextEdit
from client.sync import Client
from model.bundle import MANIFEST_FILE, BundleError
from model.bundle_files import read_manifest
from tests.heads import MAX_LENGTH
from tests.server.clients import connected
from tests.server.encoder_calls import error_of, field_of


@pytest.fixture(scope="module")
def client(head_bundles: Path) -> Iterator[Client]:
    with connected(head_bundles, "--threads", "1") as client:
        yield client


def spans(edits: Sequence[TextEdit]) -> list[tuple[int, int, str, str]]:
    return [(edit.start, edit.end, edit.original, edit.replacement) for edit in edits]


def rebuilt(source: str, output: Correction) -> str:
    """The input after the returned edits."""
    text = source
    for edit in reversed(output.edits):
        assert source[edit.start : edit.end] == edit.original
        text = text[: edit.start] + edit.replacement + text[edit.end :]
    return text


def test_edits_words_and_says_where(client: Client) -> None:
    source = "🙂 However they have  there ice cream, on sunday a very big one."
    (output,) = client.correct("corrector", source, max_iterations=1).outputs
    assert output.text == "🙂 However, they has  their ice-cream, on Sunday a big one."
    assert spans(output.edits) == [
        (9, 9, "", ","),
        (15, 19, "have", "has"),
        (21, 26, "there", "their"),
        (30, 31, " ", "-"),
        (41, 47, "sunday", "Sunday"),
        (49, 54, " very", ""),
    ]
    assert all(0.9 < edit.score <= 1 for edit in output.edits)
    assert rebuilt(source, output) == output.text


def test_edits_until_nothing_changes(client: Client) -> None:
    first, second = client.correct("corrector", ["A bad day.", "A good day."]).outputs
    assert first.text == "A worst day."
    assert spans(first.edits) == [(2, 5, "bad", "worst")]
    # "bad" becomes "worse", this becomes "worst", and the third reading finds nothing.
    assert (first.iterations, first.is_final) == (3, True)
    assert (second.text, second.edits) == ("A good day.", ())
    assert (second.iterations, second.is_final) == (1, True)


def test_usage_counts_each_reading(client: Client) -> None:
    once = client.correct("corrector", "A bad day.", max_iterations=1)
    assert once.outputs[0].text == "A worse day."
    assert (once.outputs[0].iterations, once.outputs[0].is_final) == (1, False)
    twice = client.correct("corrector", "A bad day.", max_iterations=2)
    tokens = [
        len(client.tokenize("corrector", text).outputs[0].token_ids)
        for text in ("A bad day.", "A worse day.")
    ]
    assert once.usage.input_tokens == once.outputs[0].usage.input_tokens == tokens[0]
    assert twice.usage.input_tokens == twice.outputs[0].usage.input_tokens == sum(tokens)


def test_edits_that_undo_each_other_stop(client: Client) -> None:
    (output,) = client.correct("corrector", "a black cat", max_iterations=10).outputs
    assert output.text == "a white cat"
    assert (output.iterations, output.is_final) == (2, False)


def test_a_text_does_not_grow_without_end(client: Client) -> None:
    source = "echo " * 40
    (output,) = client.correct("corrector", source, max_iterations=10).outputs
    assert len(source) < len(output.text) <= 2 * len(source) + 64
    assert not output.is_final
    assert rebuilt(source, output) == output.text


def test_edits_below_the_least_score_are_left_out(client: Client) -> None:
    (output,) = client.correct("corrector", "they have it", min_score=1.0).outputs
    assert output.text == "they have it"
    assert output.is_final


def test_long_texts_are_edited_in_windows(client: Client) -> None:
    source = "they have it on sunday , " * MAX_LENGTH
    (output,) = client.correct("corrector", source).outputs
    assert output.text == source.replace("have", "has").replace("sunday", "Sunday")
    assert output.reading.windows > 1
    options = {"max_tokens": 8, "long_input": LongInput.TRUNCATE_RIGHT}
    (output,) = client.correct("corrector", "a b c have d e f have", **options).outputs  # type: ignore[arg-type]
    assert output.text == "a b c has d e f have"
    assert output.reading.truncated_tokens == 2


def test_a_text_may_outgrow_the_length_limit(client: Client) -> None:
    """The limit is one of the input: an edited text is read in windows."""
    source = "however a b c d"
    (output,) = client.correct(
        "corrector", source, max_tokens=7, long_input=LongInput.ERROR
    ).outputs
    assert output.text.startswith("however,")
    assert output.edits[0].start == len("however")


def test_errors_name_the_invalid_field(client: Client) -> None:
    def field(*arguments: object, **options: object) -> str:
        return field_of(error_of(client.correct, *arguments, **options))

    assert field("tagger", "x") == "model"
    assert field("corrector", ["x", " "]) == "inputs[1]"
    assert field("corrector", []) == "inputs"
    assert field("corrector", "x", max_iterations=0) == "options.max_iterations"
    assert field("corrector", "x", max_iterations=11) == "options.max_iterations"
    assert field("corrector", "x", min_score=1.5) == "options.min_score"
    assert field("corrector", "x", max_tokens=MAX_LENGTH + 1) == "length.max_tokens"
    too_long = {"long_input": LongInput.ERROR}
    assert field("corrector", ["a", "a " * MAX_LENGTH], **too_long) == "inputs[1]"


def test_a_bundle_needs_an_edit_for_each_label(head_bundles: Path, tmp_path: Path) -> None:
    manifest = read_manifest(head_bundles / "corrector" / "1")
    assert manifest.edits is not None
    fewer = msgspec.structs.replace(manifest.edits, edits=manifest.edits.edits[:-1])
    folder = tmp_path / "corrector" / "1"
    folder.mkdir(parents=True)
    changed = msgspec.structs.replace(manifest, edits=fewer)
    (folder / MANIFEST_FILE).write_bytes(msgspec.json.encode(changed))
    with pytest.raises(BundleError, match="11 edits for 12 labels"):
        read_manifest(folder)
