"""Chat templates of checkpoints: special tokens, and templates that no server could use."""

import dataclasses
from pathlib import Path

import pytest

from export.bundle_writer import write_bundle
from export.errors import UnsupportedError
from export.sources import load_checkpoint
from model.chat_template import compile_template, render_template
from tests.architectures import checkpoint
from tests.export.importers.support import edit_json, save
from tests.export.importers.test_llama import llama


@pytest.mark.parametrize(
    ("template", "message"),
    [("{{ 1 / 'a' }}", "does not render a user's message"), ("{% if %}", "does not compile")],
)
def test_a_template_that_a_server_cannot_use_is_refused(
    tmp_path: Path, template: str, message: str
) -> None:
    source = dataclasses.replace(checkpoint("llama"), chat_template=template)
    with pytest.raises(UnsupportedError, match=message):
        write_bundle(source, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_templates_get_the_other_special_tokens(tmp_path: Path) -> None:
    save(llama(), tmp_path)
    source = "\n {{ pad_token }}|{{ unk_token + 'x' }}|{{ mask_token is defined }}"
    edit_json(
        tmp_path / "tokenizer_config.json",
        chat_template=source,
        pad_token="<'pad\u2581\U0001f600'>",
        unk_token={"content": "w1"},
        sep_token="w2",
    )
    template = load_checkpoint(str(tmp_path)).chat_template or ""
    assert "sep_token" not in template
    rendered = render_template(compile_template(template), [], {})
    assert rendered == "\n <'pad\u2581\U0001f600'>|w1x|False"
