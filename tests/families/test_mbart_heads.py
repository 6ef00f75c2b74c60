"""mBART's and PLBART's classes that read a text with both stacks, against transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
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
from tests.export.importers.support import save
from tests.families.harness import check_eager, check_graphs
from tests.families.rereaders import NLI, check_answers, check_classifies
from tests.families.test_bart import SMALL
from tests.families.test_bart_heads import last_hidden

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
    pad, prepare = SMALL["pad_token_id"], ending(*suffix)
    check_classifies(model_of(family), tmp_path, suffix, pad, prepare)


@pytest.mark.parametrize("suffix", [(LANGUAGE,), (LANGUAGE, LANGUAGE + 1)])
def test_texts_without_an_end_are_rejected(suffix: tuple[int, ...], tmp_path: Path) -> None:
    save(model_of("mBART, classifier"), tmp_path)
    ending(*suffix)(tmp_path)
    with pytest.raises(UnsupportedError, match="does not end texts with 2, the eos_token_id"):
        load_checkpoint(str(tmp_path))


def test_answers() -> None:
    check_answers(MBartForQuestionAnswering(MBartConfig(**SMALL | {"num_labels": 2})))
