"""Validates requests of Transcribe, and makes the engine's job for each window."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from model.audio import Samples
from model.bundle import ATTEND, AttentionKind, AudioSpec, TranscriptionTokens
from server.constraint import Constraint
from server.engine.decoding.options import (
    AttentionSelection,
    Beams,
    LogprobOptions,
    Sampling,
)
from server.engine.decoding.timestamps import ForcedStart, TimestampRules, TimestampTokens
from server.engine.requests.job import Delivery, GenerationJob
from server.errors import BundleChangedError, InvalidArgumentError
from server.models.memory_ledger import with_planned_slots
from server.models.registry import Model
from server.printable import counted
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.languages import language_token
from server.service.transcription_request import TranscribeRequest, TranscriptionOptions

# Radford et al. 2022, section 4.5.
FALLBACK_TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MAX_FIRST_SECONDS = 1.0  # of the first timestamp
# Windows of a call in progress at a time.
MAX_WINDOWS_AT_ONCE = 8
_SEED = 0  # the same recording has the same text


@dataclass(frozen=True, slots=True)
class TranscriptionPlan:
    """A validated request.

    Attributes:
        model: that transcribes.
        audio: of a window.
        tokens: special ones of the model.
        language: of the speech; empty: unknown until the first window's is detected.
        task: the token that asks for the language of the speech or for English, if there is one.
        temperatures: of a window's attempts, until one is plausible.
        beams: of attempts at temperature 0.
        max_windows: in progress at a time.
        alignment_heads: pairs of a layer and a head that align words with speech; empty: the
            request does not ask for the times of words.
        job: what the jobs of all windows have in common.
    """

    model: Model
    audio: AudioSpec
    tokens: TranscriptionTokens
    language: str
    task: int | None
    temperatures: tuple[float, ...]
    beams: Beams | None
    max_windows: int
    alignment_heads: tuple[tuple[int, int], ...]
    job: GenerationJob

    @property
    def languages(self) -> dict[str, int]:
        """The tokens of the model's languages; of a model of one language none."""
        return self.model.manifest.languages

    @property
    def detects_language(self) -> bool:
        return not self.language and bool(self.languages)

    @property
    def num_forced_tokens(self) -> int:
        """Tokens that an output begins with: those of the language and the task."""
        return bool(self.languages) + (self.task is not None)

    def job_of(self, samples: Samples, temperature: float, language: str) -> GenerationJob:
        """The job that transcribes a window.

        Args:
            samples: of the window, padded.
            temperature: 0 is greedy, or a beam search.
            language: empty: the job detects it, and delivers its token at once.
        """
        detects = not language and bool(self.languages)
        return replace(
            self.job,
            samples=samples,
            num_audio_tokens=self.audio.num_tokens,
            sampling=Sampling(temperature=temperature, seed=_SEED),
            beams=None if temperature else self.beams,
            constraint=self._constraint(language),
            logprob_options=LogprobOptions(
                top_logprobs=0,
                are_processed=True,
                first_token_ids=self._first_token_ids(detects=detects),
            ),
            delivery=Delivery.EACH if detects else Delivery.WHOLE,
        )

    def alignment_job(
        self, samples: Samples, text_ids: Sequence[int], language: str
    ) -> GenerationJob | None:
        """The job that returns the attention of a window's text; None if the text is too long.

        Its prompt has one token after the start tokens, then the text and its end.
        """
        start = self.start_tokens(language)
        prompt = (*start, self.tokens.no_timestamps, *text_ids, min(self.job.eos))
        if len(prompt) > self.model.max_length:
            return None
        layers, heads = (tuple(sorted(set(ids))) for ids in zip(*self.alignment_heads, strict=True))
        selection = AttentionSelection(AttentionKind.CROSS, layers, heads, average=False)
        return replace(
            self.job,
            prompt=prompt,
            max_new_tokens=0,
            samples=samples,
            num_audio_tokens=self.audio.num_tokens,
            attention=selection,
        )

    def start_tokens(self, language: str) -> tuple[int, ...]:
        """The tokens of a transcript before its text."""
        known = (self.languages[language],) if self.languages else ()
        return (self.job.prompt[-1], *known, *(() if self.task is None else (self.task,)))

    def no_speech_probability(self, first_logprobs: tuple[float, ...]) -> float:
        """That nobody speaks, by a job's ``first_logprobs``; 0 if the model does not tell."""
        return 0.0 if self.tokens.no_speech is None else math.exp(first_logprobs[0])

    def language_probability(self, name: str, first_logprobs: tuple[float, ...]) -> float:
        """That the speech is in the language ``name``, by those of a job that detects it."""
        start = self.tokens.no_speech is not None
        probabilities = dict(
            zip(self.languages, map(math.exp, first_logprobs[start:]), strict=True)
        )
        return probabilities[name] / sum(probabilities.values())

    def _first_token_ids(self, *, detects: bool) -> tuple[int, ...]:
        no_speech = self.tokens.no_speech
        languages = self.languages.values() if detects else ()
        return (*(() if no_speech is None else (no_speech,)), *languages)

    def _constraint(self, language: str) -> Constraint:
        tokens, vocabulary_size = self.tokens, self.model.manifest.dimensions.vocabulary_size
        first = tokens.first_timestamp
        no_speech = () if tokens.no_speech is None else (tokens.no_speech,)
        rules = TimestampRules(
            TimestampTokens(
                first_timestamp=first,
                eos=min(self.job.eos),
                max_first=first + round(MAX_FIRST_SECONDS / tokens.timestamp_seconds),
                suppressed=(
                    tokens.no_timestamps,
                    *no_speech,
                    *range(first + tokens.num_timestamps, vocabulary_size),
                ),
                first_suppressed=tokens.first_suppressed,
            )
        )
        choices: list[tuple[int, ...]] = []
        if self.languages:
            known = self.languages
            choices.append((known[language],) if language else tuple(known.values()))
        if self.task is not None:
            choices.append((self.task,))
        return ForcedStart(choices, rules) if choices else rules


async def plan_transcription(
    request: TranscribeRequest, model: Model, context: ServiceContext, caller: Caller
) -> TranscriptionPlan:
    """Validates all options of a request to an encoder-decoder, and tokenizes its prompt.

    Raises:
        InvalidArgumentError: names the invalid option.
        OverloadedError: the model's queue is full.
    """
    manifest, options = model.manifest, request.options
    audio, tokens, eos = manifest.audio, manifest.transcription, manifest.special_tokens.eos
    if audio is None or tokens is None or not eos:
        raise InvalidArgumentError("model", f"the bundle of {manifest.name!r} lacks its tokens")
    num_slots = with_planned_slots(context.config, model).num_slots
    if options.beam_size > num_slots:
        raise InvalidArgumentError(
            "beam_size",
            f"{options.beam_size} is more than the {counted(num_slots, 'slot')} of this model",
        )
    context.engine.check(model.key, options.beam_size, caller.client)
    prompt = await _prompt(options, model, tokens, context, caller)
    temperature = options.temperature
    return TranscriptionPlan(
        model=model,
        audio=audio,
        tokens=tokens,
        language=requested_language(options, model),
        task=_task(options, model, tokens),
        temperatures=FALLBACK_TEMPERATURES if temperature is None else (temperature,),
        beams=Beams(options.beam_size) if options.beam_size > 1 else None,
        max_windows=max(min(MAX_WINDOWS_AT_ONCE, num_slots // options.beam_size), 1),
        alignment_heads=_alignment_heads(options, model, tokens),
        job=GenerationJob(
            prompt=prompt,
            max_new_tokens=model.max_length - len(prompt),
            eos=frozenset(eos),
            priority=request.priority,
            deadline=caller.deadline,
            cache_scope=context.cache_scope(caller),
            adapter=model.adapter,
            client=caller.client,
        ),
    )


def requested_language(options: TranscriptionOptions, model: Model) -> str:
    """The given language, or the only one of the model; empty if the bundle states none.

    Raises:
        InvalidArgumentError: the model does not know the language.
    """
    manifest = model.manifest
    if options.language:
        language_token(manifest, "language", options.language, manifest.source_language)
        return options.language
    return "" if manifest.languages else manifest.source_language or ""


def _task(options: TranscriptionOptions, model: Model, tokens: TranscriptionTokens) -> int | None:
    name = model.manifest.name
    if options.translate and (tokens.translate is None or not model.manifest.languages):
        raise InvalidArgumentError("translate", f"{name!r} does not translate")
    if not model.manifest.languages:
        return None
    return tokens.translate if options.translate else tokens.transcribe


def _alignment_heads(
    options: TranscriptionOptions, model: Model, tokens: TranscriptionTokens
) -> tuple[tuple[int, int], ...]:
    """Empty unless the request asks for the times of words."""
    if not options.word_timestamps:
        return ()
    graph = model.manifest.graphs.get(ATTEND)
    if graph is None:
        raise InvalidArgumentError(
            "word_timestamps",
            f"the bundle of {model.manifest.name!r} returns no attention: export it again",
        )
    if not model.can_run(ATTEND):
        raise BundleChangedError(model.manifest.label)
    num_layers, num_heads = map(int, graph.output(AttentionKind.CROSS).shape[1:3])
    return tokens.alignment_heads or tuple(
        (layer, head) for layer in range(num_layers // 2, num_layers) for head in range(num_heads)
    )


async def _prompt(
    options: TranscriptionOptions,
    model: Model,
    tokens: TranscriptionTokens,
    context: ServiceContext,
    caller: Caller,
) -> tuple[int, ...]:
    """The decoder's first tokens: the end of the text before the speech, then its start token."""
    special, text = model.manifest.special_tokens, options.prompt.strip()
    if special.decoder_start is None:
        raise InvalidArgumentError("model", "its bundle has no decoder_start token")
    if not text:
        return (special.decoder_start,)
    if tokens.previous is None:
        raise InvalidArgumentError("prompt", f"{model.manifest.name!r} takes none")
    (ids,) = await context.tokenize(
        [f" {text}"],
        lambda some: model.tokenizer.encode(some, special_tokens=False),
        caller,
        "prompt",
    )
    # A prompt may spell special tokens. It gets almost half of a slot, as in the paper's code.
    plain = [id_ for id_ in ids if id_ < min(special.eos)]
    kept = plain[len(plain) - min(len(plain), model.max_length // 2 - 1) :]
    return (tokens.previous, *kept, special.decoder_start)
