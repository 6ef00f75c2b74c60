"""Bundles of encoders that read waveforms, with their own windows and with short ones."""

from dataclasses import replace
from pathlib import Path

import msgspec

from export.bundle_writer import write_bundle
from export.importers.waveform_tables import audio_spec
from export.sources import load_checkpoint

SHORT_SECONDS = 2


def write_bundles(folder: Path, root: Path, name: str, short_name: str) -> None:
    """Writes the model in ``folder`` as ``root / name``, and with windows of 2 s as the other."""
    checkpoint = load_checkpoint(str(folder))
    write_bundle(checkpoint, root, name=name)
    assert checkpoint.config.waveform is not None
    assert checkpoint.audio is not None
    num_samples = SHORT_SECONDS * checkpoint.audio.sample_rate
    waveform = msgspec.structs.replace(checkpoint.config.waveform, num_samples=num_samples)
    config = msgspec.structs.replace(
        checkpoint.config, waveform=waveform, position=waveform.position
    )
    short = replace(checkpoint, config=config, audio=audio_spec(waveform))
    write_bundle(short, root, name=short_name)
