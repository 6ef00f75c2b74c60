"""Validated requests of Generate and Translate: the engine's jobs and response options."""

from dataclasses import dataclass

from server.engine.requests.job import GenerationJob
from server.models.registry import Model
from server.service.attention import AttentionPlan
from server.service.sentences import SentencePlan
from server.text.chat import NO_OPTIONS, ChatOptions


@dataclass(frozen=True, slots=True)
class ForcedPrefix:
    """The start of an output: the echoed input, then the tokens of the target prefix.

    ``source_text`` is the untokenized input. ``previous`` are the tokens of the input that the
    text continues; none if the text stands alone.
    """

    echo: str = ""
    token_ids: tuple[int, ...] = ()
    source_text: str = ""
    previous: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A validated request: one job and one prefix per input, and the options of the response.

    ``started`` is the call's arrival, in seconds of ``time.monotonic``. ``sentences`` says how to
    join the outputs of the jobs; ``None`` if each job is one input. ``chat`` says what to
    separate from the texts; ``begins_with_reasoning``: the prompt ends with the tag before it.
    """

    model: Model
    client: str
    jobs: list[GenerationJob]
    prefixes: list[ForcedPrefix]
    stop_strings: tuple[str, ...]
    wants_token_ids: bool
    wants_logprobs: bool
    attention: AttentionPlan | None
    started: float
    tokenize_seconds: float
    sentences: SentencePlan | None = None
    chat: ChatOptions = NO_OPTIONS
    begins_with_reasoning: bool = False

    @property
    def num_inputs(self) -> int:
        return len(self.jobs) if self.sentences is None else len(self.sentences.texts)

    @property
    def separates_reasoning(self) -> bool:
        """Whether to separate reasoning from the texts. A grammar describes both."""
        return self.chat.separate_reasoning and self.jobs[0].constraint is None

    @property
    def sends_tokens_without_text(self) -> bool:
        """Whether to send chunks that have tokens but no text."""
        return self.wants_token_ids or self.wants_logprobs
