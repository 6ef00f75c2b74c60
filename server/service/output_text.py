"""The text of one output of a job: incremental detokenization, stop strings, counts."""

import time
from collections.abc import Sequence

from server.engine.decoding.sampling import TokenLogprob
from server.engine.requests.lifecycle import Outcome
from server.engine.requests.update import Completion, JobUpdate
from server.models.registry import Model
from server.service.generation_request import Finish, FinishReason, ScoredToken, TextChunk
from server.service.prepared_request import PreparedRequest
from server.service.reasoning import ReasoningCounter
from server.service.token_clock import TokenClock
from server.service.usage import Timing, Usage, error_of
from server.telemetry.metrics import Metrics
from server.text.stop_strings import StopStrings

_FINISH_REASONS = {
    Outcome.STOP: FinishReason.STOP,
    Outcome.LENGTH: FinishReason.LENGTH,
    Outcome.TIME_LIMIT: FinishReason.DEADLINE,
    Outcome.CANCELLED: FinishReason.CANCELLED,
}


def scored_tokens(
    model: Model, token_ids: Sequence[int], values: Sequence[TokenLogprob]
) -> tuple[ScoredToken, ...]:
    """Tokens as spelled in the vocabulary, with their log-probabilities: one value per id."""
    spellings = model.tokenizer.tokens(token_ids)
    return tuple(
        ScoredToken(
            id_,
            spelling,
            value.logprob,
            tuple(
                ScoredToken(other, name, logprob)
                for (other, logprob), name in zip(
                    value.top,
                    model.tokenizer.tokens([other for other, _ in value.top]),
                    strict=True,
                )
            ),
        )
        for id_, spelling, value in zip(token_ids, spellings, values, strict=True)
    )


class OutputText:
    """The state of one output: incremental detokenization and stop strings."""

    def __init__(
        self, prepared: PreparedRequest, index: int, hypothesis: int, metrics: Metrics
    ) -> None:
        self._prepared = prepared
        self._index = index
        self._hypothesis = hypothesis
        self._metrics = metrics
        self._clock = TokenClock(prepared.model.manifest.name, prepared.started, metrics)
        self._text = prepared.model.tokenizer.detokenizer(prepared.prefixes[index].previous)
        self._stops = StopStrings(prepared.stop_strings)
        self._reasoning: ReasoningCounter | None = None
        if prepared.separates_reasoning:
            self._reasoning = ReasoningCounter(
                prepared.model.tokenizer.detokenizer(), is_open=prepared.begins_with_reasoning
            )
        self._has_started = self._has_input_ids = self._is_counted = False
        self.token_ids: tuple[int, ...] = ()
        self.num_characters = 0  # of the text, which ends before a stop string

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string ended the text. Later tokens are dropped."""
        return self._stops.is_matched

    def push(self, update: JobUpdate) -> TextChunk | None:
        """Makes the chunk for an update; ``None`` if no text is final yet.

        Raises ``ServeError`` if the output failed.
        """
        prepared = self._prepared
        text = ""
        token_ids: tuple[int, ...] = ()
        if not self._has_started:
            self._has_started = True
            prefix = prepared.prefixes[self._index]
            text = prefix.echo + self._text.push_all(prefix.token_ids)
            token_ids = prefix.token_ids
            if self._reasoning is not None:
                self._reasoning.skip(token_ids)
        final_text, num_tokens = self._final_text(update)
        text += final_text
        self.num_characters += len(text)
        generated, logprobs = update.tokens[:num_tokens], update.logprobs[:num_tokens]
        if generated:
            times = update.token_times or [time.monotonic()] * num_tokens
            self._clock.add(times[:num_tokens])
            if self._reasoning is not None:
                self._reasoning.push(generated)
        token_ids += generated
        self.token_ids += token_ids
        finish = None
        if update.completion is not None:
            finish = self._finish(update, update.completion)
        if finish is None and not (text or (token_ids and prepared.sends_tokens_without_text)):
            return None
        return TextChunk(
            prepared.model.manifest.name,
            self._index,
            self._hypothesis,
            text,
            token_ids if prepared.wants_token_ids else (),
            self._scored(token_ids, logprobs) if logprobs else (),
            finish,
            self._num_input_tokens,
            self._clock.num_tokens,
            num_reasoning_tokens=self._num_reasoning_tokens,
            input_ids=self._take_input_ids(),
        )

    def _take_input_ids(self) -> tuple[int, ...]:
        """The ids of the input, once, if they are requested."""
        if self._hypothesis or self._has_input_ids or not self._prepared.wants_token_ids:
            return ()
        self._has_input_ids = True
        job, prefix = self._prepared.jobs[self._index], self._prepared.prefixes[self._index]
        if job.num_source_tokens:
            return job.source
        return job.prompt[: len(job.prompt) - len(prefix.token_ids)]

    def close(self) -> None:
        """Counts the output's tokens, unless :meth:`push` has done so at its end."""
        self._count(Usage(self._num_input_tokens, self._clock.num_tokens))

    def _count(self, usage: Usage) -> None:
        if not self._is_counted:
            self._is_counted = True
            self._metrics.on_tokens(
                self._prepared.model.manifest.name,
                usage.input_tokens,
                usage.output_tokens,
                usage.reused_tokens,
            )

    @property
    def _num_input_tokens(self) -> int:
        """0 except for the first output, because the outputs of a job share its input."""
        job = self._prepared.jobs[self._index]
        return 0 if self._hypothesis else job.num_source_tokens or len(job.prompt)

    @property
    def _num_reasoning_tokens(self) -> int:
        return 0 if self._reasoning is None else self._reasoning.num_tokens

    def _final_text(self, update: JobUpdate) -> tuple[str, int]:
        """The text that is now final, and the number of the update's tokens in the output.

        Tokens after a stop string do not count. Raises ``ServeError`` if the output failed.
        """
        if self.is_stopped:
            return "", 0
        token_ids, completion, text = update.tokens, update.completion, ""
        error = None if completion is None else error_of(completion)
        if error is not None:
            raise error
        if not self._prepared.stop_strings:
            adds = self._text.push_all if completion is None else self._text.finish
            return adds(token_ids), len(token_ids)
        for number, id_ in enumerate(token_ids, 1):
            text += self._stops.push(self._text.push(id_))
            if self.is_stopped:
                return text, number
        if completion is not None:
            text += self._stops.push(self._text.finish()) + self._stops.finish()
        return text, len(token_ids)

    def _scored(
        self, token_ids: tuple[int, ...], logprobs: Sequence[TokenLogprob]
    ) -> tuple[ScoredToken, ...]:
        """Scores the generated tokens: the last ones of ``token_ids``, after the target prefix."""
        generated = token_ids[len(token_ids) - len(logprobs) :]
        return scored_tokens(self._prepared.model, generated, logprobs)

    def _finish(self, update: JobUpdate, completion: Completion) -> Finish:
        prepared = self._prepared
        name = prepared.model.manifest.name
        is_first = self._hypothesis == 0
        usage = Usage(
            self._num_input_tokens,
            self._clock.num_tokens,
            completion.num_reused_tokens if is_first else 0,
            self._num_reasoning_tokens,
        )
        prompt_logprobs: tuple[ScoredToken, ...] = ()
        job = prepared.jobs[self._index]
        if is_first:
            self._metrics.on_phases(
                name,
                completion.queue_seconds,
                completion.prefill_seconds,
                completion.decode_seconds,
            )
            if update.prompt.logprobs:
                scored = job.prompt[1:][: len(update.prompt.logprobs)]  # a time limit leaves fewer
                prompt_logprobs = scored_tokens(prepared.model, scored, update.prompt.logprobs)
        self._count(usage)
        reason = FinishReason.STOP_STRING
        if not self.is_stopped:
            reason = _FINISH_REASONS[completion.outcome]
        timing = Timing.of([completion], prepared.tokenize_seconds, prepared.started)
        return Finish(
            *(reason, usage, timing, completion, update.score, prompt_logprobs),
            stop_string=self._stops.match,
        )
