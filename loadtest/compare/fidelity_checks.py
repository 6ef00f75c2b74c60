"""What each task is asked to compare a candidate with fp32."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from loadtest.compare import fidelity
from loadtest.compare.candidates import Level
from loadtest.compare.engine_runner import EngineRunner
from loadtest.prompts import questions, sentences
from loadtest.tasks import Task

ANSWER_TOKENS = 200
_END_OF_TURN = "<|im_end|>"
_CHAT = "<|im_start|>user\n{}" + _END_OF_TURN + "\n<|im_start|>assistant\n"


@dataclass(frozen=True, slots=True)
class FidelityCheck:
    """A message that every candidate gets, the reply of fp32, and how to compare replies."""

    message: Mapping[str, Any]
    reference: Mapping[str, Any]
    compare: Callable[[Mapping[str, Any], Mapping[str, Any]], fidelity.Fidelity]

    def of(self, runner: EngineRunner) -> fidelity.Fidelity:
        """Raises ``LookupError`` if the candidate does not run, or ``WorkerError``."""
        return self.compare(runner.ask(self.message), self.reference)


def _answers(reference: EngineRunner) -> FidelityCheck:
    """Log-probabilities of the greedy answers of fp32 to everyday questions."""
    tokenizer = Tokenizer.from_file(str(reference.model / "tokenizer.json"))
    prompts = [tokenizer.encode(_CHAT.format(text)).ids for text in questions()]
    asked = {"inputs": prompts, "max_new_tokens": ANSWER_TOKENS, "with_logprobs": False}
    answers = reference.ask({"op": "tokens", **asked})["tokens"]
    end = tokenizer.token_to_id(_END_OF_TURN)
    answers = [row[: row.index(end) + 1] if end in row else row for row in answers]
    message = {
        "op": "score",
        "inputs": [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)],
        "starts": [len(prompt) for prompt in prompts],
    }
    return FidelityCheck(message, reference.ask(message), fidelity.of_scores)


def _vectors(reference: EngineRunner) -> FidelityCheck:
    tokenizer = Tokenizer.from_file(str(reference.model / "tokenizer.json"))
    tokenizer.no_padding()
    message = {"op": "vectors", "inputs": [tokenizer.encode(text).ids for text in sentences()]}
    return FidelityCheck(
        message,
        reference.ask(message),
        lambda found, exact: fidelity.of_vectors(found["vectors"], exact["vectors"]),
    )


def _translations(reference: EngineRunner) -> FidelityCheck:
    message = {"op": "run", "requests": [list(sentences())]}
    return FidelityCheck(
        message,
        reference.ask(message),
        lambda found, exact: fidelity.of_texts(found["texts"], exact["texts"]),
    )


CHECKS: dict[tuple[Task, Level], Callable[[EngineRunner], FidelityCheck]] = {
    (Task.GENERATE, Level.ENGINE): _answers,
    (Task.EMBED, Level.ENGINE): _vectors,
    (Task.TRANSLATE, Level.TEXT): _translations,
}
"""Each takes our engine in fp32. The Transformer-base has random weights: there is no check."""
