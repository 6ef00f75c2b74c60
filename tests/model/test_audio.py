"""Recordings: every format, any rate and number of channels, damage, and hostile headers."""

import struct
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest

from model.audio import AudioError, Samples, decode_audio, open_audio
from tests.recordings import ENCODERS, encoded, tone, wav

RATE = 16_000
LOSSY = {"mp3", "opus", "vorbis", "m4a", "webm"}
NOISE = np.random.default_rng(0).integers(-9000, 9000, 3 * RATE).astype(np.int16)


def reason(data: bytes) -> str:
    with pytest.raises(AudioError) as caught:
        decode_audio(data, RATE)
    return str(caught.value)


def decibels(decoded: Samples, expected: Samples) -> float:
    """Signal to noise, at the best volume: MP3 encoders change it. Edges are left out."""
    inner = slice(RATE // 10, -RATE // 10)
    x, y = decoded[: len(expected)].astype(float)[inner], expected.astype(float)[inner]
    signal = y * (x @ y) / (y @ y)
    return float(10 * np.log10((signal @ signal) / (np.square(x - signal).sum() + 1e-9)))


def test_a_wav_file_at_the_rate_of_the_model_is_not_changed() -> None:
    np.testing.assert_array_equal(decode_audio(wav(NOISE), RATE), NOISE)
    np.testing.assert_array_equal(decode_audio(encoded("flac", NOISE, RATE), RATE), NOISE)


@pytest.mark.parametrize("layout", ["mono", "stereo"])
@pytest.mark.parametrize("name", ENCODERS)
def test_all_formats_are_read_without_delay(name: str, layout: str) -> None:
    if name == "vorbis" and layout == "mono":
        pytest.skip("FFmpeg's encoder of Vorbis needs two channels")
    rate = {"opus": 48_000, "webm": 48_000, "wav, mu-law": 8_000}.get(name, 44_100)
    decoded = decode_audio(encoded(name, tone(2, rate), rate, layout), RATE)
    assert 0 <= len(decoded) - 2 * RATE < 0.05 * RATE  # AAC and Vorbis fill the last packet
    least = 30 if name in LOSSY | {"wav, mu-law", "wav, 8 bits"} else 70
    assert decibels(decoded, tone(2, RATE)) > least


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000, 96_000, 192_000])
def test_any_rate_is_resampled(rate: int) -> None:
    decoded = decode_audio(wav(tone(2, rate), rate), RATE)
    assert abs(len(decoded) - 2 * RATE) <= 1
    assert decibels(decoded, tone(2, RATE)) > 70


def test_tones_above_half_the_rate_are_filtered_out() -> None:
    decoded = decode_audio(wav(tone(2, 48_000, hertz=9_000), 48_000), RATE)
    assert np.abs(decoded[RATE // 10 : -RATE // 10]).max() < 8192 / 1000


@pytest.mark.parametrize("num_channels", range(1, 9))
def test_channels_are_mixed(num_channels: int) -> None:
    samples = np.repeat(tone(1, RATE)[:, None], num_channels, 1)
    np.testing.assert_allclose(decode_audio(wav(samples), RATE), tone(1, RATE), atol=1)


def test_blocks_are_the_parts_of_the_recording() -> None:
    data = encoded("mp3", NOISE, RATE)
    reader = open_audio(data, RATE)
    blocks = [reader.read(RATE)]
    while len(blocks[-1]):
        blocks.append(reader.read(RATE))
    reader.close()
    np.testing.assert_array_equal(np.concatenate(blocks), decode_audio(data, RATE))
    assert all(RATE <= len(block) < 1.5 * RATE for block in blocks[:-2])
    with pytest.raises(AudioError, match="was closed"):
        reader.read(RATE)


def test_the_header_states_the_length() -> None:
    for name in ("wav", "flac", "m4a", "alac"):
        assert open_audio(encoded(name, NOISE, RATE), RATE).claimed_seconds == 3
    assert open_audio(encoded("mp3", NOISE, RATE), RATE).claimed_seconds is None
    # As a program does that writes to a pipe.
    unknown = bytearray(wav(NOISE))
    struct.pack_into("<I", unknown, 40, 0x7FFF_FFFF)
    reader = open_audio(bytes(unknown), RATE)
    assert reader.claimed_seconds == pytest.approx(3, abs=0.01)
    np.testing.assert_array_equal(reader.read(len(NOISE) + 1), NOISE)


def test_tags_before_a_file_are_skipped() -> None:
    tag = b"ID3\4\0\0" + bytes([0, 0, 2, 1]) + bytes(257)
    for name in ("mp3", "flac"):
        data = encoded(name, NOISE, RATE)
        np.testing.assert_array_equal(decode_audio(tag + data, RATE), decode_audio(data, RATE))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"ID3",
        b"no recording",
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"RIFF\0\0\0\0AVI LIST",
    ],
)
def test_other_formats_are_refused(data: bytes) -> None:
    assert reason(data) == "is not one of WAV, FLAC, MP3, Ogg, MP4, WebM"


@pytest.mark.parametrize("name", ["wav", "flac", "mp3", "opus", "webm"])
def test_a_file_that_was_cut_off_is_read_up_to_there(name: str) -> None:
    rate = 48_000 if name in {"opus", "webm"} else RATE
    data = encoded(name, tone(3, rate), rate)
    half = decode_audio(data[: len(data) // 2], RATE)
    assert 0.8 * RATE <= len(half) <= 2 * RATE
    assert decibels(half, tone(3, RATE)[: len(half)]) > 30


def test_every_prefix_is_read_or_refused() -> None:
    for name in ENCODERS:
        data = encoded(name, tone(0.05, 48_000), 48_000, "stereo")
        for size in range(0, len(data), max(1, len(data) // 150)):
            with suppress(AudioError):
                assert len(decode_audio(data[:size], RATE)) <= 0.1 * RATE


def test_an_mp4_file_without_its_index_is_damaged() -> None:
    data = encoded("m4a", tone(1, RATE), RATE)
    assert reason(data[: len(data) // 2]) == "is damaged"


def test_damaged_packets_are_skipped_unless_most_are() -> None:
    data = bytearray(encoded("opus", tone(3, 48_000), 48_000))
    data[len(data) // 2] ^= 0xFF  # one page of the file, whose checksum is wrong now
    assert RATE < len(decode_audio(bytes(data), RATE)) <= 3.1 * RATE
    assert reason(b"\xff\xfb\x90\x64" * 1000) == "is damaged"


def test_headers_beyond_the_limits_are_refused() -> None:
    for rate in (100, 3_999, 384_001, 2**31 - 1):
        assert reason(wav(NOISE, rate)).startswith(f"has {rate} samples per second: 4000 to 384000")
    assert reason(wav(NOISE.reshape(-1, 12))) == "has 12 channels, at most 8 are accepted"


def test_codecs_of_other_formats_are_refused() -> None:
    data = bytearray(wav(NOISE))
    struct.pack_into("<H", data, 20, 0x2000)  # AC-3
    assert reason(bytes(data)) == "has a codec that is not supported"


def test_an_index_that_claims_millions_of_packets_takes_no_memory() -> None:
    data = bytearray(encoded("m4a", tone(1, RATE), RATE))
    for name, offset, values in (
        (b"stsz", 8, (1, 50_000_000)),  # all packets have one byte
        (b"stsc", 12, (1, 50_000_000)),  # of one chunk
        (b"stts", 12, (50_000_000, 1024)),
    ):
        struct.pack_into(">2I", data, data.index(name) + offset, *values)
    program = (
        "import resource, sys, av; from model.audio import decode_audio, AudioError\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "data = sys.stdin.buffer.read(); before = peak()\n"
        "try: decode_audio(data, 16000)\n"
        "except AudioError: pass\n"
        "print(peak() - before)"
    )
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, input=bytes(data), capture_output=True, check=True)
    assert int(ran.stdout) < 40_000, "kilobytes"
    assert ran.stderr == b""


def test_ffmpeg_is_imported_with_the_first_recording() -> None:
    program = "import sys; import model.audio; print('av' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ran.stdout == b"False\n"


def test_a_file_that_keeps_ffmpeg_busy_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.audio_file.MAX_CPU_SECONDS", 0.1)
    data = encoded("opus", tone(1, 48_000), 48_000) + b"OggS" * (1 << 20)
    assert reason(data) == "takes too long to decode"
