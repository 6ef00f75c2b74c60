"""mBART's and PLBART's classes that read a text with both stacks, against transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors
from torch import Tensor
from transformers import (
    MBartConfig,
    MBartForQuestionAnswering,
    MBartForSequenceClassification,
    PLBartConfig,
    PLBartForSequenceClassification,
)

from export.errors import UnsupportedError
from export.sources import load_checkpoint
from model.bundle import Task
from tests.export.importers.support import pooled, randomise, save
from tests.families.harness import check_eager, check_graphs
from tests.families.test_bart import SMALL
from tests.families.test_bart_heads import NLI, last_hidden

FAMILIES: dict[str, Any] = {
    "mBART, classifier": (MBartForSequenceClassification, MBartConfig),
    "PLBART, classifier": (PLBartForSequenceClassification, PLBartConfig),
}
END, LANGUAGE = SMALL["eos_token_id"], 4


def model_of(family: str, **changes: Any) -> Any:
    model_class, config = FAMILIES[family]
    return model_class(config(**SMALL | {"id2label": NLI} | changes))


def ending(*tokens: int) -> Callable[[Path], None]:
    """Makes the folder's tokenizer end texts with ``tokens``."""

    def prepare(folder: Path) -> None:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        names = [tokenizer.id_to_token(token) for token in tokens]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=["$A", *names], special_tokens=list(zip(names, tokens, strict=True))
        )
        tokenizer.save(str(folder / "tokenizer.json"))

    return prepare


@settings(max_examples=10)
@given(
    st.sampled_from(tuple(FAMILIES)),
    st.fixed_dictionaries(
        {
            "encoder_layers": st.integers(1, 3),
            "decoder_layers": st.integers(1, 3),
            "scale_embedding": st.booleans(),
        }
    ),
)
def test_eager_matches_transformers(family: str, changes: dict[str, Any]) -> None:
    model = model_of(family, **changes)
    check_eager(model, expected=last_hidden, prepare=ending(END, LANGUAGE))


@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_match_transformers(family: str) -> None:
    def expected(model: Any, ids: Tensor) -> Tensor:
        hidden = last_hidden(model, ids)
        logits: Tensor = model.classification_head(hidden[:, max(ids.shape[1] - 2, 0)])
        return logits

    check_graphs(family, model_of(family), expected=expected, prepare=ending(END, LANGUAGE))


@pytest.mark.parametrize("suffix", [(END,), (END, LANGUAGE)])
@pytest.mark.parametrize("family", FAMILIES)
def test_classifies_by_the_end_of_each_text(
    family: str, suffix: tuple[int, ...], tmp_path: Path
) -> None:
    model = randomise(model_of(family)).eval()
    save(model, tmp_path)
    ending(*suffix)(tmp_path)
    checkpoint = load_checkpoint(str(tmp_path))
    assert (checkpoint.tasks, checkpoint.labels) == ((Task.CLASSIFY,), tuple(NLI.values()))
    lengths = torch.tensor([9, 6, 3])
    ids = torch.randint(5, 60, (3, 9), generator=torch.Generator().manual_seed(0))
    for row, length in zip(ids, lengths, strict=True):
        row[length - len(suffix) : length] = torch.tensor(suffix)
        row[length:] = SMALL["pad_token_id"]
    with torch.no_grad():
        mask = (torch.arange(9) < lengths[:, None]).long()
        expected = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(pooled(checkpoint, ids, lengths), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("suffix", [(LANGUAGE,), (LANGUAGE, LANGUAGE + 1)])
def test_texts_without_an_end_are_rejected(suffix: tuple[int, ...], tmp_path: Path) -> None:
    save(model_of("mBART, classifier"), tmp_path)
    ending(*suffix)(tmp_path)
    with pytest.raises(UnsupportedError, match="does not end texts with 2, the eos_token_id"):
        load_checkpoint(str(tmp_path))


def test_answers(tmp_path: Path) -> None:
    model = randomise(MBartForQuestionAnswering(MBartConfig(**SMALL | {"num_labels": 2})))
    checkpoint = load_checkpoint(str(save(model, tmp_path)))
    assert checkpoint.tasks == (Task.ANSWER,)
    ids = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = model(ids)
        expected = torch.stack([found.start_logits, found.end_logits], -1)
    actual = pooled(checkpoint, ids, torch.tensor([9, 9]))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
