"""Recordings, and their transcripts by ``transformers``."""

import io
import wave
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from transformers import (
    GenerationConfig,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)
from transformers.modeling_outputs import BaseModelOutput

from model.bundle import TranscriptionTokens
from server.service.segments import TokenSegment, divide
from tests.speech_models import (
    EOS,
    FIRST_TIMESTAMP,
    NO_TIMESTAMPS,
    START,
    SUPPRESSED,
    WINDOW_SECONDS,
    feature_extractor,
    network,
    tokenizer_json,
)

Samples = npt.NDArray[np.int16]
MAX_LENGTH = 64  # as the server limits it
TOKENS = TranscriptionTokens(
    first_timestamp=FIRST_TIMESTAMP, num_timestamps=101, no_timestamps=NO_TIMESTAMPS
)
TOKENIZER = Tokenizer.from_str(tokenizer_json())
RATE = 16_000


def noise(seed: int, seconds: float = WINDOW_SECONDS) -> Samples:
    """Random samples that get louder and quieter."""
    random = np.random.default_rng(seed)
    size = round(seconds * RATE)
    loudness = 2000 * (1 + np.sin(np.arange(size) / random.integers(500, 5000)))
    samples: Samples = (random.normal(0, 1, size) * loudness).clip(-32768, 32767).astype(np.int16)
    return samples


def wav(samples: Samples) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.tobytes())
    return buffer.getvalue()


class Reference:
    """The same network in ``transformers``."""

    def __init__(self) -> None:
        self._model, self._features = network(), feature_extractor()
        self._encoded: dict[bytes, BaseModelOutput] = {}

    def logits(self, samples: Samples, token_ids: Sequence[int]) -> torch.Tensor:
        """After the last of ``token_ids``: ``[1, vocabulary]``."""
        with torch.no_grad():
            logits: torch.Tensor = self._model(
                encoder_outputs=self._encode(samples), decoder_input_ids=torch.tensor([token_ids])
            ).logits
            return logits[:, -1]

    def _encode(self, samples: Samples) -> BaseModelOutput:
        key = samples.tobytes()
        if key not in self._encoded:
            floats = samples.astype(np.float32) / 32768
            inputs = self._features(floats, sampling_rate=RATE, return_tensors="pt")
            encoder = self._model.get_encoder()
            with torch.no_grad():
                self._encoded[key] = encoder(inputs.input_features)
        return self._encoded[key]

    def probability(self, samples: Samples, token_ids: Sequence[int], token: int) -> float:
        """Of ``token``, after the last of ``token_ids``."""
        logits = self.logits(samples, token_ids)[0]
        logits[START] = -torch.inf  # suppressed
        return float(logits.softmax(-1)[token])

    def tokens(self, samples: Samples, prompt: Sequence[int]) -> list[int]:
        """The greedy tokens after ``prompt``, without the end."""
        config = GenerationConfig(
            eos_token_id=EOS,
            bos_token_id=EOS,
            no_timestamps_token_id=NO_TIMESTAMPS,
            max_initial_timestamp_index=50,
        )
        processors = (
            SuppressTokensLogitsProcessor(list(SUPPRESSED)),
            SuppressTokensAtBeginLogitsProcessor([32, EOS], len(prompt)),
            WhisperTimeStampLogitsProcessor(config, len(prompt)),
        )
        ids = list(prompt)
        while len(ids) < MAX_LENGTH:
            scores = self.logits(samples, ids)
            for processor in processors:
                scores = processor(torch.tensor([ids]), scores)
            token = int(scores.argmax())
            if token == EOS:
                break
            ids.append(token)
        return ids[len(prompt) :]

    def segments(self, samples: Samples, prompt: Sequence[int]) -> list[TokenSegment]:
        """The segments of one window, whose rest is transcribed like another one."""
        found: list[TokenSegment] = []
        start = 0.0
        while True:
            seconds = len(samples) / RATE
            ids = self.tokens(samples, prompt)
            is_cut = len(ids) + len(prompt) == MAX_LENGTH
            text = [id_ for id_ in ids if not EOS <= id_ < FIRST_TIMESTAMP]
            divided = divide(text, TOKENS, seconds, is_cut=is_cut)
            found += [
                TokenSegment(ids, start + first, start + last)
                for ids, first, last in divided.segments
                if TOKENIZER.decode(ids).strip()
            ]
            rest = divided.rest_seconds
            if rest is None or rest < 1 or seconds - rest < 0.5:
                return found
            start, samples = start + rest, samples[round(rest * RATE) :]
